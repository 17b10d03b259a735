"""Outputs held against ratings, by several layers of several encoders: used by layers, encoders.

Ratings are a CSV with the columns ``track, system, question, mean_rating`` (and ``source``, where a
mixture has outputs of more than one). Without ratings there is a control that needs no listener:
the target of every mixture with the other sources leaking in, and with its phase disturbed
(`leakage_distortion`), each "rated" by minus its strength.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import leakage_distortion
import toolkit
import torch
from every_layer import Layers, View
from torch import Tensor

from torch_mapss.bounds import pearson, spearman
from torch_mapss.encoders import Encoder, load_encoder

CONTROL = "control:"
KEYS = ("encoder", "layer", "scenario", "track", "source", "system")
PLAIN = ("mel", "waveform")  # encoders that have no layers and learned nothing
SHOWN = ("ps", "log_foreign_distance", "pm", "log_pm")
METHODS = {"SRCC": spearman, "PCC": pearson}


# ------------------------------------------------------------------------------------------------
# Ratings
# ------------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """An output and what was said of it."""

    system: str
    source: int
    estimate: Tensor  # (T,)
    ratings: Mapping[str, float]  # by question


class Ratings:
    """Mean ratings by track, system and source.

    Args:
        path: a CSV file; None: the control without listeners.

    Raises:
        SystemExit: the file lacks a column.
    """

    def __init__(self, path: Path | None) -> None:
        self._found: dict[tuple[str, ...], dict[str, float]] = {}
        if path is None:
            self.questions: tuple[str, ...] = tuple(leakage_distortion.SWEEPS)
            return
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        needed = {"track", "system", "question", "mean_rating"}
        if not rows or needed - set(rows[0]):
            raise SystemExit(f"{path} should have the columns {', '.join(sorted(needed))}.")
        for row in rows:
            for key in {(row["track"], row["system"], row.get("source", "")), _pair(row)}:
                self._found.setdefault(key, {})[row["question"]] = float(row["mean_rating"])
        self.questions = tuple(dict.fromkeys(row["question"] for row in rows))

    def of(self, track: str, system: str, source: str, alone: bool) -> dict[str, float]:
        """By question; ``alone``: the mixture has outputs of no other source."""
        exact = self._found.get((track, system, source))
        return exact or (self._found.get((track, system), {}) if alone else {})


def _pair(row: Mapping[str, str]) -> tuple[str, str]:
    return row["track"], row["system"]


def trials(mixture: toolkit.Mixture, ratings: Ratings, steps: int) -> list[Trial]:
    """The rated outputs of a mixture; without any outputs, those of the control."""
    made = []
    if not mixture.systems:
        for sweep, maker in leakage_distortion.MAKERS.items():
            for step in range(1, steps + 1):
                strength = step / steps
                estimate = maker(mixture.references, strength)
                made.append(Trial(f"{sweep} {strength:.3g}", 0, estimate, {sweep: -strength}))
        return made
    outputs = list(mixture.systems.values())
    estimated = [k for k in range(len(mixture.sources)) if any(o[k] is not None for o in outputs)]
    for system, estimates in mixture.systems.items():
        for source in estimated:
            estimate, name = estimates[source], mixture.sources[source]
            said = ratings.of(mixture.name, system, name, len(estimated) == 1)
            if estimate is not None and said and not system.startswith(CONTROL):
                made.append(Trial(system, source, estimate, said))
    return made


# ------------------------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """An encoder as it is named on the command line: NAME, or NAME@LAYER."""

    name: str
    layer: int | None

    @classmethod
    def of(cls, text: str, default: int | None) -> Choice:
        """Read it; ``default``: the layer where none is named."""
        name, _, layer = text.rpartition("@")
        return cls(name, int(layer)) if name and layer.isdigit() else cls(text, default)

    def load(self, options: argparse.Namespace) -> Encoder:
        """The encoder at its layer, on the device asked for."""
        return load(self.name, self.layer, options)


def load(name: str, layer: int | None, options: argparse.Namespace) -> Encoder:
    """An encoder, on the device asked for; a layer of None is the default one.

    Raises:
        SystemExit: its weights are not at hand.
    """
    layered = {} if layer is None else {"layer": layer}
    try:
        return load_encoder(name, device=options.device, **layered)
    except OSError as error:
        raise SystemExit(f"{error} Or run its shape with random weights: --untrained.") from error


def shown_name(name: str) -> str:
    """An encoder in tables: a folder by its last part."""
    return Path(name).name if Path(name).is_dir() else name


def add_options(parser: argparse.ArgumentParser, encoders: Sequence[str]) -> None:
    """Options of both scripts."""
    toolkit.add_scoring(parser, encoders)
    parser.add_argument("--ratings", type=Path, help="CSV; without: the control, see rated.py")
    parser.add_argument("--ps-question", help="what PS and B are held against; default: the first")
    parser.add_argument("--pm-question", help="what PM is held against; default: the second")
    parser.add_argument("--steps", type=int, default=5, help="strengths of the control")


def questions(options: argparse.Namespace) -> dict[str, str]:
    """The question of each measure shown."""
    names = Ratings(options.ratings).questions
    first = options.ps_question or names[0]
    second = options.pm_question or names[min(1, len(names) - 1)]
    unknown = {first, second} - set(names)
    if unknown:
        raise SystemExit(f"nobody was asked {', '.join(unknown)}; questions: {', '.join(names)}.")
    return {measure: second if "pm" in measure else first for measure in SHOWN}


def open_rows(options: argparse.Namespace) -> toolkit.Rows:
    """The rows of a run, with a column for every question."""
    names = Ratings(options.ratings).questions
    values = (*toolkit.MEASURES, "frames", *(f"rating:{name}" for name in names))
    leave = ("encoders", "mixtures", "layer", "ps_question", "pm_question", "random", "untrained")
    return toolkit.Rows(options.out, KEYS, values, toolkit.settings_of(options, *leave))


def score(
    options: argparse.Namespace, rows: toolkit.Rows, name: str, found: Layers, manifest: Path
) -> None:
    """Score all trials of all mixtures by every layer, and keep the rows."""
    ratings = Ratings(options.ratings)
    mixtures = toolkit.load_mixtures(
        manifest,
        found.encoder.sample_rate,
        seconds=options.seconds,
        limit=options.mixtures,
        systems=options.ratings is not None,
    )
    for mixture in toolkit.progress(list(mixtures), f"{name}, mixtures"):
        every = trials(mixture, ratings, options.steps)
        for layer in found.layers:
            _score_layer(options, rows, (name, layer, mixture.scenario), mixture, every, found)
        found.forget()


def _score_layer(
    options: argparse.Namespace,
    rows: toolkit.Rows,
    where: tuple[Any, ...],
    mixture: toolkit.Mixture,
    every: Sequence[Trial],
    found: Layers,
) -> None:
    keyed = [
        (trial, (*where, mixture.name, mixture.sources[trial.source], trial.system))
        for trial in every
    ]
    wanted = [(trial, key) for trial, key in keyed if not rows.has(*key)]
    if not wanted:
        return
    mapss = _mapss(options, found.view(where[1]))
    bank = mapss.prepare(mixture.references[None])
    for trial, key in wanted:
        scores = toolkit.target_scores(mapss, bank, trial.estimate, source=trial.source)
        said = {f"rating:{question}": value for question, value in trial.ratings.items()}
        rows.add(**dict(zip(KEYS, key)), **scores, **said)


def _mapss(options: argparse.Namespace, view: View) -> Any:
    alone = argparse.Namespace(**{**vars(options), "layer": None})
    return toolkit.scorer(alone, view)


# ------------------------------------------------------------------------------------------------
# Correlations
# ------------------------------------------------------------------------------------------------


class Correlation(NamedTuple):
    """A correlation over the systems of a track and source, averaged over these."""

    value: float
    error: float  # standard error of the average; NaN for one track
    tracks: int

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.2f}"
        return f"{toolkit.number(self.value)}{error}"


def common_tracks(rows: toolkit.Rows) -> set[str]:
    """The tracks that every encoder and layer has, over which they can be compared."""
    runs: dict[tuple[str, str], set[str]] = {}
    for row in rows.where():
        runs.setdefault((row["encoder"], row["layer"]), set()).add(row["track"])
    return set.intersection(*runs.values()) if runs else set()


def track_correlations(
    rows: toolkit.Rows,
    measure: str,
    question: str,
    method: str,
    within: Collection[str] | None = None,
    **where: Any,
) -> dict[tuple[str, str], float]:
    """SRCC or PCC over the systems of every track and source, where it is defined.

    Args:
        rows: scores and ratings.
        measure: column of the scores.
        question: of the ratings.
        method: a key of `METHODS`.
        within: count these tracks only.
        where: values of columns.
    """
    tracks: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows.where(**where):
        if within is not None and row["track"] not in within:
            continue
        if row[measure] and row[f"rating:{question}"]:
            pair = float(row[measure]), float(row[f"rating:{question}"])
            tracks.setdefault((row["track"], row["source"]), []).append(pair)
    found = {track: _correlated(pairs, method) for track, pairs in tracks.items()}
    return {track: value for track, value in found.items() if math.isfinite(value)}


def correlation(
    rows: toolkit.Rows,
    measure: str,
    question: str,
    method: str,
    within: Collection[str] | None = None,
    **where: Any,
) -> Correlation:
    """The average of `track_correlations`, which takes the same arguments."""
    return _averaged(
        [*track_correlations(rows, measure, question, method, within, **where).values()]
    )


def difference(
    rows: toolkit.Rows, measure: str, question: str, method: str, first: str, second: str
) -> Correlation:
    """By how much the first encoder correlates better than the second, paired over tracks."""
    one, other = (
        track_correlations(rows, measure, question, method, encoder=name)
        for name in (first, second)
    )
    return _averaged([one[track] - other[track] for track in one if track in other])


def _averaged(values: Sequence[float]) -> Correlation:
    count = len(values)
    if not count:
        return Correlation(math.nan, math.nan, 0)
    mean = sum(values) / count
    spread = sum((value - mean) ** 2 for value in values)
    error = math.sqrt(spread / (count - 1) / count) if count > 1 else math.nan
    return Correlation(mean, error, count)


def _correlated(pairs: Sequence[tuple[float, float]], method: str) -> float:
    finite = [pair for pair in pairs if all(map(math.isfinite, pair))]
    columns = torch.tensor(finite, dtype=torch.float64).reshape(-1, 2).T
    if len(finite) < 3 or any(bool((column == column[0]).all()) for column in columns):
        return math.nan
    return float(METHODS[method](*columns))


def layers_of(rows: toolkit.Rows, encoder: str) -> list[str]:
    """The layers of an encoder, in order; "" where there are none."""
    found = dict.fromkeys(row["layer"] for row in rows.where(encoder=encoder))
    return sorted(found, key=lambda layer: int(layer or 0))


def best_layer(
    rows: toolkit.Rows, encoder: str, asked: Mapping[str, str], scenarios: Sequence[str]
) -> tuple[str, float]:
    """The layer whose worst number is best: over PS and PM, SRCC and PCC, and the scenarios.

    Returns:
        The layer and its worst number; the lower layer of two that are equal.
    """
    worst = {}
    for layer in layers_of(rows, encoder):
        values = [
            correlation(
                rows, measure, asked[measure], method, encoder=encoder, layer=layer, scenario=name
            ).value
            for measure in ("ps", "pm")
            for method in METHODS
            for name in scenarios
        ]
        worst[layer] = min(-math.inf if math.isnan(value) else value for value in values)
    layer = max(worst, key=lambda layer: worst[layer])
    return layer, worst[layer]
