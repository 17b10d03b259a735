"""What may decide a comparison besides sound: lags, ceilings, runs under way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from made_up_results import compared, item_rows, made_up_results

from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.records import SystemFrames
from torch_mapss.evaluation.results import Results
from torch_mapss.evaluation.results_folder import MixtureFrames

COUNT = 8
SCORES = {"A": [0.90 + 0.01 * k for k in range(COUNT)], "B": [0.7 + 0.01 * k for k in range(COUNT)]}


def estimate_rows(lags_by_system: Mapping[str, float], **columns: float) -> list[dict[str, Any]]:
    """A row of ``scores.csv`` for every mixture and system."""
    return [
        {"mixture_id": f"m{mixture}", "system": system, "source": "a", "source_index": 0}
        | {"ps": SCORES[system][mixture], "lag_ms": lag, **columns}
        for system, lag in lags_by_system.items()
        for mixture in range(COUNT)
    ]


def test_systems_with_different_lags_are_reported():
    comparison = compared(SCORES, estimate_rows({"A": 0.0, "B": 10.0}))
    assert "significantly better" in comparison.answer()
    assert comparison.answer().endswith("not equally aligned with their references, see --align.")
    told = " ".join(comparison.summary().split())
    assert "(A 0.0 ms; B 10.0 ms late)" in told
    assert 'score again with --align (align="shift")' in told


@pytest.mark.parametrize(
    "rows",
    [
        estimate_rows({"A": 0.0, "B": 1.5}),  # too little to matter
        estimate_rows({"A": -10.0, "B": -10.5}),  # alike
        estimate_rows({"A": 0.0, "B": 10.0})[: COUNT + 3] + estimate_rows({"B": 0.0})[3:],  # a few
        [row | {"shift_ms": row["lag_ms"]} for row in estimate_rows({"A": 0.0, "B": 10.0})],
        estimate_rows({"A": 0.0}),
    ],
)
def test_equal_removed_and_single_lags_are_not_reported(rows):
    assert compared(SCORES, rows).unlike_lags == ""


def at_ceiling(shares_by_system: Mapping[str, float]) -> Results:
    """Results whose frames have a clearance of 1 in a share of each system."""

    class WithFrames(Results):
        def frames(self, mixture_id: str) -> MixtureFrames:
            if mixture_id == "m1":
                raise ValueError("damaged")
            systems = {}
            for name, share in shares_by_system.items():
                clearance = np.full((1, 100), 0.8, dtype=np.float32)
                clearance[0, : round(100 * share)] = 1.0
                clearance[0, -10:] = np.nan  # not scored
                active = np.ones((1, 100), dtype=bool)
                systems[name] = SystemFrames(active, np.array([0]), {"clearance": clearance})
            return MixtureFrames(np.arange(100.0), systems)

    made_up = made_up_results(item_rows(SCORES, ["clearance", "fidelity"]))
    entries = {f"m{k}": {"systems": {"A": [], "B": []}, "references": []} for k in range(COUNT)}
    content = {**vars(made_up), "mixtures": tuple(entries), "entries": entries}
    return WithFrames(**content)


def test_clearance_at_its_ceiling_is_marked_and_a_better_score_named():
    comparison = compare(at_ceiling({"A": 0.72, "B": 0.3}))
    notes = comparison.ranking.set_index(["measure", "system"])["note"]
    assert "80 % of frames at the ceiling" in notes["clearance", "A"]  # 72 of 90 scored frames
    assert "ceiling" not in notes["clearance", "B"]
    assert "ceiling" not in notes["fidelity", "A"]
    summary = " ".join(comparison.summary().split())
    assert "0.935 †" in summary
    assert "More than half of the frames have a clearance of 1, its ceiling (A 80 %)" in summary
    assert "clearance does not tell such systems apart" in summary
    assert "SIR (--measures decomposition bleed bss) and fidelity tell them apart" in summary
    clear = compare(at_ceiling({"A": 0.4, "B": 0.3}))
    assert "†" not in clear.summary()


def test_a_run_under_way_says_how_far_it_is():
    complete = at_ceiling({"A": 0.1, "B": 0.1})
    assert "not complete" not in compare(complete).summary()
    partial = dataclasses.replace(complete, items=complete.items.head(5))
    assert "of 16 outputs (one system, one mixture) 5 are scored so far" in " ".join(
        compare(partial).summary().split()
    )


def test_estimates_without_a_lag_hide_no_lag_of_others():
    """A failed pair has no lag, and as many rows as the mixture has sources."""
    rows = estimate_rows({"A": 0.0, "B": 10.0})
    rows[0]["lag_ms"] = None
    rows += [row | {"source": "b", "source_index": 1} for row in rows]
    assert "(A 0.0 ms; B 10.0 ms late)" in " ".join(compared(SCORES, rows).summary().split())
