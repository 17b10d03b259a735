"""The lines of the guide that put scores into other toolkits' tables, against evaluate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from separations import small_mapss
from waveforms import RATE, leaky, tones

from torch_mapss import Report, evaluate

PAGE = Path(__file__).parents[2] / "recipes" / "guide" / "adapters.md"
TRUTH = tones(2, 0.3)
MADE = leaky(TRUTH, 0.3)
SCORER = small_mapss()


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """What the code blocks of the page define."""
    namespace: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S):
        exec(block, namespace)
    return namespace


@pytest.fixture(scope="module")
def report() -> Report:
    return evaluate(estimates=MADE, references=TRUTH, mapss=SCORER)


def test_the_metric_for_versa_is_evaluate(guide, report):
    scores = guide["mapss_metric"](MADE.numpy(), TRUTH.numpy(), RATE, SCORER)
    expected = {f"mapss_{name}": value for name, value in report.means().items()}
    assert scores == pytest.approx(expected, nan_ok=True)
    assert {type(value) for value in scores.values()} == {float}
    with pytest.raises(ValueError, match=r"must have shape \(S, T\)"):
        guide["mapss_metric"](MADE.numpy().T, TRUTH.numpy().T, RATE, SCORER)


def test_rows_for_museval_have_the_columns_of_its_table(guide, report):
    gains = np.array([0.8, 1.2])  # two channels whose mean is the signal
    stereo = [waves.numpy()[..., None] * gains for waves in (TRUTH, MADE)]
    rows = guide["mapss_rows"]("song", ["vocals", "drums"], *stereo, RATE, SCORER)
    assert {*rows} == {"time", "target", "metric", "score", "track"}  # museval.EvalStore().df
    by_target = rows.set_index(["target", "metric"])["score"]
    for row, target in zip(report.rows, ("vocals", "drums"), strict=True):
        for name in ("clearance", "fidelity", "ps", "pm"):
            assert by_target[target, name] == pytest.approx(row[name], rel=1e-4)
    own_table = pandas.DataFrame(
        {"time": [0.5], "target": ["vocals"], "metric": ["SDR"], "score": [5.0]}
    )
    joined = pandas.concat([own_table.assign(track="song"), rows])
    assert not joined.isna().any(axis=None) or rows["score"].isna().any()
    assert {"SDR", "clearance"} <= {*joined["metric"]}


def test_the_functions_have_at_most_ten_lines():
    blocks = re.findall(r"^def .*?(?=^\S|\Z)", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 3
    assert all(len(block.strip().splitlines()) <= 10 for block in blocks)
