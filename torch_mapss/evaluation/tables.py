"""Records of a run -> its tables: estimates, items (mixture and system) and sets (systems)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io, measures
from torch_mapss.evaluation.manifest import CONTROL, Mixture, Record, listed
from torch_mapss.evaluation.measures import COLUMNS
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.results import records
from torch_mapss.evaluation.shards import Progress, Share, lock, note_hashes
from torch_mapss.evaluation.text_page import Page, Table

if TYPE_CHECKING:
    from pandas import DataFrame

_FIRST = ("mixture_id", "system", "source", "source_index", "estimate", "reference")
_NO_FRAME = "no frame in which it and another source are active"
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
        counts, excerpts = ("scored", "undefined", "failed"), self.settings.get("excerpts")
        rows = []
        for row in records(self.summary):
            rows.append([row["system"], *(measures.text(name, row[name]) for name in names)])
            if excerpts is not None:
                errors = [measures.text(name, row[f"{name}_se"]) for name in names]
                rows[-1][1:] = [f"{value} ±{e}" for value, e in zip(rows[-1][1:], errors)]
            rows[-1] += [str(int(row[name])) for name in counts]
        table = Table(["system", *map(measures.label, names), *counts], rows)
        notes = [
            *(f"{COLUMNS[name].meaning}." for name in names),
            "Means over the estimates of a mixture, then over mixtures; undefined and failed ones "
            "are left out.",
            "scored, undefined, failed: mixtures.",
        ]
        if excerpts is not None:
            notes.append(f"±: standard error over {excerpts} excerpts a mixture.")
        notes += [f"Note: {note}." for note in self.notes]
        notes += [f"Warning: {warning}." for warning in self.warnings]
        return Page("", [("", [table])], [*notes, f"Computed on {self.device}."]).text(wrap=False)


def join(mixtures: Sequence[Mixture], folder: str, share: Share, rate: int) -> Outcome:
    """Write the tables, in the order of the manifest, once every pair has its rows.

    Args:
        mixtures: of the manifest.
        folder: of the results.
        share: of this process. It writes no tables while pairs of other shares are missing.
        rate: of the encoder, in Hz.
    """
    pairs = [(mixture, system) for mixture in mixtures for system in mixture.systems]
    with lock(os.path.join(folder, "scores.csv")):
        found = Progress(folder).finished(mixtures)
        missing = len(pairs) - len(found)
        if missing and share.size > 1:
            own = {mixtures[place].name for place in share.own(len(mixtures))}
            failures = _failures(one for (name, _), one in found.items() if name in own)
            return Outcome(None, None, None, failures, share=share, missing=missing)
        records = [found.get((m.name, system)) or _lost(m, system) for m, system in pairs]
        scores = _scores(records)
        items = _items(scores, records, [len(mixture.references) for mixture, _ in pairs])
        summary = _summary(items, scores, rate)
        for name, table in (("scores", scores), ("items", items), ("summary", summary)):
            io.write_table(os.path.join(folder, f"{name}.csv"), table)
        io.write_json(os.path.join(folder, "mixtures.json"), listed(mixtures, folder))
        hashes = {k: v for record in records for k, v in record.get("sha256", {}).items()}
        note_hashes(folder, hashes)
    warnings = (*_warnings(records), *_mixed_rates(summary), *_same_systems(mixtures, hashes))
    return Outcome(
        scores, items, summary, _failures(records), warnings, tuple(_discarded(scores, rate))
    )


# ------------------------------------------------------------------------------------------------
# Rows
# ------------------------------------------------------------------------------------------------


def scored_rows(mixture: Mixture, system: str, report: Report) -> list[Record]:
    """The rows of a pair of mixture and system, paths as in the manifest."""
    undefined = report.scores["frames"] == 0
    table = report.scores.assign(
        mixture_id=mixture.name,
        system=system,
        estimate=[path for path in mixture.systems[system] if path is not None],
        reference=[mixture.references[source] for source in report.attributed],
        silent=report.scores["silent"].astype(int),
        status=undefined.map({True: "undefined", False: "ok"}),
        reason=undefined.map({True: _NO_FRAME, False: ""}),
        notes="; ".join(report.notes),
        warnings="; ".join(finding.text for finding in report.findings),
    )
    return records(table)


def failed_rows(mixture: Mixture, system: str, reason: str) -> list[Record]:
    """The same of a pair that failed: no numbers."""
    return [
        {"mixture_id": mixture.name, "system": system, "source": mixture.source_names[place]}
        | {"source_index": place, "estimate": path, "reference": mixture.references[place]}
        | {"frames": 0, "silent": 0, "status": "failed", "reason": reason}
        | {"notes": "", "warnings": ""}
        for place, path in enumerate(mixture.systems[system])
        if path is not None
    ]


def _lost(mixture: Mixture, system: str) -> Record:
    """The record of a pair without one: its score is of files that are no longer there."""
    reason = "its files were changed while the run went on; start it again"
    rows = failed_rows(mixture, system, reason)
    return {"mixture_id": mixture.name, "system": system, "reason": reason, "rows": rows}


def _rounded(table: DataFrame) -> DataFrame:
    """Numbers as the files show them: the next mean can be redone from them exactly."""
    numbers = table.select_dtypes("float")
    return table.assign(**{str(name): numbers[name].map(io.nine_digits) for name in numbers})


def _scores(records: Sequence[Record]) -> DataFrame:
    import pandas

    found = _rounded(pandas.DataFrame([row for record in records for row in record["rows"]]))
    if not measures.present(found.columns):  # every pair failed
        found = found.assign(**dict.fromkeys(measures.RANKED, float("nan")))
    return found[[*_FIRST, *(c for c in found if c not in (*_FIRST, *_LAST)), *_LAST]]


def _items(scores: DataFrame, records: Sequence[Record], references: Sequence[int]) -> DataFrame:
    """One row per mixture and system: means over its estimates."""
    import pandas

    keys = ["mixture_id", "system"]
    groups = scores.groupby(keys, sort=False)
    means = _rounded(groups[list(measures.present(scores.columns))].mean().reset_index())
    errors = pandas.DataFrame([record.get("errors", {}) for record in records])
    found = pandas.concat([means, errors], axis=1)
    states = [[row["status"] for row in record["rows"]] for record in records]
    found["estimates"] = [len(own) for own in states]
    found["undefined"] = [own.count("undefined") for own in states]
    found["silent"] = groups["silent"].sum().to_numpy()
    found["references"] = references
    found["seconds"] = [record.get("seconds") for record in records]
    found["status"] = [
        next(state for state in ("failed", "ok", "undefined") if state in own) for own in states
    ]
    found["reason"] = [record["reason"] or "" for record in records]
    return _rounded(found)


def _summary(items: DataFrame, scores: DataFrame, rate: int) -> DataFrame:
    """One row per system: means over its mixtures."""
    names = list(measures.present(items.columns))
    groups, own = (table.groupby("system", sort=False) for table in (items, scores))
    found = _rounded(groups[names].mean())
    for name in names:
        if f"{name}_se" in items:
            squares = (items[f"{name}_se"] ** 2).groupby(items["system"], sort=False)
            found[f"{name}_se"] = squares.sum(min_count=1) ** 0.5 / groups[name].count()
    for column, state in (("scored", "ok"), ("undefined", "undefined"), ("failed", "failed")):
        found[column] = (items["status"] == state).groupby(items["system"], sort=False).sum()
    found["estimates"] = (scores["status"] == "ok").groupby(scores["system"], sort=False).sum()
    found["silent"] = groups["silent"].sum()
    found["frames"] = own["frames"].sum()
    # What lies above the encoder's rate makes no difference.
    least = _rates(scores).min(axis=1).clip(upper=rate).groupby(scores["system"], sort=False)
    found["rates"] = least.agg(lambda x: ";".join(f"{r:.0f}" for r in sorted(x.dropna().unique())))
    return found.reset_index()


def _rates(scores: DataFrame) -> DataFrame:
    return scores.reindex(columns=["estimate_rate", "reference_rate"]).astype(float)


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
        control = record["system"].startswith(CONTROL)  # a hidden reference is the reference
        for kind, text in record.get("findings", ()):
            if control and kind == "same":
                continue
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


def _same_systems(mixtures: Sequence[Mixture], hashes: Mapping[str, str]) -> Iterator[str]:
    """Systems whose files are the same, byte for byte, in all mixtures that both have."""
    names = dict.fromkeys(name for mixture in mixtures for name in mixture.systems)
    for one, other in itertools.combinations(names, 2):
        both = [m.systems for m in mixtures if one in m.systems and other in m.systems]
        pairs = [
            (hashes.get(a or ""), hashes.get(b or ""))
            for s in both
            for a, b in zip(s[one], s[other])
        ]
        if any(a for a, _ in pairs) and all(a == b for a, b in pairs):
            yield f"same: systems {one!r} and {other!r} have the same files in every mixture"


def _discarded(scores: DataFrame, rate: int) -> Iterator[str]:
    high = _rates(scores).max(axis=1)
    above = sorted(high[high > rate].astype(int).unique())
    if above:
        yield (
            f"files of {', '.join(map(str, above))} Hz: what lies above {rate / 2000:g} kHz is "
            "discarded before scoring"
            + (" (--encoder mel-44k keeps up to 20 kHz)" if rate < 44_100 else "")
        )
