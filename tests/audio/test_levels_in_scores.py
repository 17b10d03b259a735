"""Silence, levels and sample formats, from waveforms to scores and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_scorers import scores_of, small
from torch import Tensor
from waveforms import RATE, impaired, voices

from torch_mapss import MAPSS, DistortionBank, MAPSSLoss

near = torch.testing.assert_close
pytestmark = pytest.mark.filterwarnings("ignore:mixtures")


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    return small(size=6)


def gradient(mapss: MAPSS, estimates: Tensor, references: Any) -> tuple[Tensor, Tensor]:
    leaf = estimates.detach().clone().requires_grad_()
    value = MAPSSLoss(mapss)(leaf, references)
    (slope,) = torch.autograd.grad(value, leaf)
    assert bool(value.isfinite())
    assert bool(slope.isfinite().all())
    return value.detach(), slope


@pytest.mark.parametrize("silent", [0, 2])
def test_a_silent_source_of_three_leaves_two(silent):
    # Noise depends on the index of a source, which changes when one before it is left out.
    ps, pm = (DistortionBank(k, without=("noise",), size=6) for k in ("separation", "match"))
    mapss = small(separation_bank=ps, match_bank=pm)
    audible = [source for source in range(3) if source != silent]
    references, estimates = voices(1, 3), impaired(voices(1, 3))
    references[:, silent] = estimates[:, silent] = 0.0
    three = scores_of(mapss, estimates, references)
    assert three[..., silent].isnan().all()
    two = scores_of(mapss, estimates[:, audible], references[:, audible])
    near(three[..., audible], two, rtol=0, atol=1e-3)


def test_a_silent_estimate_scores_low_with_finite_gradients(mapss):
    references, estimates = voices(2), impaired(voices(2), 0.05)
    clean = scores_of(mapss, estimates, references)
    estimates[0, 1] = 0.0
    scores = scores_of(mapss, estimates, references)
    ps, pm = scores[:, 0, 1]
    assert 0 <= ps < min(0.6, clean[0, 0, 1])  # as far from its own source as from the other
    assert 0 <= pm < 0.01
    near(scores[:, 1], clean[:, 1])
    assert gradient(mapss, estimates, references)[1][1].abs().sum() > 0.0


@pytest.mark.parametrize("seconds", [0.2, 0.025])
def test_clips_shorter_than_a_loudness_block(mapss, seconds):
    references = voices(samples=round(seconds * RATE))
    estimates = impaired(references)
    scores = scores_of(mapss, estimates, references)
    gradient(mapss, estimates, references)
    for gain in (1e-2, 30.0):
        near(scores_of(mapss, gain * estimates, references), scores, rtol=0, atol=1e-3)
        near(scores_of(mapss, estimates, gain * references), scores, rtol=0, atol=1e-3)


@pytest.mark.parametrize("quiet_input", ["estimates", "references", "one"])
def test_very_quiet_sources_score_as_at_normal_level(mapss, quiet_input):
    references = voices()
    estimates = impaired(references)
    normal = scores_of(mapss, estimates, references)
    quiet, true = estimates.clone(), references.clone()
    {"estimates": quiet, "references": true, "one": true[:, 0]}[quiet_input].mul_(1e-5)
    near(scores_of(mapss, quiet, true), normal, rtol=0, atol=2e-2)
    gradient(mapss, quiet, true)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_quietest_and_the_loudest_numbers_of_a_type(mapss, dtype):
    references = voices()
    unit = impaired(references).double()
    unit = unit / unit.abs().max()
    for peak in (torch.finfo(dtype).max / 2, torch.finfo(dtype).tiny * 1e3):
        scores = mapss((unit * peak).to(dtype), references)
        assert (scores.ps.isfinite() & scores.pm.isfinite()).all()


def test_a_loud_estimate_is_not_clipped(mapss):
    references = voices()
    unit = impaired(references) / impaired(references).abs().max()
    loud, normal = (scores_of(mapss, gain * unit, references) for gain in (25, 1))
    near(loud, normal, rtol=0, atol=1e-3)
    slope, quiet = (gradient(mapss, gain * unit, references)[1] for gain in (25, 1))
    near(25 * slope, quiet, rtol=1e-2, atol=1e-3 * float(quiet.abs().max()))


def test_scores_of_any_estimate_stay_in_the_unit_interval(mapss):
    references = voices()
    made = {
        "perfect": references,
        "leaky": impaired(references),
        "noise": torch.randn(references.shape, generator=torch.Generator().manual_seed(3)),
        "inverted": -references,
        "swapped": references.flip(1),
        "clipped": references.clamp(-0.01, 0.01),
        "mixture": references.sum(1, keepdim=True).expand_as(references),
        "constant": torch.full_like(references, 0.3),
        "click": torch.zeros_like(references).index_fill_(-1, torch.tensor([4000]), 1.0),
    }
    score_by_gain, bank = {}, mapss.prepare(references)
    for name, estimates in made.items():
        scores = mapss(estimates, bank)
        for value in (scores.ps, scores.pm):
            assert 0.0 <= float(value.min()) <= float(value.max()) <= 1.0, name
        assert (scores.log_pm <= 0.0).all(), name
        utterance = scores.utterance()
        score_by_gain[name] = torch.stack([utterance.ps, utterance.pm])
        gradient(mapss, estimates, bank)
    for name in ("leaky", "noise", "swapped", "clipped", "mixture"):
        assert (score_by_gain[name] < score_by_gain["perfect"]).all(), name
    assert (score_by_gain["swapped"] < 0.1).all()
