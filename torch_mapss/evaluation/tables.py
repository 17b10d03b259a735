"""Records of a run -> its tables: estimates, items (mixture and system) and sets (systems)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io, measures
from torch_mapss.evaluation.manifest import Mixture, Record, listed
from torch_mapss.evaluation.measures import COLUMNS
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.results import records
from torch_mapss.evaluation.shards import Progress, Share, finished, lock, note_hashes

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_FIRST = ("mixture_id", "system", "source", "source_index", "estimate", "reference")
_LAST = ("status", "reason", "notes", "warnings")


class Outcome(NamedTuple):
    """What a run over a manifest found."""

    scores: DataFrame | None  # one row per estimate; None: other shares are still to be scored
    items: DataFrame | None  # one per mixture and system
    summary: DataFrame | None  # one per system
    failures: tuple[str, ...]  # one line per mixture and system that failed
    warnings: tuple[str, ...] = ()  # one line per kind of finding about the signals
    notes: tuple[str, ...] = ()  # what was done to the input
    share: Share = Share()
    device: str = "cpu"  # that it was computed on
    missing: int = 0  # pairs of mixture and system that other shares have still to score
    settings: Mapping[str, Any] = {}  # all that the scores depend on

    def text(self) -> str:
        """A table of the systems to print, with counts."""
        if self.summary is None:
            return (
                f"Share {self.share.rank} of {self.share.size} is scored; {self.missing} pairs of "
                "mixture and system of other shares are not. The share that ends last writes the "
                "tables, or the same command without --shard."
            )
        names = measures.present(self.summary.columns, ranked=True)
        counts = ("scored", "undefined", "failed")
        sampled = self.settings.get("excerpts") is not None
        rows = [
            [
                row["system"],
                *(_cell(name, row, sampled) for name in names),
                *(str(int(row[name])) for name in counts),
            ]
            for row in records(self.summary)
        ]
        lines = [
            io.text_table(["system", *(measures.label(name) for name in names), *counts], rows),
            "",
            *(f"{COLUMNS[name].meaning}." for name in names),
            "Means over the estimates of a mixture, then over mixtures; undefined and failed ones "
            "are left out.",
            "scored, undefined, failed: mixtures.",
        ]
        if sampled:
            lines.append(f"±: standard error over {self.settings['excerpts']} excerpts a mixture.")
        lines += [f"Note: {note}." for note in self.notes]
        lines += [f"Warning: {warning}." for warning in self.warnings]
        return "\n".join([*lines, f"Computed on {self.device}."])


def _cell(name: str, row: Mapping[str, Any], sampled: bool) -> str:
    value = measures.text(name, row[name])
    return f"{value} ±{measures.text(name, row[f'{name}_se'])}" if sampled else value


def join(mixtures: Sequence[Mixture], folder: str, share: Share, rate: int) -> Outcome:
    """Write the tables, in the order of the manifest, once every pair has its rows.

    Args:
        mixtures: of the manifest.
        folder: of the results.
        share: of this process. It writes no tables while pairs of other shares are missing.
        rate: of the encoder, in Hz.
    """
    with lock(os.path.join(folder, "scores.csv")):
        found = finished(mixtures, Progress(folder, 0).records())
        pairs = [(mixture, system) for mixture in mixtures for system in mixture.systems]
        missing = sum((mixture.name, system) not in found for mixture, system in pairs)
        if missing and share.size > 1:
            own = [mixtures[place] for place in share.own(len(mixtures))]
            records = [found[key] for m in own for s in m.systems if (key := (m.name, s)) in found]
            return Outcome(None, None, None, _failures(records), share=share, missing=missing)
        records = [found.get((m.name, system)) or _lost(m, system) for m, system in pairs]
        return _written(mixtures, [mixture for mixture, _ in pairs], records, folder, rate)


def _written(
    mixtures: Sequence[Mixture],
    of: Sequence[Mixture],
    records: Sequence[Record],
    folder: str,
    rate: int,
) -> Outcome:
    scores = _scores([row for record in records for row in record["rows"]])
    items = _items(scores, records, of)
    summary = _summary(items, scores, rate)
    for name, table in (("scores", scores), ("items", items), ("summary", summary)):
        io.write_table(os.path.join(folder, f"{name}.csv"), table)
    io.write_json(os.path.join(folder, "mixtures.json"), listed(mixtures, folder))
    note_hashes(folder, {k: v for record in records for k, v in record.get("sha256", {}).items()})
    warnings = (*_warnings(records), *_mixed_rates(summary), *_same_systems(mixtures, records))
    return Outcome(
        scores, items, summary, _failures(records), warnings, tuple(_discarded(scores, rate))
    )


# ------------------------------------------------------------------------------------------------
# Rows
# ------------------------------------------------------------------------------------------------


def scored_rows(mixture: Mixture, system: str, report: Report) -> list[Record]:
    """The rows of a pair of mixture and system, paths as in the manifest."""
    given = [path for path in mixture.systems[system] if path is not None]
    shared = {"notes": "; ".join(report.notes)}
    shared["warnings"] = "; ".join(finding.text for finding in report.findings)
    rows = []
    for row, estimate in zip(report.rows, given):
        values = {key: io.nine_digits(value) for key, value in row.items()}
        values |= {"estimate": estimate, "reference": mixture.references[row.source_index]}
        values |= {"silent": int(row.silent), "status": "ok", "reason": ""}
        if not row.frames:
            values["status"] = "undefined"
            values["reason"] = "no frame in which it and another source are active"
        rows.append({"mixture_id": mixture.name, "system": system, **values, **shared})
    return rows


def failed_rows(mixture: Mixture, system: str, reason: str) -> list[Record]:
    """The same of a pair that failed: no numbers."""
    return [
        {"mixture_id": mixture.name, "system": system, "source": mixture.source_names[place]}
        | {"source_index": place, "estimate": path, "reference": mixture.references[place]}
        | {"frames": 0, "status": "failed", "reason": reason, "notes": "", "warnings": ""}
        for place, path in enumerate(mixture.systems[system])
        if path is not None
    ]


def _lost(mixture: Mixture, system: str) -> Record:
    """The record of a pair without one: its score is of files that are no longer there."""
    reason = "its files were changed while the run went on; start it again"
    rows = failed_rows(mixture, system, reason)
    return {"mixture_id": mixture.name, "system": system, "reason": reason, "rows": rows}


def _scores(rows: Sequence[Record]) -> DataFrame:
    import pandas

    found = pandas.DataFrame(rows)
    columns = [*_FIRST, *(c for c in found.columns if c not in (*_FIRST, *_LAST)), *_LAST]
    if not measures.present(columns):  # every pair failed
        found = found.assign(**dict.fromkeys(measures.RANKED, float("nan")))
        columns[len(_FIRST) : len(_FIRST)] = measures.RANKED
    return found[columns]


def _rounded(column: Series) -> Series:
    """As the tables show it: the next mean can be redone from them exactly."""
    return column.map(io.nine_digits)


def _averaged(scores: DataFrame) -> list[str]:
    return list(measures.present(scores.columns))


def _items(scores: DataFrame, records: Sequence[Record], of: Sequence[Mixture]) -> DataFrame:
    """One row per mixture and system: means over its estimates."""
    import pandas

    keys = ["mixture_id", "system"]
    groups = scores.groupby(keys, sort=False)
    found = groups[_averaged(scores)].mean().apply(_rounded).reset_index()
    errors = pandas.DataFrame([record.get("errors", {}) for record in records])
    found = pandas.concat([found, errors], axis=1)
    states = [[row["status"] for row in record["rows"]] for record in records]
    silent = [[bool(row.get("silent")) for row in record["rows"]] for record in records]
    found["estimates"] = [len(own) for own in states]
    found["undefined"] = [own.count("undefined") for own in states]
    found["silent"] = [sum(own) for own in silent]
    found["references"] = [len(mixture.references) for mixture in of]
    found["seconds"] = [record.get("seconds") for record in records]
    found["status"] = [
        "failed" if record["reason"] is not None else "ok" if "ok" in own else "undefined"
        for record, own in zip(records, states)
    ]
    found["reason"] = [record["reason"] or "" for record in records]
    return found


def _summary(items: DataFrame, scores: DataFrame, rate: int) -> DataFrame:
    """One row per system: means over its mixtures."""
    names = _averaged(items)
    groups = items.groupby("system", sort=False)
    found = groups[names].mean().apply(_rounded)
    for name in names:
        if f"{name}_se" in items:
            squares = items.assign(square=items[f"{name}_se"] ** 2).groupby("system", sort=False)
            total = squares["square"].sum(min_count=1) ** 0.5
            found[f"{name}_se"] = total / groups[name].count()
    for state in ("ok", "undefined", "failed"):
        column = "scored" if state == "ok" else state
        found[column] = (items["status"] == state).groupby(items["system"], sort=False).sum()
    own = scores.groupby("system", sort=False)
    found["estimates"] = (scores["status"] == "ok").groupby(scores["system"], sort=False).sum()
    found["silent"] = groups["silent"].sum()
    found["frames"] = own["frames"].sum()
    found["rates"] = [";".join(map(str, sorted(_rates(each, rate)))) for _, each in own]
    return found.reset_index()


def _rates(scores: DataFrame, rate: int) -> set[int]:
    """Rates at which estimates were scored: what lies above the encoder's makes no difference."""
    if "estimate_rate" not in scores:
        return set()
    least = scores[["estimate_rate", "reference_rate"]].min(axis=1).clip(upper=rate)
    return {int(value) for value in least.dropna()}


# ------------------------------------------------------------------------------------------------
# Words
# ------------------------------------------------------------------------------------------------


def _failures(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(
        f"mixture {record['mixture_id']!r}, system {record['system']!r}: {record['reason']}"
        for record in records
        if record["reason"] is not None
    )


def _warnings(records: Sequence[Record]) -> Iterator[str]:
    """What was found about the signals, a line for each kind."""
    kinds: dict[str, list[tuple[Record, str]]] = {}
    for record in records:
        for kind, text in record.get("findings", ()):
            kinds.setdefault(kind, []).append((record, text))
    for kind, cases in kinds.items():
        pairs = dict.fromkeys((r["mixture_id"], r["system"]) for r, _ in cases)
        systems = io.listed(dict.fromkeys(repr(system) for _, system in pairs), 3)
        first, text = cases[0]
        yield (
            f"{kind}: in {len(pairs)} of {len(records)} pairs of mixture and system ({systems}), "
            f"first in mixture {first['mixture_id']!r}, system {first['system']!r}: {text}"
        )


def _mixed_rates(summary: DataFrame) -> Iterator[str]:
    for system, rates in zip(summary["system"], summary["rates"]):
        if ";" in rates:
            yield (
                f"rates: the means of system {system!r} are over files of "
                f"{rates.replace(';', ', ')} Hz, whose scores do not compare. Score each rate on "
                "its own"
            )


def _same_systems(mixtures: Sequence[Mixture], records: Sequence[Record]) -> Iterator[str]:
    """Systems whose files are the same, byte for byte, in all mixtures that both have."""
    hashes = {k: v for record in records for k, v in record.get("sha256", {}).items()}
    names = list(dict.fromkeys(record["system"] for record in records))
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            both = [m.systems for m in mixtures if one in m.systems and other in m.systems]
            pairs = [
                (hashes.get(a or ""), hashes.get(b or ""))
                for s in both
                for a, b in zip(s[one], s[other])
            ]
            if pairs and all(a == b for a, b in pairs) and any(a for a, _ in pairs):
                yield f"same: systems {one!r} and {other!r} have the same files in every mixture"


def _discarded(scores: DataFrame, rate: int) -> Iterator[str]:
    if "estimate_rate" not in scores:
        return
    high = scores[["estimate_rate", "reference_rate"]].max(axis=1).dropna()
    above = sorted({int(value) for value in high if value > rate})
    if above:
        yield (
            f"files of {', '.join(map(str, above))} Hz: what lies above {rate / 2000:g} kHz is "
            "discarded before scoring"
            + (" (--encoder mel-44k keeps up to 20 kHz)" if rate < 44_100 else "")
        )
