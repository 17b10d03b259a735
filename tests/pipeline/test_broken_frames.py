"""Bad samples, bad frames and broken encoders cost what they spoil and no more."""

from __future__ import annotations

import functools
import math
import warnings

import pytest
import small_scorers
import torch
from torch import Tensor
from waveforms import impaired, voices

from torch_mapss import (
    MAPSS,
    MAPSSLoss,
    PerceptualMatch,
    ReferenceBank,
)

small = functools.partial(small_scorers.small, size=10)


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    return small()


def with_nan(tensor_name):
    waves = [voices(2), voices(2)]
    waves[tensor_name][1, 0, 77] = torch.nan
    return waves


@pytest.mark.filterwarnings("ignore:mixtures")
def test_unchecked_non_finite_items_are_left_out():
    mapss = small(check_finite=False)
    estimates, references = with_nan(0)
    scores = mapss(estimates, references)
    assert not scores.active[1].any()
    assert scores.active[0].any()
    clean = small()(estimates[:1], references[:1])
    torch.testing.assert_close(scores.ps[:1], clean.ps)
    estimates, references = with_nan(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = mapss(estimates, references)
    assert not scores.active[1].any()
    assert torch.isfinite(scores.ps).all()
    # The source of that mixture that is fine serves in others, the bad one in none.
    banks = [small().prepare(references[:1]), mapss.prepare(references[1:])]
    mixed = torch.stack([references[0, 0], references[1, 1]]).unsqueeze(0)
    for bank in (mapss.prepare(references), ReferenceBank.join(banks)):
        rescored = mapss(impaired(mixed, 0.3)[[0, 0]], bank.recombined([[0, 1], [1, 0]]))
        torch.testing.assert_close(rescored.ps[:1], small()(impaired(mixed, 0.3), mixed).ps)
        assert not rescored.active[1].any()


@pytest.mark.parametrize("tensor_name", [0, 1])
def test_bad_samples_are_named(mapss, tensor_name):
    with pytest.raises(ValueError, match=r"must be finite.*item 1, source 0.*sample 77"):
        mapss(*with_nan(tensor_name))


# What an encoder's bad numbers cost, and where gradients go.
class Bands:
    """Log energies of eight bands of frames of 400 samples, hop 320; one frame of them spoiled."""

    name, sample_rate, hop, receptive_field, feature_size = "bands", 16_000, 320, 400, 8

    def __init__(self, value: float | None = None) -> None:
        self.value = value

    def __call__(self, waveform: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(waveform.unfold(-1, 400, 320)).abs()[..., 1:161]
        bands = (spectrum.unflatten(-1, (8, 20)).square().sum(-1) + 1e-2).log()
        if self.value is not None:
            bands[:, 7] = self.value
        return bands


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, 0.0])
def test_a_bad_frame_costs_that_frame_alone(value):
    references = voices()
    estimates = impaired(references)
    clean, spoiled = (small(Bands(v), size=6)(estimates, references) for v in (None, value))
    unspoiled = torch.arange(clean.ps.shape[-1]) != 7
    for name in ("ps", "pm"):
        actual, expected_values = getattr(spoiled, name), getattr(clean, name)
        torch.testing.assert_close(actual[..., unspoiled], expected_values[..., unspoiled])
    if value == 0.0:  # constant: no bandwidth, hence no map
        assert (spoiled.ps[..., 7] == 0.5).all()
        assert (spoiled.pm[..., 7] == 1.0).all()
    elif not math.isfinite(value):
        assert not spoiled.active[..., 7].any()
    leaf = estimates.clone().requires_grad_()
    MAPSSLoss(small(Bands(value), size=6))(leaf, references).backward()
    assert leaf.grad.isfinite().all()


def test_a_bad_frame_of_a_source_stays_with_it_in_other_mixtures():
    class Logarithms(Bands):
        def __call__(self, waveform: Tensor) -> Tensor:
            return torch.fft.rfft(waveform.unfold(-1, 400, 320)).abs()[..., 1:9].log()

    mapss, references = small(Logarithms(None), size=6), voices(2)
    references[0, 1, 3000:5000] = 0.0
    mixed = torch.stack([references[:, 0], references.flip(0)[:, 1]], 1)
    bank = mapss.prepare(references).recombined([[0, 1], [1, 0]])
    assert mapss(mixed, bank).active.equal(mapss(mixed, mixed).active)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e37])
def test_a_broken_encoder_is_an_error_and_no_score(value):
    class Broken(Bands):
        layer = 3

        def __call__(self, waveform: Tensor) -> Tensor:
            return torch.full_like(super().__call__(waveform), value)

    references = voices(samples=20_000)
    estimates = impaired(references)
    mapss, segmented = (
        small(Broken(), size=6),
        small(Broken(), size=6, segment=1.0),
    )
    for call in (mapss, segmented, MAPSSLoss(mapss), PerceptualMatch(mapss).update):
        with pytest.raises(RuntimeError, match=r"bands.*layer 3.*float32.*device cpu"):
            call(estimates, references)
