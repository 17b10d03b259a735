"""Records of a run -> its tables: estimates, channels, items (mixture and system), systems."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import io
from torch_mapss.evaluation.manifest import CONTROL, Mixture
from torch_mapss.evaluation.records import Record, has_failed
from torch_mapss.score_table import RANKED, scores_in

if TYPE_CHECKING:
    from pandas import DataFrame

_LEADING = ("mixture_id", "system", "source", "source_index", "estimate", "reference")
_TRAILING = ("status", "reason", "notes", "warnings")
# Columns of words, and those of whole numbers; all others are floats.
_WORDS = (*("mixture_id", "system", "source", "estimate", "reference"), *_TRAILING, "rates")
_COUNTS = (
    *("source_index", "frames", "total_frames", "estimate_rate", "reference_rate"),
    *("estimates", "references", "scored", "undefined", "failed", "silent", "muted_frames"),
    "channel",
)


def _rounded(table: DataFrame) -> DataFrame:
    """Round numbers as in the files, so that the next mean can be reproduced from them exactly."""
    numbers = table.select_dtypes("float").apply(lambda x: x.map("{:.9g}".format).astype(float))
    return table.assign(**{str(name): numbers[name] for name in numbers})


def all_tables(pairs: Sequence[Record], rate: float) -> tuple[DataFrame, DataFrame, DataFrame]:
    """The tables of estimates, of items and of systems; ``rate`` is the encoder's, in Hz.

    Without a pair they have no row, and no column of a score.
    """
    import pandas

    if not pairs:
        columns = (*_LEADING, *_TRAILING), ("mixture_id", "system"), ("system", "rates")
        scores, items, summary = (pandas.DataFrame(columns=names) for names in columns)
        return scores, items, summary
    scores = scores_table(pairs)
    items = items_table(scores, pairs)
    return scores, items, summary_table(items, scores, rate)


def scores_table(pairs: Sequence[Record]) -> DataFrame:
    """One row per estimate."""
    import pandas

    rows = [row for record in pairs for row in record["rows"]]
    table = _rounded(_typed(pandas.DataFrame(rows)))
    if not scores_in(table.columns):  # every pair failed
        table = table.assign(**dict.fromkeys(RANKED, float("nan")))
    columns = [name for name in map(str, table.columns) if name not in (*_LEADING, *_TRAILING)]
    # Records of failed pairs lack the scores, and the first record may be one.
    scores = scores_in(columns)
    measured = [name for name in columns if name not in scores]
    return table[[*_LEADING, *scores, *measured, *_TRAILING]]


def channels_table(pairs: Sequence[Record]) -> DataFrame:
    """One row per estimate and channel where each channel was scored; else it is empty."""
    import pandas

    leading = ["mixture_id", "system", "source", "source_index", "channel"]
    rows: list[dict[str, Any]] = []
    for record in pairs:
        rows += record.get("channels", ())
    table = pandas.DataFrame(rows, columns=None if rows else leading)
    return _rounded(_typed(table))[[*leading, *scores_in(table.columns)]]


def items_table(scores: DataFrame, pairs: Sequence[Record]) -> DataFrame:
    """One row per mixture and system: means over its estimates."""
    import pandas

    names = [*scores_in(scores.columns)]
    means = scores.groupby(["mixture_id", "system"], sort=False)[names].mean().reset_index()
    return _rounded(means.join(_typed(pandas.DataFrame([record["item"] for record in pairs]))))


def summary_table(items: DataFrame, scores: DataFrame, rate: float) -> DataFrame:
    """One row per system: means over its mixtures. ``rate`` is the encoder's, in Hz."""
    names = [*scores_in(items.columns)]
    by_system = items.groupby("system", sort=False)
    summary, errors = by_system[names].mean(), items.filter(regex="_se$")
    squares = errors.pow(2).groupby(items["system"], sort=False).mean()
    counts = by_system[names].count().add_suffix("_se")
    summary = summary.join(squares.div(counts)[[*errors]].pow(0.5))  # of independent excerpts
    counts = by_system["status"].value_counts().unstack(fill_value=0)
    states = counts.reindex(columns=["ok", "undefined", "failed"], fill_value=0)
    summary[["scored", "undefined", "failed"]] = states
    estimates = scores.groupby("system", sort=False)
    summary["estimates"] = estimates["status"].agg(lambda status: status.eq("ok").sum())
    summary["silent"], summary["frames"] = by_system["silent"].sum(), estimates["frames"].sum()
    # Content above the encoder's rate makes no difference.
    rates = _rates(scores).min(axis=1).clip(upper=rate)
    summary["rates"] = rates.groupby(scores["system"], sort=False).agg(_rates_text)
    return _rounded(summary).reset_index()


def _rates_text(rates: Any) -> str:
    return ";".join(f"{rate:.0f}" for rate in sorted(rates.dropna().unique()))


def _typed(table: DataFrame) -> DataFrame:
    """Set types: columns of words unchanged, counts as integers, all others as floats."""
    import pandas

    types: dict[str, str] = {}
    for name in map(str, table.columns):
        if name not in _WORDS:
            table[name] = pandas.to_numeric(table[name])
            types[name] = "int64" if name in _COUNTS and table[name].notna().all() else "float64"
    return table.astype(types)


def failure_lines(pairs: Sequence[Record]) -> Iterator[str]:
    """Yield one line per failed pair."""
    for record in pairs:
        if has_failed(record):
            row = record["rows"][0]
            pair = f"mixture {row['mixture_id']!r}, system {row['system']!r}"
            yield f"{pair}: {record['item']['reason']}"


def finding_lines(pairs: Sequence[Record]) -> Iterator[str]:
    """Yield one line per kind of finding about the signals."""
    cases_by_kind: dict[str, list[tuple[str, str, str]]] = {}
    for record in pairs:
        mixture, system = record["rows"][0]["mixture_id"], record["rows"][0]["system"]
        for kind, text in record["findings"]:
            if kind != "same" or not system.startswith(CONTROL):  # controls equal it
                cases_by_kind.setdefault(kind, []).append((mixture, system, text))
    for kind, cases in cases_by_kind.items():
        distinct = dict.fromkeys((mixture, system) for mixture, system, _ in cases)
        systems = io.listed(dict.fromkeys(repr(system) for _, system in distinct), 3)
        mixture, system, text = cases[0]
        yield (
            f"{kind}: in {len(distinct)} of {len(pairs)} pairs of mixture and system ({systems}), "
            f"first in mixture {mixture!r}, system {system!r}: {text}"
        )


def mixed_rate_lines(summary: DataFrame) -> Iterator[str]:
    """Yield lines on systems whose means are over files of several rates."""
    for system, rates in zip(summary["system"], summary["rates"]):
        if ";" in rates:
            yield (
                f"rates: the means of system {system!r} are over files of "
                f"{rates.replace(';', ', ')} Hz, whose scores are not comparable. Score each "
                "rate separately"
            )


def same_system_lines(mixtures: Sequence[Mixture], hashes: Mapping[str, str]) -> Iterator[str]:
    """Yield lines on systems with identical files in all mixtures that both have."""
    names = dict.fromkeys(name for mixture in mixtures for name in mixture.systems)
    for system_a, system_b in itertools.combinations(names, 2):
        pairs = []
        for mixture in mixtures:
            paths = mixture.systems.get(system_a, ()), mixture.systems.get(system_b, ())
            for path_a, path_b in zip(*paths):
                pairs.append((hashes.get(path_a or ""), hashes.get(path_b or "")))
        if any(hash_a for hash_a, _ in pairs) and all(a == b for a, b in pairs):
            names_of_both = f"{system_a!r} and {system_b!r}"
            yield f"same: systems {names_of_both} have the same files in every mixture"


def discarded_lines(scores: DataFrame, rate: int) -> Iterator[str]:
    """Yield lines on content above the encoder's rate (Hz), which is not scored."""
    highest = _rates(scores).max(axis=1)
    above = sorted(highest[highest > rate].astype(int).unique())
    if above:
        yield (
            f"files of {', '.join(map(str, above))} Hz: what lies above {rate / 2000:g} kHz is "
            "discarded before scoring"
            + (" (--encoder mel-44k keeps up to 20 kHz)" if rate < 44_100 else "")
        )


def _rates(scores: DataFrame) -> DataFrame:
    return scores.reindex(columns=["estimate_rate", "reference_rate"]).astype(float)
