"""Adapters against evaluate, and the shapes that they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from separations import RATE, leaky, small_mapss, sources

from torch_mapss import Report, evaluate
from torch_mapss.evaluation.adapters import evaluate_museval, mapss_metric, mapss_setup
from torch_mapss.score_table import SCORES

TRUTH = sources(2, 0.3)
MADE = leaky(TRUTH, 0.3)
SCORER = small_mapss()


@pytest.fixture(scope="module")
def report() -> Report:
    return evaluate(estimates=MADE, references=TRUTH, mapss=SCORER)


def test_versa_metric_is_evaluate(report):
    for given in ((MADE.numpy(), TRUTH.numpy()), (MADE, TRUTH)):
        found = mapss_metric(*given, RATE, SCORER)
        assert len(found) == 3 * len(SCORES)
        for name in SCORES:
            expected = [report.means()[name], *(row[name] for row in report.rows)]
            made = [found[f"mapss_{name}{end}"] for end in ("", "_src1", "_src2")]
            assert made == pytest.approx(expected, nan_ok=True)
            assert type(found[f"mapss_{name}"]) is float
    turned = mapss_metric(MADE.flip(0), TRUTH, RATE, SCORER, permute=True)
    assert turned["mapss_ps"] == pytest.approx(found["mapss_ps"], rel=1e-6)
    assert "mapss_ps_src2" not in mapss_metric(MADE[:1], TRUTH, RATE, SCORER, attributed=(0,))
    slow = sources(2, 0.3, rate=8000)
    expected = evaluate(estimates=slow, references=slow, sample_rate=8000, mapss=SCORER).means()
    assert mapss_metric(slow, slow, 8000, SCORER)["mapss_pm"] == expected["pm"]
    with pytest.warns(UserWarning, match="no frame"):
        silent = mapss_metric(MADE, TRUTH * torch.tensor([[1], [0]]), RATE, SCORER)
    assert np.isnan(silent["mapss_ps"])
    assert mapss_setup("mel", convention="reference").describe()["convention"] == "reference"


@pytest.mark.parametrize("gains", [None, [1.0], [0.8, 1.2]])
def test_museval_arrays_are_evaluated(report, gains):
    def shaped(waves: torch.Tensor) -> np.ndarray:  # float64, (sources, samples, channels)
        return (waves if gains is None else waves.double()[..., None] * torch.tensor(gains)).numpy()

    given = {"references": shaped(TRUTH), "estimates": shaped(MADE)}
    found = evaluate_museval(**given, rate=RATE, mapss=SCORER)
    for one, other in zip(found.rows, report.rows, strict=True):
        for name in ("clearance", "fidelity", "ps", "pm", "log_pm"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)


SHAPES = (4800,), (2, 2, 4800), (4800, 2), (4800, 2, 2), (2,), (1, 2, 4800, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_that_are_refused(shape):
    for bad in (0, 1):
        given = [np.ones((2, 4800)), np.ones((2, 4800))]
        given[bad] = np.ones(shape)
        with pytest.raises(ValueError, match=rf"{('pred', 'gt')[bad]} must be \(S, T\)"):
            mapss_metric(*given, RATE, SCORER)
        arrays = dict(zip(("references", "estimates"), given))
        with pytest.raises(ValueError, match=f"{[*arrays][bad]} must be"):
            evaluate_museval(**arrays, rate=RATE, mapss=SCORER)
