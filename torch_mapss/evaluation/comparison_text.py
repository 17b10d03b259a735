"""A comparison in words: the answer in one sentence, tables for people, what they cannot say."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from torch_mapss.evaluation import io, significance
from torch_mapss.evaluation.comparison_rows import APPROXIMATE, TOO_SMALL, Tables, family_of
from torch_mapss.evaluation.measures import COLUMNS, label, text

# More names of sources are names of files rather than of instruments, and fill no table.
_MOST_SOURCES = 8
# Up to so many systems every pair is printed, else those with the best one.
_FEW_SYSTEMS = 3
_MOST_FAILURES = 5
Table = tuple[list[str], list[list[str]]]  # header, cells; the first two columns are words


def answer(found: Tables) -> str:
    """Which system is best on what, in how many mixtures, and whether that is significant."""
    ranking = found.ranking[found.ranking["n"] > 0]
    systems = found.scores.systems
    if ranking.empty:
        return "No mixture has a score: scores.csv says why, in `status` and `reason`."
    if len(systems) < 2:
        return f"{systems[0]} is the only system: its means follow, and there is no ranking."
    best = ranking.groupby("measure", sort=False)["system"].first()
    said = "; ".join(
        f"{system} is best on {_ahead(found, system, list(own.index))}"
        for system, own in best.groupby(best, sort=False)
    )
    return f"{said}; {_certainty(found, list(best.index))}."


def _ahead(found: Tables, system: str, measures: Sequence[str]) -> str:
    """The measures, with the number of mixtures in which the system is ahead of all others."""
    counts = [_count(found, system, measure) for measure in measures]
    names = [COLUMNS[measure].label for measure in measures]
    if len({*counts}) == 1:
        return f"{_and(names)} in {counts[0]} mixtures"
    counts[0] = f"in {counts[0]} mixtures"
    return _and([f"{name} ({count})" for name, count in zip(names, counts)])


def _count(found: Tables, system: str, measure: str) -> str:
    """In how many of its mixtures a system is better than every other one."""
    better = 1.0 if COLUMNS[measure].higher_is_better else -1.0
    values, place = better * found.scores.values[measure], found.scores.systems.index(system)
    scored = np.isfinite(values[:, place])
    others = np.nan_to_num(np.delete(values, place, axis=1)[scored], nan=-1e300).max(1)
    own = values[scored, place]
    lead = significance.merge_ties(own - others, float(np.abs(own).max(initial=0.0)))
    return f"{int((lead > 0.0).sum())} of {len(own)}"


def _certainty(found: Tables, measures: Sequence[str]) -> str:
    """Whether the best systems differ significantly from all others, or could at all."""
    level = f"at level {found.alpha:g}"
    proven = []
    for measure in measures:
        groups = found.ranking[(found.ranking["measure"] == measure) & (found.ranking["n"] > 0)]
        first, *rest = groups["group"]
        if rest and not {*first} & {*"".join(rest)}:
            proven.append(COLUMNS[measure].label)
    if proven:
        alone = "" if len(proven) == len(measures) else f" on {_and(proven)} alone"
        return f"significantly better than every other system {level}{alone}"
    count, family = max(
        family_of(own.to_dict("records"), found.alpha) for _, own in found.pairs.groupby("measure")
    )
    least = significance.least_holm_p(count, family)
    if least <= found.alpha:
        return f"on none is it significantly better than every other system {level}"
    needed = significance.least_mixtures(family, found.alpha)
    return (
        f"{count} mixture{'' if count == 1 else 's'} cannot prove it: the smallest attainable p is "
        f"{least:.2g}; {needed} are needed"
    )


def summary(found: Tables, shown: Sequence[str]) -> str:
    """Answer, tables and notes of some measures, for a terminal."""
    parts = [*textwrap.wrap(answer(found), 100), ""]
    for columns, cells in _tables(found, shown):
        parts += [io.text_table(columns, cells, left=2), ""]
    return "\n".join(
        [*parts, *(line for note in notes(found, shown) for line in textwrap.wrap(note, 100))]
    )


def html(found: Tables, shown: Sequence[str]) -> str:
    """The same for a notebook."""
    from pandas import DataFrame

    tables = [
        DataFrame(cells, columns=names).to_html(index=False)
        for names, cells in _tables(found, shown)
    ]
    told = [f"<p>{escape(note)}</p>" for note in notes(found, shown)]
    return "".join([f"<p><b>{escape(answer(found))}</b></p>", *tables, *told])


def _tables(found: Tables, shown: Sequence[str]) -> list[Table]:
    """Ranking, pairs and sources; those that have no row are left out."""
    percent = f"{100 * found.confidence:g} % interval"
    ranking = [
        [label(row["measure"]), row["system"], str(row["n"])]
        + [text(row["measure"], row["mean"]), _interval(row), row["group"]]
        for row in _records(found.ranking, shown)
    ]
    best = found.ranking.groupby("measure")["system"].first()
    few = len(found.scores.systems) <= _FEW_SYSTEMS
    pairs = [
        [label(row["measure"]), f"{row['system_a']} - {row['system_b']}", str(row["n"])]
        + [text(row["measure"], row["difference"]), _interval(row)]
        + [f"{row['wins']}/{row['ties']}/{row['losses']}", f"{row['p_holm']:.2g}"]
        for row in _records(found.pairs[found.pairs["p_holm"].notna()], shown)
        if few or best[row["measure"]] in (row["system_a"], row["system_b"])
    ]
    means = {(r.measure, r.source, r.system): r.mean for r in found.sources.itertuples()}
    names = list(found.sources["source"].unique())
    sources = [
        [source, system, *(text(m, means.get((m, source, system))) for m in shown)]
        for source in (names if len(names) <= _MOST_SOURCES else ())
        for system in found.scores.systems
    ]
    columns = ["measure", "pair", "n", "difference", percent, "wins/ties/losses", "p (Holm)"]
    tables = [
        (["measure", "system", "n", "mean", percent, "group"], ranking),
        (columns, pairs),
        (["source", "system", *map(label, shown)], sources),
    ]
    return [table for table in tables if table[1]]


def notes(found: Tables, shown: Sequence[str]) -> list[str]:
    """What a reader of the tables must know, sentence by sentence."""
    rows = _records(found.ranking, shown)
    lower = [COLUMNS[measure].label for measure in shown if not COLUMNS[measure].higher_is_better]
    sentences = {
        "n: mixtures. Intervals: BCa bootstrap over mixtures. Systems sharing a letter do not "
        f"differ significantly (Wilcoxon signed rank, Holm, level {found.alpha:g}).": True,
        f"Lower is better in {_and(lower)}.": bool(lower),
        f"Intervals over fewer than {significance.FEW} mixtures are too narrow.": any(
            APPROXIMATE in row["note"] for row in rows
        ),
        "Means are over each system's own mixtures, tests over those that both have.": len(
            {row["n"] for row in rows}
        )
        > 1,
        "Pairs: those with the best system; comparison.csv has all.": len(found.scores.systems)
        > _FEW_SYSTEMS,
        "Means of single sources: sources.csv.": found.sources["source"].nunique() > _MOST_SOURCES,
        f"Mixtures are weighted by {found.weight} in means and intervals, not in tests.": (
            found.weight != "equal"
        ),
    }
    told = [sentence for sentence, holds in sentences.items() if holds]
    for row in rows:
        own = [n for n in row["note"].split("; ") if n and n not in (APPROXIMATE, TOO_SMALL)]
        where = f"{COLUMNS[row['measure']].label} of {row['system']}"
        told += [f"{where}: {note}." for note in own if not note.startswith("failed: ")]
    failures = [
        f"Failed: mixture {mixture!r}, system {system!r}: {reason}"
        for (system, mixture), reason in found.scores.failures.items()
    ]
    more = len(failures) - _MOST_FAILURES
    told += failures[:_MOST_FAILURES]
    return [*told, f"Failed: {more} more pairs of mixture and system."] if more > 0 else told


def _records(table: Any, shown: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table[table["measure"].isin(shown)].to_dict("records")
    return found


def _and(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _interval(row: Any) -> str:
    if not np.isfinite(row["low"]):
        return "-"
    return f"[{text(row['measure'], row['low'])}, {text(row['measure'], row['high'])}]"
