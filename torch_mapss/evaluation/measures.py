"""The measures of a results folder: names, which of them it has, and what its reader must know.

``pm_rank``, the rank form of PM, is there in the conformal convention alone; tables, figures and
pages of other results have no place for it. A leaf: names and sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Measures that all results have, which are averaged, tested and drawn; higher is better in all.
MEASURES = ("ps", "pm", "log_pm", "foreign_distance", "log_foreign_distance")
#: The rank form of PM, which stands behind log PM where results have it.
RANK = "pm_rank"
#: How people write them.
LABELS = {
    "ps": "PS",
    "pm": "PM",
    "log_pm": "log PM",
    RANK: "PM rank",
    "foreign_distance": "B",
    "log_foreign_distance": "log B",
}


def has_rank(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether some row has the rank form of PM, be it undefined there (NaN)."""
    return any(row.get(RANK) is not None for row in rows)


def measures_of(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The measures that rows of a table have: :data:`MEASURES`, and PM's rank behind log PM.

    Example:
        >>> measures_of([{"ps": 0.9, "pm_rank": 0.3}])[2:4]
        ('log_pm', 'pm_rank')
    """
    if not has_rank(rows):
        return MEASURES
    place = MEASURES.index("log_pm") + 1
    return (*MEASURES[:place], RANK, *MEASURES[place:])


def columns_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """``columns`` of a table, without PM's rank where no row has it."""
    there = has_rank(rows)
    return tuple(column for column in columns if there or column != RANK)


def rank_floor(settings: Mapping[str, Any]) -> float:
    """What no rank is below: 1/(N_p + 1), N_p the members of PM's bank by a scorer's settings."""
    return 1.0 / (settings["match_bank"]["size"] + 1)


def rank_meaning(settings: Mapping[str, Any] | None = None) -> str:
    """What PM's rank is, how low it can be, and under which assumption it holds what it promises.

    Args:
        settings: of the scorer, for its number of distortions; the floor is a formula without.
    """
    floor = "1/(N_p + 1) with N_p distortions"
    if settings is not None:
        size = settings["match_bank"]["size"]
        floor = f"1/(N_p + 1), {rank_floor(settings):.2g} with up to {size} distortions"
    return (
        "PM rank: the share of the distortions, the output counted as one of them, that lie as far "
        f"from the reference as the output or farther; at least {floor}. Valid under "
        "exchangeability: if output and distortions are exchangeable, a frame's rank is at most u "
        "with probability at most u, and its mean 0.5 or more."
    )
