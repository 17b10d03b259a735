"""Records of a run -> its tables: estimates, items (mixture and system) and sets (systems)."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mapss.evaluation import io
from torch_mapss.evaluation.input_checks import Finding
from torch_mapss.evaluation.manifest import CONTROL, Mixture, Record, listed
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.results import Results, load_results, records
from torch_mapss.evaluation.shards import Share, finished, lock
from torch_mapss.evaluation.text_page import Page, Table
from torch_mapss.score_table import RANKED, SCORES, present, score_label, score_text

if TYPE_CHECKING:
    from pandas import DataFrame

_FIRST = ("mixture_id", "system", "source", "source_index", "estimate", "reference")
_LAST = ("status", "reason", "notes", "warnings")
_NO_FRAME = "no frame in which it and another source are active"


class Outcome(NamedTuple):
    """What a run over a manifest found."""

    results: Results | None  # None: other shares are still to be scored
    failures: tuple[str, ...]  # one line per mixture and system that failed
    warnings: tuple[str, ...] = ()  # one line per kind of finding about the signals
    notes: tuple[str, ...] = ()  # what was done to the input
    share: Share = Share()
    missing: int = 0  # pairs of mixture and system that other shares have still to score
    device: str = "cpu"  # that it was computed on

    def text(self) -> str:
        """A table of the systems to print, with counts."""
        if self.results is None:
            return (
                f"Share {self.share.rank} of {self.share.size} is scored; {self.missing} pairs of "
                "mixture and system of other shares are not. The share that ends last writes the "
                "tables, or the same command without --shard."
            )
        summary, excerpts = self.results.summary, self.results.settings.get("excerpts")
        names = present(summary.columns, ranked=True)
        counts = ("scored", "undefined", "failed")

        def shown(row: Mapping[str, Any], name: str) -> str:
            error = score_text(name, math.nan if excerpts is None else row[f"{name}_se"])
            return score_text(name, row[name]) + ("" if error == "-" else f" ±{error}")

        rows = [
            [row["system"], *(shown(row, n) for n in names), *(str(row[n]) for n in counts)]
            for row in records(summary)
        ]
        table = Table(["system", *map(score_label, names), *counts], rows)
        notes = [
            *(f"{SCORES[name].meaning}." for name in names),
            "Means over the estimates of a mixture, then over mixtures; undefined and failed ones "
            "are left out.",
            "scored, undefined, failed: mixtures.",
        ]
        if excerpts is not None:
            notes.append(f"±: standard error over {excerpts} excerpts a mixture.")
        notes += [f"Note: {note}." for note in self.notes]
        notes += [f"Warning: {warning}." for warning in self.warnings]
        return Page("", [table], [*notes, f"Computed on {self.device}."]).text(wrap=False)


def record_of(mixture: Mixture, system: str, found: Report | str) -> Record:
    """What is written of a pair, paths as in the manifest: its report, or why there is none."""
    import pandas

    errors: dict[str, float] = {}
    findings: Sequence[Finding] = ()
    seconds, reason = None, ""
    given = {k: path for k, path in enumerate(mixture.systems[system]) if path is not None}
    if isinstance(found, str):
        reason, names = found, [mixture.source_names[k] for k in given]
        table = pandas.DataFrame({"source": names, "source_index": [*given], "frames": 0})
        table = table.assign(silent=0, status="failed", reason=reason, notes="", warnings="")
    else:
        errors = {f"{name}_se": value for name, value in found.errors.items()}
        findings, clips = found.findings, (*found.references, *found.estimates)
        seconds = min(len(clip.wave) for clip in clips) / found.sample_rate
        blank = found.scores["frames"] == 0
        table = found.scores.assign(
            silent=found.scores["silent"].astype(int),
            status=blank.map({True: "undefined", False: "ok"}),
            reason=blank.map({True: _NO_FRAME, False: ""}),
            notes="; ".join(found.notes),
            warnings="; ".join(finding.text for finding in found.findings),
        )
    pair = {"mixture_id": mixture.name, "system": system}
    references = [mixture.references[source] for source in table["source_index"]]
    table = table.assign(**pair, estimate=[*given.values()], reference=references)
    undefined = int(table["status"].eq("undefined").sum())
    item: dict[str, Any] = {**errors, "estimates": len(table), "undefined": undefined}
    item |= {"silent": int(table["silent"].sum()), "references": len(mixture.references)}
    item |= {"seconds": seconds, "status": table["status"].min(), "reason": reason}
    return {**pair, "rows": records(table), "findings": findings, "item": item}


def failed(record: Record) -> bool:
    """Whether a pair has no scores, for a reason that is told."""
    return bool(record["item"]["status"] == "failed")


def join(mixtures: Sequence[Mixture], folder: str, share: Share, rate: int) -> Outcome:
    """Write the tables in the order of the manifest, unless other shares are still at work.

    ``rate`` is that of the encoder, in Hz.
    """
    with lock(os.path.join(folder, "scores.csv")):
        done = [finished(folder, mixture) for mixture in mixtures]
        missing = sum(len(m.systems) - len(found) for m, found in zip(mixtures, done))
        if missing and share.size > 1:
            own = [record for found in done[share.rank :: share.size] for record in found.values()]
            return Outcome(None, _failures(own), share=share, missing=missing)
        lost = "its files were changed while the run went on; start it again"
        pairs = [
            found.get(system) or record_of(mixture, system, lost)
            for mixture, found in zip(mixtures, done)
            for system in mixture.systems
        ]
        scores = _scores(pairs)
        items = _items(scores, pairs)
        summary = _summary(items, scores, rate)
        for name, table in (("scores", scores), ("items", items), ("summary", summary)):
            io.write_table(os.path.join(folder, f"{name}.csv"), table)
        io.write_json(os.path.join(folder, "mixtures.json"), listed(mixtures, folder))
        hashes = {k: v for record in pairs for k, v in record.get("sha256", {}).items()}
        settings = os.path.join(folder, "settings.json")
        stored = {**io.read_json(settings), "sha256": dict(sorted(hashes.items()))}
        io.write_json(settings, stored)
        results = load_results(folder)
    warnings = (*_warnings(pairs), *_mixed_rates(summary), *_same_systems(mixtures, hashes))
    return Outcome(results, _failures(pairs), warnings, (*_discarded(scores, rate),), share)


def _rounded(table: DataFrame) -> DataFrame:
    """Numbers as the files show them: the next mean can be redone from them exactly."""
    numbers = table.select_dtypes("float").apply(lambda x: x.map("{:.9g}".format).astype(float))
    return table.assign(**{str(name): numbers[name] for name in numbers})


def _scores(pairs: Sequence[Record]) -> DataFrame:
    """One row per estimate."""
    import pandas

    found = _rounded(pandas.DataFrame([row for record in pairs for row in record["rows"]]))
    if not present(found.columns):  # every pair failed
        found = found.assign(**dict.fromkeys(RANKED, float("nan")))
    return found[[*_FIRST, *(c for c in found if c not in (*_FIRST, *_LAST)), *_LAST]]


def _items(scores: DataFrame, pairs: Sequence[Record]) -> DataFrame:
    """One row per mixture and system: means over its estimates."""
    import pandas

    names = [*present(scores.columns)]
    means = scores.groupby(["mixture_id", "system"], sort=False)[names].mean().reset_index()
    return _rounded(means.join(pandas.DataFrame([record["item"] for record in pairs])))


def _summary(items: DataFrame, scores: DataFrame, rate: int) -> DataFrame:
    """One row per system: means over its mixtures."""
    names = [*present(items.columns)]
    groups = items.groupby("system", sort=False)
    found, errors = groups[names].mean(), items.filter(regex="_se$")
    squares = errors.pow(2).groupby(items["system"], sort=False).mean()
    counts = groups[names].count().add_suffix("_se")
    found = found.join(squares.div(counts)[[*errors]].pow(0.5))  # of independent excerpts
    counts = groups["status"].value_counts().unstack(fill_value=0)
    states = counts.reindex(columns=["ok", "undefined", "failed"], fill_value=0)
    found[["scored", "undefined", "failed"]] = states
    own = scores.groupby("system", sort=False)
    found["estimates"] = own["status"].agg(lambda own: own.eq("ok").sum())
    found["silent"], found["frames"] = groups["silent"].sum(), own["frames"].sum()
    # What lies above the encoder's rate makes no difference.
    least = _rates(scores).min(axis=1).clip(upper=rate).groupby(scores["system"], sort=False)
    found["rates"] = least.agg(lambda x: ";".join(f"{r:.0f}" for r in sorted(x.dropna().unique())))
    return _rounded(found).reset_index()


def _rates(scores: DataFrame) -> DataFrame:
    return scores.reindex(columns=["estimate_rate", "reference_rate"]).astype(float)


def _failures(pairs: Sequence[Record]) -> tuple[str, ...]:
    return tuple(
        f"mixture {record['mixture_id']!r}, system {record['system']!r}: {record['item']['reason']}"
        for record in pairs
        if failed(record)
    )


def _warnings(pairs: Sequence[Record]) -> Iterator[str]:
    """What was found about the signals, a line for each kind."""
    kinds: dict[str, list[tuple[str, str, str]]] = {}
    for record in pairs:
        mixture, system = record["mixture_id"], record["system"]
        for kind, text in record.get("findings", ()):
            if kind != "same" or not system.startswith(CONTROL):  # which is the reference
                kinds.setdefault(kind, []).append((mixture, system, text))
    for kind, cases in kinds.items():
        found = dict.fromkeys((mixture, system) for mixture, system, _ in cases)
        systems = io.listed(dict.fromkeys(repr(system) for _, system in found), 3)
        mixture, system, text = cases[0]
        yield (
            f"{kind}: in {len(found)} of {len(pairs)} pairs of mixture and system ({systems}), "
            f"first in mixture {mixture!r}, system {system!r}: {text}"
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
        found = [
            (hashes.get(a or ""), hashes.get(b or ""))
            for systems in (mixture.systems for mixture in mixtures)
            for a, b in zip(systems.get(one, ()), systems.get(other, ()))
        ]
        if any(a for a, _ in found) and all(a == b for a, b in found):
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
