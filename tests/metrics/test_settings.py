"""Settings of metrics, and torch's own defaults around a call."""

from __future__ import annotations

import functools
import importlib
import sys

import pytest
import torch
from metric_pairs import FUNCTIONS
from small_scorers import refuse_transformers
from stub_scorers import Stub, banks, leaking_pair, states_of, stub_scorer
from torch_settings import AROUND, defaults
from waveforms import noise

from torch_mapss import MAPSS, Clearance, PerceptualMatch, PerceptualSeparation, SourceScores

same = functools.partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)


def test_options_reach_the_mapss(monkeypatch):
    preds, target = leaking_pair(2)
    metric = PerceptualSeparation(encoder=Stub(), energy=0.8, trim=True, **banks())
    expected = stub_scorer(energy=0.8, trim=True)(preds[..., :-5], target).utterance().ps.mean()
    torch.testing.assert_close(metric(preds[..., :-5], target), expected)
    assert repr(metric) == "PerceptualSeparation(encoder='stub', reduction='mean')"
    shown = repr(PerceptualMatch(stub_scorer(), log=True, frames=5, seed=2))
    assert shown == (
        "PerceptualMatch(match_encoder='stub', reduction='mean', frames=5, seed=2, log=True)"
    )
    assert "measures=('match', 'si_sdr')" in repr(SourceScores(MAPSS("mel", measures="match")))
    refuse_transformers(monkeypatch)
    clearance = Clearance()  # loads no weights of the default encoder
    assert "encoder='mel'" in repr(clearance)
    assert float(clearance(noise(1, 2, 8000), noise(1, 2, 8000, seed=1))) < 1.0
    mapss = stub_scorer()
    for make, error, message in (
        (lambda: PerceptualSeparation(mapss, pit="loss"), ValueError, "pit"),
        (lambda: PerceptualSeparation(mapss, pit="si_sdr", attributed=(0,)), ValueError, "pit"),
        (lambda: PerceptualSeparation(mapss, encoder="mel", energy=0.8), ValueError, "energy"),
        (lambda: PerceptualSeparation(mapss, encoder="wav2vec2-large"), ValueError, "encoder"),
        (lambda: PerceptualSeparation("mel"), TypeError, "encoder='mel'"),
        (lambda: PerceptualMatch(mapss, reduction="pesq"), ValueError, "reduction"),
        (lambda: PerceptualMatch(mapss, frames=0), ValueError, "frames"),
        (lambda: PerceptualMatch(mapss, no_such_name=1), ValueError, "no_such_name"),
    ):
        with pytest.raises(error, match=message):
            make()


CALLS = {
    "update": lambda metric, batch: metric.update(*batch),
    "forward": lambda metric, batch: metric(*batch),
    "compute": lambda metric, batch: metric.compute(),
    "item_scores": lambda metric, batch: metric.item_scores(),
    "function": lambda metric, batch: FUNCTIONS[type(metric)](*batch, metric.mapss),
}


def current_defaults() -> tuple[torch.dtype, torch.device]:
    """As new tensors have them; ``torch.get_default_device`` of 2.6 fails where it was reset."""
    return torch.get_default_dtype(), torch.empty(0).device


@pytest.mark.parametrize("around", AROUND, ids=str)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("metric_class", [PerceptualSeparation, PerceptualMatch])
def test_defaults_of_torch_disturb_no_single_call(metric_class, call, around):
    """All else is done outside, so that no other call can make good what this one does wrong."""

    def called(**around):
        metric = metric_class(stub_scorer(), reduction="none")
        metric.update(*leaking_pair(2))
        batch = [x[..., :4000] for x in leaking_pair(1, seed=1)]
        outside = current_defaults()
        with defaults(**around):
            inside = current_defaults()
            value = CALLS[call](metric, batch)
            assert current_defaults() == inside
        assert current_defaults() == outside
        return [value, *states_of(metric)[1:], metric.compute()]  # without the fingerprint

    for value, expected in zip(called(**around), called(), strict=True):
        same(value, expected)


def test_a_broken_package_is_explained(monkeypatch):
    """torchmetrics fails to load where transformers is installed and broken."""
    for name in [name for name in sys.modules if name.startswith("torch_mapss.metrics")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r"torch_mapss\.metrics needs torchmetrics.*transformers"):
        importlib.import_module("torch_mapss.metrics")
