"""The table of scores: for each what it is called, how it is read and how it is computed.

The words: a **measure** is a family of scores that are computed together (decomposition,
separation, match, bleed, and the energy ratios ``si_sdr`` and ``bss``); a **score** is one number
of it. Tensors, metrics, losses, triggers, tables, plots and pages all read :data:`SCORES`.

A new score is one record here, and one more tensor that the score function of its measure
(:data:`torch_mapss.pipeline.measures.MEASURES`) returns under ``frame_field``, with its mask under
``defined_field`` unless that is "active". :class:`~torch_mapss.Scores` and the result of its
``utterance()`` gain the field automatically. Write it out there as well for type checkers; a test
enforces this. A new measure also needs a record in ``MEASURES`` and a function.

A leaf: it imports neither torch nor the rest of the package, since the command line's ``--help``
reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    """Properties of a score."""

    name: str  # field of Scores and UtteranceScores, and column of tables
    measure: str  # family that computes it
    label: str  # readable name
    meaning: str  # a sentence, with the range
    unit: str = ""  # "dB" or none
    limits: tuple[float | None, float | None] = (None, None)  # lowest and highest possible value
    digits: int = 3  # digits after the decimal point in texts
    higher_is_better: bool = True
    # Whether systems are ranked by it by default; others are further poolings, ranked if named.
    ranked: bool = False
    diagnostic: bool = False  # whether it does not say which system is better; never ranked
    frame_field: str | None = None  # field of Scores that is pooled; None: not computed per frame
    defined_field: str = "active"  # bool field of Scores: frames in which it has a value
    pooling: str | None = None  # frames -> utterance, a function of torch_mapss.core.pooling
    # Undefined for an utterance unless it is defined in half of the active frames.
    needs_majority: bool = False
    loss_term: str | None = None  # its term in a loss

    @property
    def has_frames(self) -> bool:
        """Whether frames have a value of this name."""
        return self.frame_field == self.name


#: Measures computed only from waveforms, in addition to those of the pipeline.
ENERGY_MEASURES = ("si_sdr", "bss")

_SHARE = (0.0, 1.0)
_AT_MOST_0 = (None, 0.0)
_FARTHER = "silence and muffled outputs lie farther away than the reference does"

_ALL = (
    Score(
        "clearance",
        "decomposition",
        "clearance",
        "clearance, 0 to 1: 1 = at least as far from the other sources as the true source is "
        "(quiet leakage can remain), 0 = another source",
        limits=_SHARE,
        ranked=True,
        frame_field="clearance",
        defined_field="clearance_defined",
        pooling="masked_mean",
        loss_term="clearance_loss",
    ),
    Score(
        "fidelity",
        "decomposition",
        "fidelity",
        "fidelity, 0 to 1: 1 = undistorted; undefined where the output is another source",
        limits=_SHARE,
        ranked=True,
        frame_field="fidelity",
        defined_field="fidelity_defined",
        pooling="pool_fidelity",
        needs_majority=True,
        loss_term="fidelity_loss",
    ),
    Score(
        "ps",
        "separation",
        "PS",
        "PS, Perceptual Separation, 0 to 1: 1 = no leakage from the other sources",
        limits=_SHARE,
        ranked=True,
        frame_field="ps",
        pooling="masked_mean",
        loss_term="separation_loss",
    ),
    Score(
        "pm",
        "match",
        "PM",
        "PM, Perceptual Match, 0 to 1: 1 = undistorted",
        limits=_SHARE,
        ranked=True,
        frame_field="pm",
        pooling="masked_mean",
    ),
    Score(
        "log_pm",
        "match",
        "log PM",
        "log PM, at most 0: still ranks outputs where PM is 0",
        limits=_AT_MOST_0,
        digits=2,
        ranked=True,
        frame_field="log_pm",
        pooling="masked_mean",
        loss_term="match_loss",
    ),
    Score(
        "bleed_db",
        "bleed",
        "bleed",
        "bleed, dB: level that the output adds where its own source pauses and another one plays, "
        "relative to its source; lower is better",
        unit="dB",
        digits=1,
        higher_is_better=False,
        ranked=True,
        frame_field="bleed_db",
        defined_field="bleed_defined",
        pooling="pool_power_db",
        loss_term="bleed_loss",
    ),
    Score(
        "si_sdr",
        "si_sdr",
        "SI-SDR",
        "SI-SDR, dB: scale-invariant signal-to-distortion ratio of the waveforms (Le Roux et al., "
        "2019); higher is better",
        unit="dB",
        digits=1,
        ranked=True,
        loss_term="si_sdr_loss",
    ),
    Score(
        "sdr",
        "bss",
        "SDR",
        "SDR, dB: signal-to-distortion ratio of BSS Eval, filters of 512 taps allowed; higher is "
        "better",
        unit="dB",
        digits=1,
        ranked=True,
    ),
    Score(
        "sir",
        "bss",
        "SIR",
        "SIR, dB: signal-to-interference ratio of BSS Eval; higher is better",
        unit="dB",
        digits=1,
        ranked=True,
    ),
    Score(
        "sar",
        "bss",
        "SAR",
        "SAR, dB: signal-to-artefacts ratio of BSS Eval; higher is better",
        unit="dB",
        digits=1,
        ranked=True,
    ),
    Score(
        "log_pm_compressed",
        "match",
        "log PM compressed",
        "log PM compressed, at most 0: mean of -log(1 - log PM), which single frames move little",
        limits=_AT_MOST_0,
        digits=2,
        frame_field="log_pm",
        pooling="pool_log_match_compressed",
    ),
    Score(
        "ps_pesq",
        "separation",
        "PS pooled",
        "PS pooled: the paper's PESQ-like pooling of PS over time, 1.085 to 1.315",
        limits=(1.085, 1.315),
        frame_field="ps",
        pooling="pool_separation",
    ),
    Score(
        "attributed_distance",
        "separation",
        "A",
        "A: distance to the source's own cluster in PS = B/(A + B)",
        higher_is_better=False,
        diagnostic=True,
        frame_field="attributed_distance",
        pooling="masked_mean",
    ),
    Score(
        "foreign_distance",
        "separation",
        "B",
        f"B: distance to the closest other cluster in PS = B/(A + B); {_FARTHER}, so it ranks "
        "nothing",
        diagnostic=True,
        frame_field="foreign_distance",
        pooling="masked_mean",
    ),
    Score(
        "log_foreign_distance",
        "separation",
        "log B",
        f"log B: mean logarithm of B, which ranks nothing ({_FARTHER})",
        digits=2,
        diagnostic=True,
        frame_field="foreign_distance",
        pooling="pool_log_distance",
    ),
)

#: All scores by name, in the order of every table, plot and page.
SCORES: dict[str, Score] = {score.name: score for score in _ALL}
#: Names of the scores that systems are ranked by unless scores are named.
RANKED = tuple(name for name, score in SCORES.items() if score.ranked)
#: Names of the scores that frames have.
FRAME_SCORES = tuple(name for name, score in SCORES.items() if score.has_frames)


def scores_of(measures: Iterable[str]) -> tuple[str, ...]:
    """Names of the scores that some measures compute, in order.

    Example:
        >>> scores_of(["match"])
        ('pm', 'log_pm', 'log_pm_compressed')
    """
    measure_names = set(measures)
    return tuple(name for name, score in SCORES.items() if score.measure in measure_names)


def score_names(names: str | Iterable[str], available: Iterable[str] = SCORES) -> tuple[str, ...]:
    """Resolve names of measures and scores to names of scores, without repetition.

    A measure stands for its available scores except diagnostic ones. Any available column, also a
    diagnostic score, can be named itself.

    Args:
        names: one or several names, in the order of the result.
        available: columns to choose from, e.g. ``results.items.columns``. Columns that are not
            scores of this package can be named as well.

    Raises:
        TypeError: a name is not a text.
        ValueError: a name stands for nothing available.

    Example:
        >>> score_names(["fidelity", "decomposition"])
        ('fidelity', 'clearance')
        >>> score_names("match", ["ps", "log_pm"])
        ('log_pm',)
    """
    columns = tuple(available)
    scores: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str):
            raise TypeError(f"measures must be names, got {name!r}.")
        if name in columns:
            scores.append(name)
            continue
        family = [score for score in scores_of([name]) if not SCORES[score].diagnostic]
        members = [score for score in family if score in columns]
        if not members:
            families = dict.fromkeys(
                SCORES[column].measure for column in columns if column in SCORES
            )
            raise ValueError(
                f"measures must be of {', '.join([*columns, *families])}, got {name!r}."
            )
        scores += members
    return tuple(dict.fromkeys(scores))


def scores_in(columns: Iterable[Any], ranked: bool | None = None) -> tuple[str, ...]:
    """Names of the scores among the columns of a table, in order.

    Args:
        columns: names, e.g. ``results.items.columns``.
        ranked: only scores that systems are ranked by (True), or only the others (False).

    Example:
        >>> scores_in(["system", "log_pm", "ps", "foreign_distance"], ranked=True)
        ('ps', 'log_pm')
    """
    names = set(columns)
    return tuple(
        name for name, score in SCORES.items() if name in names and ranked in (None, score.ranked)
    )


def score_text(name: str, value: Any) -> str:
    """Format a score as text; "-" if undefined.

    Example:
        >>> score_text("ps", 0.98765), score_text("log_pm", -12.3456), score_text("ps", math.nan)
        ('0.988', '-12.35', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{SCORES[name].digits}f}"


def score_label(name: str, unit: bool = True) -> str:
    """Readable name of a score, with its unit.

    Example:
        >>> score_label("log_pm"), score_label("bleed_db")
        ('log PM', 'bleed (dB)')
    """
    score = SCORES[name]
    return f"{score.label} ({score.unit})" if score.unit and unit else score.label
