"""What an encoder's bad numbers cost, and where gradients go."""

from __future__ import annotations

import math

import pytest
import torch
from bursts import leaky, small, voices

from torch_mapss import MAPSSLoss, PerceptualMatch


class Bands:
    """Log energies of eight bands of frames of 400 samples, hop 320; one frame of them spoiled."""

    name, sample_rate, hop, receptive_field, feature_size = "bands", 16_000, 320, 400, 8

    def __init__(self, value: float | None = None) -> None:
        self.value = value

    def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(waveform.unfold(-1, 400, 320)).abs()[..., 1:161]
        found = (spectrum.unflatten(-1, (8, 20)).square().sum(-1) + 1e-2).log()
        if self.value is not None:
            found[:, 7] = self.value
        return found


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38, 0.0])
def test_a_bad_frame_costs_that_frame_alone(value: float) -> None:
    references = voices()
    estimates = leaky(references)
    clean, spoiled = (small(Bands(v), size=6)(estimates, references) for v in (None, value))
    others = torch.arange(clean.ps.shape[-1]) != 7
    for name in ("ps", "pm"):
        one, other = getattr(spoiled, name), getattr(clean, name)
        torch.testing.assert_close(one[..., others], other[..., others])
    if value == 0.0:  # constant: no bandwidth, hence no map
        assert (spoiled.ps[..., 7] == 0.5).all()
        assert (spoiled.pm[..., 7] == 1.0).all()
    elif not math.isfinite(value):
        assert not spoiled.active[..., 7].any()
    leaf = estimates.clone().requires_grad_()
    MAPSSLoss(small(Bands(value), size=6))(leaf, references).backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e37])
def test_a_broken_encoder_is_an_error_and_no_score(value: float) -> None:
    class Broken(Bands):
        layer = 3

        def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
            return torch.full_like(super().__call__(waveform), value)

    references = voices(samples=20_000)
    estimates = leaky(references)
    mapss, segmented = small(Broken(), size=6), small(Broken(), size=6, segment=1.0)
    for call in (mapss, segmented, MAPSSLoss(mapss), PerceptualMatch(mapss).update):
        with pytest.raises(RuntimeError, match=r"bands.*layer 3.*float32.*device cpu"):
            call(estimates, references)


class Linear(torch.nn.Module):
    name, sample_rate, hop, receptive_field, feature_size = "linear", 16_000, 320, 400, 6

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(400, 6)
        self.graphs: list[bool] = []

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        found = self.layer(waveform.unfold(-1, 400, 320)).tanh()
        self.graphs.append(found.requires_grad)
        return found


def test_gradients_reach_the_estimates_and_nothing_else() -> None:
    encoder = Linear()
    references = voices().requires_grad_()
    estimates = leaky(references.detach()).requires_grad_()
    MAPSSLoss(small(encoder, size=6))(estimates, references).backward()
    assert references.grad is None
    assert estimates.grad is not None
    assert estimates.grad.abs().sum() > 0.0
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert encoder.graphs.count(True) == 1  # of the estimates
