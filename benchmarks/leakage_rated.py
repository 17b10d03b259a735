"""PM with and without leakage members where listeners rated noise and distortion apart.

``leakage_family.py --rated`` puts what this finds beside its sweeps.
"""

from __future__ import annotations

from pathlib import Path

import torch
from bounds_data import Frames
from bounds_page import table
from match_scores import log_scores
from rated_match import (
    MEMBERS,
    SETS,
    Output,
    by_track,
    mean_over_tracks,
    outputs,
    with_ratings,
    without_leakage,
)
from torch import Tensor

TINY = 1e-3  # an item whose mean PM is below this is at 0 for anybody who reads it
CORRELATIONS = """Spearman correlations within a talker, averaged over talkers, with 95 % intervals
by drawing the talkers anew; a star where that of the change that the members make is off 0."""


def paper_alone(frames: Frames) -> dict[str, Tensor]:
    """log PM of the paper convention, without and with leakage members."""
    banks = {"no": without_leakage(frames), "yes": frames}
    return {
        bank: log_scores(*some[:3], reference=False, **some.options)["paper"]
        for bank, some in banks.items()
    }


def rows_of(given: list[Output], root: Path) -> list[list[str]]:
    """For either bank: mean PM, items at 0, correlations with what listeners rated, by track."""
    tracks, known, rows = by_track(given), SETS[root.name], []
    plain = with_ratings(root, known, tracks, "no")
    for key, count in (("no", 0), ("yes", MEMBERS)):
        means = torch.stack([output.log_pm[key].exp().mean() for output in given])
        cells = [str(count), f"{means.mean():.2f}", f"{(means < TINY).double().mean():.0%}"]
        found = with_ratings(root, known, tracks, key)
        pairs = zip(found, plain, strict=True)
        rows.append(cells + [mean_over_tracks(each, other) for (_, each), (_, other) in pairs])
    return rows


def of_talkers(root: Path, encoder: str, step: int) -> str:
    """What PM of a rated set is and follows, as a paragraph and a table."""
    known = SETS[root.name]
    given = list(outputs(root, known, encoder, step, scores=paper_alone))
    header = ["leakage members", "mean PM", f"items with mean PM < {TINY:g}"]
    for question in known.questions:
        header += [f"mean PM with {question}", f"mean log PM with {question}"]
    return f"""`{root.name}`, {len(given)} items, one frame in {step}.
{known.note}
{CORRELATIONS}

{table(header, rows_of(given, root))}"""
