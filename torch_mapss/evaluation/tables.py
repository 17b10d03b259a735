"""Records of a run -> its tables: estimates, items (mixture and system) and sets (systems)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch_mapss.evaluation import files
from torch_mapss.evaluation.manifest import (
    ITEM_COLUMNS,
    SCORE_COLUMNS,
    SET_COLUMNS,
    Mixture,
    Record,
    listed,
)
from torch_mapss.evaluation.measures import (
    LABELS,
    RANK,
    columns_of,
    has_rank,
    measures_of,
    rank_meaning,
)
from torch_mapss.evaluation.pairs import failed_rows, nine_digits
from torch_mapss.evaluation.processes import World
from torch_mapss.evaluation.progress import Progress, finished, note_hashes
from torch_mapss.evaluation.report import MEANS, MEDIANS, mean, median, number


class Outcome(NamedTuple):
    """What a run over a manifest found."""

    scores: tuple[Record, ...]  # one row per estimate
    items: tuple[Record, ...]  # one per mixture and system
    sets: tuple[Record, ...]  # one per system
    failures: tuple[str, ...]  # one line per mixture and system that failed
    warnings: tuple[str, ...] = ()  # one line per kind of finding about the signals
    processes: World = World()
    device: str = "cpu"  # that it was computed on
    missing: int = 0  # pairs of mixture and system that other shares have still to score: no tables
    settings: Mapping[str, Any] = {}  # all that the scores depend on

    def summary(self) -> str:
        """A table of the systems to print, with counts."""
        if self.missing:
            return self._share_summary()
        # B as its log alone, and the median of log PM beside its mean.
        names = [name for name in measures_of(self.sets) if name != "foreign_distance"]
        names.insert(names.index("log_pm") + 1, "log_pm_median")
        shown = {name: LABELS.get(name, "median") for name in names}
        counts = ("scored", "undefined", "failed")
        rows = [
            [
                row["system"],
                *(number(row[name], ".2f" if name.startswith("log") else ".3f") for name in shown),
                *(str(row[name]) for name in counts),
            ]
            for row in self.sets
        ]
        return "\n".join(
            [
                files.text_table(["system", *shown.values(), *counts], rows),
                "",
                "PS: 1 = no leakage, PM: 1 = undistorted, both 0..1, higher is better.",
                "log B: log of the distance to the closest other source, higher = less leakage.",
                "Means over frames, then over the estimates of a mixture, then over mixtures;",
                "undefined and failed mixtures are left out. scored, undefined, failed: mixtures.",
                "median: of log PM, by medians in all these steps; a dead output moves it little.",
                *(files.wrapped(rank_meaning(self.settings)) if RANK in shown else []),
                *(f"Warning: {warning}." for warning in self.warnings),
                f"Computed on {self.device}.",
            ]
        )

    def _share_summary(self) -> str:
        share = f"Share {self.processes.rank % self.processes.size} of {self.processes.size}"
        return (
            f"{share} is scored; {self.missing} pairs of mixture and system of other shares are "
            "not. The share that ends last writes the tables, or the same command without --shard."
        )


def join(mixtures: Sequence[Mixture], folder: str, processes: World, rate: int) -> Outcome:
    """Write the tables, in the order of the manifest, every pair of which has its rows.

    A share writes none while pairs of others are missing. ``rate`` is the encoder's, in Hz.
    """
    found = finished(mixtures, Progress(folder, 0).records())
    pairs = [(mixture, system) for mixture in mixtures for system in mixture.systems]
    missing = sum((mixture.name, system) not in found for mixture, system in pairs)
    if missing and processes.size > 1 and not processes.grouped:
        own = mixtures[processes.rank :: processes.size]
        records = [found[key] for m in own for s in m.systems if (key := (m.name, s)) in found]
        return Outcome((), (), (), _failures(records), missing=missing)
    records = [found.get((m.name, system)) or _lost(m, system) for m, system in pairs]
    records = _ranked(records)
    scores = [row for record in records for row in record["rows"]]
    items = [_item(mixture, record) for (mixture, _), record in zip(pairs, records)]
    sets = _sets(items, scores, rate)
    for name, columns, rows in (
        ("scores.csv", SCORE_COLUMNS, scores),
        ("items.csv", ITEM_COLUMNS, items),
        ("summary.csv", SET_COLUMNS, sets),
    ):
        files.write_csv(os.path.join(folder, name), columns_of(columns, rows), rows)
    files.write_json(os.path.join(folder, "mixtures.json"), listed(mixtures, folder))
    note_hashes(folder, {k: v for record in records for k, v in record.get("sha256", {}).items()})
    warnings = (*_warnings(records), *_mixed_rates(sets))
    return Outcome(tuple(scores), tuple(items), tuple(sets), _failures(records), warnings)


def _ranked(records: list[Record]) -> list[Record]:
    """With PM's rank as undefined in the rows of failed pairs, if other rows have it."""
    if not has_rank(row for record in records for row in record["rows"]):
        return records

    def filled(row: Record) -> Record:
        return row if row.get(RANK) is not None else row | {RANK: float("nan")}

    return [record | {"rows": [filled(row) for row in record["rows"]]} for record in records]


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
        systems = files.listed(dict.fromkeys(repr(system) for _, system in pairs), 3)
        first, text = cases[0]
        yield (
            f"{kind}: in {len(pairs)} of {len(records)} pairs of mixture and system ({systems}), "
            f"first in mixture {first['mixture_id']!r}, system {first['system']!r}: {text}"
        )


def _mixed_rates(sets: Sequence[Record]) -> Iterator[str]:
    for row in sets:
        if ";" in row["rates"]:
            rates = row["rates"].replace(";", ", ")
            yield (
                f"rates: the means of system {row['system']!r} are over files of {rates} Hz, whose "
                "scores do not compare. Score each rate on its own"
            )


def _lost(mixture: Mixture, system: str) -> Record:
    """The record of a pair without one: its score is of files that are no longer there."""
    reason = "its files were changed while the run went on; start it again"
    rows = failed_rows(mixture, system, reason)
    return {"mixture_id": mixture.name, "system": system, "reason": reason, "rows": rows}


def _item(mixture: Mixture, record: Record) -> Record:
    """One mixture and system: means over its estimates."""
    rows = record["rows"]
    undefined = sum(row["status"] == "undefined" for row in rows)
    status = "undefined" if undefined == len(rows) else "ok"
    return {
        "mixture_id": record["mixture_id"],
        "system": record["system"],
        **{name: nine_digits(value) for name, value in _averages(rows).items()},
        "estimates": len(rows),
        "undefined": undefined,
        "silent": sum(bool(row["silent"]) for row in rows),
        "references": len(mixture.references),
        "seconds": record.get("seconds"),
        "status": status if record["reason"] is None else "failed",
        "reason": record["reason"] or "",
    }


def _averages(rows: Sequence[Record]) -> Record:
    """Of the scores of estimates or mixtures, the undefined ones left out."""
    names = (*MEANS, RANK) if has_rank(rows) else MEANS
    means = {name: mean([row[name] for row in rows]) for name in names}
    return means | {name: median([row[name] for row in rows]) for name in MEDIANS}


def _sets(items: Sequence[Record], scores: Sequence[Record], rate: int) -> list[Record]:
    """One row per system: means over its mixtures; ``rate`` is the encoder's, in Hz."""
    found = []
    for system in dict.fromkeys(item["system"] for item in items):
        own = [item for item in items if item["system"] == system]
        rows = [row for row in scores if row["system"] == system]
        states = [item["status"] for item in own]
        # What lies above the encoder's rate makes no difference.
        rates = {
            min(row["estimate_rate"], row["reference_rate"], rate)
            for row in rows
            if row["estimate_rate"]
        }
        found.append(
            {"system": system}
            | _averages(own)
            | {"scored": states.count("ok"), "undefined": states.count("undefined")}
            | {"failed": states.count("failed")}
            | {"estimates": sum(row["status"] == "ok" for row in rows)}
            | {"silent": sum(item["silent"] for item in own)}
            | {"frames": sum(row["frames"] for row in rows)}
            | {"rates": ";".join(map(str, sorted(rates)))}
        )
    return found
