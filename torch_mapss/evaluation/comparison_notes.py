"""Caveats of a comparison: lags, faulty channels, unfinished runs, encoders, and ceilings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_mapss.evaluation import io
from torch_mapss.evaluation.channel_checks import CHANNEL_FAULTS
from torch_mapss.evaluation.input_checks import LEAST_LAG_S
from torch_mapss.evaluation.protocol import pair_encoder_notes
from torch_mapss.score_table import FRAME_SCORES, SCORES

if TYPE_CHECKING:
    from torch_mapss.evaluation.comparison_tables import ComparedScores
    from torch_mapss.evaluation.results import Results

#: Scores with a ceiling that many frames reach -> scores that still tell outputs apart there.
TELLS_APART = {"clearance": "SIR (--measures decomposition bleed bss) and fidelity"}
_LEAST_LAG_MS = 1000.0 * LEAST_LAG_S


def ceiling_shares(
    results: Sequence[Results], scores: ComparedScores
) -> dict[tuple[str, str], float]:
    """Share of scored frames at the highest value, by score and system.

    Only for the scores in :data:`TELLS_APART`, and for systems whose mean allows more than half of
    the frames to be there. Frames that cannot be read do not count.
    """
    names = [name for name in TELLS_APART if name in scores.values and name in FRAME_SCORES]
    names_and_systems = itertools.product(names, scores.systems)
    candidates = {
        (name, system)
        for name, system in names_and_systems
        if scores.values[name][system].max() > 0.5
    }
    at_ceiling = dict.fromkeys(candidates, 0)
    scored = dict.fromkeys(candidates, 0)
    for folder in results if candidates else ():
        for mixture in folder.mixtures:
            try:
                frames = folder.frames(mixture).systems
            except (OSError, ValueError):
                continue
            for name, system in candidates:
                if system not in frames or name not in frames[system].scores:
                    continue
                values = frames[system].scores[name]
                scored[name, system] += int(np.isfinite(values).sum())
                ceiling = SCORES[name].limits[1]
                assert ceiling is not None  # candidates have one
                at_ceiling[name, system] += int((values >= ceiling).sum())
    return {key: at_ceiling[key] / count for key, count in scored.items() if count}


def unfinished(results: Sequence[Results]) -> Iterator[str]:
    """Sentences about folders whose run is not finished."""
    for folder in results:
        expected = sum(len(entry["systems"]) for entry in folder.entries.values())
        scored = len(folder.items.drop_duplicates(["mixture_id", "system"]))
        if scored < expected:
            yield (
                f"{io.shown(folder.folder)!r} is not complete: of {expected} outputs (one system, "
                f"one mixture) {scored} are scored so far."
            )


def pair_encoder_remarks(results: Sequence[Results], names: Sequence[str]) -> Iterator[str]:
    """A sentence on the encoder of clearance and fidelity, if it is not the default one."""
    for note in pair_encoder_notes(results[0].settings, names):  # all have the same encoders
        yield f"{note[:1].upper()}{note[1:]}."


def faulty_channels(results: Sequence[Results], systems: Sequence[str]) -> Iterator[str]:
    """A sentence about systems whose estimates have faults in single channels, if any."""
    faults_by_system: dict[str, dict[str, list[str]]] = {}  # then by mixture
    for folder in results:
        for record in folder.records:
            faults = [kind for kind, _ in record["findings"] if kind in CHANNEL_FAULTS]
            if not faults:
                continue
            mixture, system = record["rows"][0]["mixture_id"], record["rows"][0]["system"]
            if system in systems:
                faults_by_system.setdefault(system, {})[mixture] = [*dict.fromkeys(faults)]
    texts = []
    for system, faults_by_mixture in faults_by_system.items():
        mixtures = [f"{name} ({', '.join(faults)})" for name, faults in faults_by_mixture.items()]
        texts.append(f"{system} in {io.listed(mixtures, 3)}")
    if texts:
        yield (
            f"Faulty channels: {'; '.join(texts)}. Scores say little about these; a dead "
            "channel has no leakage, which inflates clearance and bleed: see `warnings` in "
            "scores.csv."
        )


def unlike_lags(scores: ComparedScores) -> str:
    """Sentence about systems that are late or early by a constant lag; "" if there are none."""
    lags_by_system = _lags_of_systems(scores)
    lags = lags_by_system.values()
    if not lags_by_system or max(lags) - min(lags) < _LEAST_LAG_MS:
        return ""
    ordered = sorted(lags_by_system.items(), key=lambda item: abs(item[1]))
    texts = [f"{name} {abs(lag):.1f} ms {_direction(lag)}".strip() for name, lag in ordered]
    return (
        f"The systems are not equally aligned with their references ({'; '.join(texts)}). Scores "
        'count a lag as distortion; score again with --align (align="shift") to compare the sound '
        "alone."
    )


def _lags_of_systems(scores: ComparedScores) -> dict[str, float]:
    """Lag in ms that most outputs of a system share, by system; others are left out."""
    if "lag_ms" not in scores.rows:
        return {}
    lags = scores.rows["lag_ms"].astype(float)
    if "shift_ms" in scores.rows:  # what --align removed before scoring
        lags = lags - scores.rows["shift_ms"].astype(float).fillna(0.0)
    by_system = {}
    for system, values in scores.rows.assign(lag=lags).groupby("system")["lag"]:
        values = values.dropna()
        median = float(values.median())
        if ((values - median).abs() <= _LEAST_LAG_MS / 2).mean() > 0.5:
            by_system[str(system)] = median
    return by_system


def _direction(lag_ms: float) -> str:
    if abs(lag_ms) < 0.05:
        return ""
    return "late" if lag_ms > 0.0 else "early"


def ceiling_notes(ceilings: Mapping[tuple[str, str], float]) -> Iterator[str]:
    """Sentences about scores with most frames at the ceiling."""
    for name, remedy in TELLS_APART.items():
        systems = {
            system: share
            for (measure, system), share in ceilings.items()
            if measure == name and share > 0.5
        }
        if not systems:
            continue
        shares = [f"{system} {100 * share:.0f} %" for system, share in sorted(systems.items())]
        label, highest = SCORES[name].label, SCORES[name].limits[1]
        yield (
            f"† More than half of the frames have a {label} of {highest:g}, its ceiling "
            f"({'; '.join(shares)}): {label} does not tell such systems apart, and quiet leakage "
            f"can remain. {remedy} tell them apart."
        )
