"""The scores in the columns of tables: name, label, unit, which way is better, what they mean.

Column order everywhere (tables, plots, pages) is that of :data:`COLUMNS`. A table has the columns
of what was computed. A leaf: names and sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple


class Column(NamedTuple):
    """One score."""

    name: str  # in files and in Python
    label: str  # for people
    meaning: str  # a sentence, with its range
    #: Systems are ranked by it. The others are other poolings of one that is, or diagnostics.
    ranked: bool = False
    limits: tuple[float | None, float | None] = (None, None)  # lowest and highest value
    digits: int = 3  # after the point, for people
    frames: bool = True  # has a value per frame of the same name
    diagnostic: bool = False  # says nothing of which system is better
    higher_is_better: bool = True
    unit: str = ""  # "dB" or none


_SHARE, _LOG = (0.0, 1.0), (None, 0.0)
_FAR = "silence and muffled outputs lie farther away than the reference does"
_MEANINGS = {
    "clearance": "clearance, 0 to 1: 1 = as far from the other sources as the true source is (no "
    "leakage)",
    "fidelity": "fidelity, 0 to 1: 1 = undistorted; undefined where the output is another source",
    "PS": "PS, Perceptual Separation, 0 to 1: 1 = no leakage from the other sources",
    "PM": "PM, Perceptual Match, 0 to 1: 1 = undistorted",
    "log PM": "log PM, at most 0: still ranks outputs where PM is 0",
    "bleed": "bleed, dB: level of the output where its own source is silent and another one plays, "
    "relative to its source; lower is better",
    "log PM compressed": "log PM compressed, at most 0: mean of -log(1 - log PM), which single "
    "frames move little",
    "PS pooled": "PS pooled: the paper's PESQ-like pooling of PS over time, 1.085 to 1.315",
    "A": "A: distance to the source's own cluster in PS = B/(A + B)",
    "B": f"B: distance to the closest other cluster in PS = B/(A + B); {_FAR}, so it ranks nothing",
    "log B": f"log B: mean logarithm of B, which ranks nothing ({_FAR})",
}


def _column(name: str, label: str, *properties: Any, **others: Any) -> Column:
    return Column(name, label, _MEANINGS[label], *properties, **others)


_ALL = (
    _column("clearance", "clearance", True, _SHARE),
    _column("fidelity", "fidelity", True, _SHARE),
    _column("ps", "PS", True, _SHARE),
    _column("pm", "PM", True, _SHARE),
    _column("log_pm", "log PM", True, _LOG, 2),
    _column("bleed_db", "bleed", True, digits=1, higher_is_better=False, unit="dB"),
    _column("log_pm_compressed", "log PM compressed", False, _LOG, 2, frames=False),
    _column("ps_pesq", "PS pooled", frames=False),
    _column("attributed_distance", "A", diagnostic=True, higher_is_better=False),
    _column("foreign_distance", "B", diagnostic=True),
    _column("log_foreign_distance", "log B", digits=2, frames=False, diagnostic=True),
)
COLUMNS = {column.name: column for column in _ALL}
#: Systems are ranked by these.
RANKED = tuple(name for name, column in COLUMNS.items() if column.ranked)
#: Scores that every frame has, where they were computed.
FRAME_SCORES = tuple(name for name, column in COLUMNS.items() if column.frames)


def present(columns: Iterable[Any], ranked: bool | None = None) -> tuple[str, ...]:
    """The scores among the columns of a table, in order.

    Args:
        columns: names, e.g. ``results.items.columns``.
        ranked: those alone by which systems are ranked (True), or the others (False).

    Example:
        >>> present(["system", "log_pm", "ps", "foreign_distance"], ranked=True)
        ('ps', 'log_pm')
    """
    there = set(columns)
    wanted = {name for name in there & {*COLUMNS} if ranked in (None, COLUMNS[name].ranked)}
    return tuple(name for name in COLUMNS if name in wanted)


def text(name: str, value: Any) -> str:
    """A score for people: "-" where it is undefined.

    Example:
        >>> text("ps", 0.98765), text("log_pm", -12.3456), text("ps", float("nan"))
        ('0.988', '-12.35', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{COLUMNS[name].digits}f}"


def label(name: str, unit: bool = True) -> str:
    """The name of a score for people, with its unit.

    Example:
        >>> label("log_pm"), label("bleed_db")
        ('log PM', 'bleed (dB)')
    """
    column = COLUMNS[name]
    return f"{column.label} ({column.unit})" if column.unit and unit else column.label
