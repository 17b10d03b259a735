"""Metrics of the conformal convention, and the settings of their half-widths."""

from __future__ import annotations

import pytest
import torch

from torch_mapss import MAPSS, DistortionBank, PerceptualMatch, PerceptualSeparation
from torch_mapss.metrics import perceptual_match


def scorer(convention: str = "conformal") -> MAPSS:
    banks = DistortionBank("separation", size=6), DistortionBank("match", size=6)
    return MAPSS("mel", separation_bank=banks[0], match_bank=banks[1], convention=convention)


def signals() -> tuple[torch.Tensor, torch.Tensor]:
    references = torch.randn(2, 2, 2000, generator=torch.Generator().manual_seed(0))
    return references + 0.2 * references.flip(1), references


def test_ranks_and_the_smooth_form_are_the_means_of_the_scores():
    mapss = scorer()
    estimates, references = signals()
    pooled = mapss(estimates, references).utterance()
    for options, expected in (
        ({}, pooled.pm),
        ({"log": True}, pooled.log_pm),
        ({"rank": True}, pooled.pm_rank),
    ):
        metric = PerceptualMatch(mapss, **options)
        metric.update(estimates, references)
        torch.testing.assert_close(metric.compute(), expected.mean())
    torch.testing.assert_close(
        perceptual_match(estimates, references, mapss, reduction="source"), pooled.pm
    )


def test_what_the_convention_has_not_is_refused():
    with pytest.raises(ValueError, match="needs the conformal convention"):
        PerceptualMatch(scorer("paper"), rank=True)
    with pytest.raises(ValueError, match="states no half-width"):
        PerceptualMatch(scorer(), half_width=0.95)
    with pytest.raises(ValueError, match="exclude each other"):
        PerceptualMatch(scorer(), rank=True, log=True)
    with pytest.raises(ValueError, match="plain mean"):
        PerceptualMatch(scorer(), rank=True, half_width=0.95)
    with pytest.raises(ValueError, match="tail must be one of"):
        PerceptualSeparation(scorer(), tail="none")


def test_half_widths_by_bootstrap_and_by_another_convention():
    mapss = scorer()
    estimates, references = signals()
    metrics = {
        name: PerceptualSeparation(mapss, half_width=0.95, frames=4, **options)
        for name, options in {
            "plain": {},
            "drawn": {"tail": "bootstrap"},
            "derived": {"bounds_convention": "derived"},
        }.items()
    }
    found = {}
    for name, metric in metrics.items():
        metric.update(estimates, references)
        found[name] = metric.compute()
    assert len({float(value["ps"]) for value in found.values()}) == 1
    assert len({float(value["ps_half_width"]) for value in found.values()}) == 3
    expected = mapss.bounds(estimates, references, 0.95, frames=4, tail="bootstrap")
    assert float(found["drawn"]["ps_half_width"]) > float(expected.ps.radius[expected.active].min())
