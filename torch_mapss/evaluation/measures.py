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
    unit: str = ""  # "dB" or none
    higher_is_better: bool = True
    #: Systems are ranked by it. The others are other poolings of one that is, or diagnostics.
    ranked: bool = False
    diagnostic: bool = False  # says nothing of which system is better
    digits: int = 3  # after the point, for people
    frames: bool = True  # has a value per frame of the same name
    limits: tuple[float | None, float | None] = (None, None)  # lowest and highest value


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column(
            "clearance",
            "clearance",
            "clearance, 0 to 1: 1 = as far from the other sources as the true source is (no "
            "leakage)",
            ranked=True,
            limits=(0.0, 1.0),
        ),
        Column(
            "fidelity",
            "fidelity",
            "fidelity, 0 to 1: 1 = undistorted; undefined where the output is another source",
            ranked=True,
            limits=(0.0, 1.0),
        ),
        Column(
            "ps",
            "PS",
            "PS, Perceptual Separation, 0 to 1: 1 = no leakage from the other sources",
            ranked=True,
            limits=(0.0, 1.0),
        ),
        Column(
            "pm",
            "PM",
            "PM, Perceptual Match, 0 to 1: 1 = undistorted",
            ranked=True,
            limits=(0.0, 1.0),
        ),
        Column(
            "log_pm",
            "log PM",
            "log PM, at most 0: still ranks outputs where PM is 0",
            ranked=True,
            digits=2,
            limits=(None, 0.0),
        ),
        Column(
            "bleed_db",
            "bleed",
            "bleed, dB: level of the output where its own source is silent and another one plays, "
            "relative to its source; lower is better",
            unit="dB",
            higher_is_better=False,
            ranked=True,
            digits=1,
        ),
        Column(
            "log_pm_compressed",
            "log PM compressed",
            "log PM compressed, at most 0: mean of -log(1 - log PM), which single frames move "
            "little",
            digits=2,
            frames=False,
            limits=(None, 0.0),
        ),
        Column(
            "ps_pesq",
            "PS pooled",
            "PS pooled: the paper's PESQ-like pooling of PS over time, 1.085 to 1.315",
            frames=False,
        ),
        Column(
            "attributed_distance",
            "A",
            "A: distance to the source's own cluster in PS = B/(A + B)",
            higher_is_better=False,
            diagnostic=True,
        ),
        Column(
            "foreign_distance",
            "B",
            "B: distance to the closest other cluster in PS = B/(A + B); silence and muffled "
            "outputs lie farther away than the reference does, so it ranks nothing",
            diagnostic=True,
        ),
        Column(
            "log_foreign_distance",
            "log B",
            "log B: mean logarithm of B, which ranks nothing (silence and muffled outputs lie "
            "farther away than the reference does)",
            diagnostic=True,
            digits=2,
            frames=False,
        ),
    )
}
#: Systems are ranked by these.
RANKED = tuple(name for name, column in COLUMNS.items() if column.ranked)
#: Scores that every frame has, where they were computed.
FRAME_SCORES = tuple(name for name, column in COLUMNS.items() if column.frames)


def present(columns: Iterable[str], ranked: bool | None = None) -> tuple[str, ...]:
    """The scores among the columns of a table, in order.

    Args:
        columns: names, e.g. ``results.items.columns``.
        ranked: those alone by which systems are ranked (True), or the others (False).

    Example:
        >>> present(["system", "log_pm", "ps", "foreign_distance"], ranked=True)
        ('ps', 'log_pm')
    """
    there = set(columns)
    return tuple(
        name
        for name, column in COLUMNS.items()
        if name in there and (ranked is None or column.ranked is ranked)
    )


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
