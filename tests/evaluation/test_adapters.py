"""Adapters against evaluate, and the shapes that they refuse."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from separations import leaky, small_mapss, sources

from torch_mapss import MAPSS, evaluate
from torch_mapss.evaluation.adapters import evaluate_museval, mapss_metric, mapss_setup
from torch_mapss.evaluation.measures import COLUMNS

RATE = 16_000


@pytest.fixture(scope="module")
def mapss() -> MAPSS:
    return small_mapss()


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    return sources(2, 0.3)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_versa_metric_is_evaluate(mapss: MAPSS, truth: torch.Tensor, kind: str) -> None:
    made = leaky(truth, 0.3)
    given = (made.numpy(), truth.numpy()) if kind == "numpy" else (made, truth)
    found = mapss_metric(*given, RATE, mapss)
    report = evaluate(estimates=made, references=truth, mapss=mapss)
    assert len(found) == 3 * len(COLUMNS)
    for name in COLUMNS:
        expected = [report.means()[name], *(row[name] for row in report.rows)]
        made = [found[f"mapss_{name}{end}"] for end in ("", "_src1", "_src2")]
        assert made == pytest.approx(expected, nan_ok=True)
        assert type(found[f"mapss_{name}"]) is float


def test_versa_options_and_rates(mapss: MAPSS, truth: torch.Tensor) -> None:
    made = leaky(truth, 0.3)
    plain = mapss_metric(made, truth, RATE, mapss)
    assert mapss_metric(made.flip(0), truth, RATE, mapss, permute=True)[
        "mapss_ps"
    ] == pytest.approx(plain["mapss_ps"], rel=1e-6)
    alone = mapss_metric(made[:1], truth, RATE, mapss, attributed=(0,))
    assert "mapss_ps_src2" not in alone
    slow = sources(2, 0.3, rate=8000)
    report = evaluate(estimates=slow, references=slow, sample_rate=8000, mapss=mapss)
    assert mapss_metric(slow, slow, 8000, mapss)["mapss_pm"] == report.means()["pm"]
    with pytest.warns(UserWarning, match="no frame"):
        silent = mapss_metric(made, torch.stack([truth[0], 0 * truth[1]]), RATE, mapss)
    assert np.isnan(silent["mapss_ps"])


def test_setup_makes_what_it_is_told(truth: torch.Tensor) -> None:
    model = mapss_setup("mel", convention="reference")
    assert model.describe()["convention"] == "reference"


@pytest.mark.parametrize("channels", [None, 1, 2])
def test_museval_arrays_are_evaluated(
    mapss: MAPSS, truth: torch.Tensor, channels: int | None
) -> None:
    made = leaky(truth, 0.3)

    def shaped(waves: torch.Tensor) -> np.ndarray:
        if channels is None:
            return waves.numpy()
        gains = torch.tensor([0.8, 1.2])[:channels] if channels == 2 else torch.ones(1)
        return (waves.unsqueeze(-1) * gains).double().numpy()

    found = evaluate_museval(
        references=shaped(truth), estimates=shaped(made), rate=RATE, mapss=mapss
    )
    expected = evaluate(estimates=made, references=truth, mapss=mapss)
    for one, other in zip(found.rows, expected.rows):
        for name in ("clearance", "fidelity", "ps", "pm", "log_pm"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)


def test_museval_itself_takes_the_same_arrays(
    mapss: MAPSS, truth: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its import looks for the programs of ffmpeg, which reading stems needs and scoring does not.
    monkeypatch.setitem(sys.modules, "stempeg", types.ModuleType("stempeg"))
    museval = pytest.importorskip("museval")
    arrays = [waves.unsqueeze(-1).double().numpy() for waves in (truth, leaky(truth, 0.3))]
    sdr, *_ = museval.evaluate(*arrays, win=RATE // 8, hop=RATE // 8)
    report = evaluate_museval(references=arrays[0], estimates=arrays[1], rate=RATE, mapss=mapss)
    assert len(sdr) == len(report.rows) == 2


@pytest.mark.parametrize(
    "shape",
    [(4800,), (2, 2, 4800), (4800, 2), (4800, 2, 2), (2,), (1, 2, 4800, 1)],
)
def test_shapes_that_are_refused(mapss: MAPSS, shape: tuple[int, ...]) -> None:
    for bad in (0, 1):
        given: list[Any] = [np.ones((2, 4800)), np.ones((2, 4800))]
        given[bad] = np.ones(shape)
        with pytest.raises(ValueError, match=rf"{('pred', 'gt')[bad]} must be \(S, T\)"):
            mapss_metric(*given, RATE, mapss)
        arrays = dict(zip(("references", "estimates"), given))
        with pytest.raises(ValueError, match=f"{[*arrays][bad]} must be"):
            evaluate_museval(**arrays, rate=RATE, mapss=mapss)
