"""Rows and notes of a report: each estimate's measurements, and changes made to the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_mapss.evaluation import audio_input, input_checks
from torch_mapss.evaluation.input_checks import Inspection, SystemSignals
from torch_mapss.evaluation.settings import ScoringSettings
from torch_mapss.pipeline.scores import Scores
from torch_mapss.score_table import scores_in

if TYPE_CHECKING:
    from pandas import DataFrame


def estimate_rows(inspected: Inspection, scores: Scores, columns: DataFrame) -> DataFrame:
    """One row per estimate: its identity, its scores, and the measurements on its signals."""
    import pandas

    signals, active = inspected.signals, scores.active[0]
    estimates = signals.estimates
    muted = input_checks.muted_frames(signals, scores.times)
    references = [signals.references[source] for source in signals.attributed]
    lags = [math.nan if lag is None else lag for lag in signals.lags]
    reference_bands = [inspected.reference_bands[source] for source in signals.attributed]
    values: dict[str, Any] = {str(name): column for name, column in columns.items()}
    in_order = {name: values[name] for name in scores_in(values)}
    table: dict[str, Any] = {
        "source": [clip.name for clip in references],
        "source_index": signals.attributed,
        "estimate": [clip.path or clip.name for clip in estimates],
        "reference": [clip.path or clip.name for clip in references],
        **in_order,
        **{name: column for name, column in values.items() if name not in in_order},
        "frames": active.sum(-1).tolist(),
        "total_frames": active.shape[-1],
        "muted_frames": (muted & active).sum(-1).tolist(),
        "silent": inspected.silent,
        "estimate_level_db": inspected.estimate_levels_db,
        "lag_ms": [1000.0 * lag / signals.rate for lag in lags],
        "shift_ms": [1000.0 * lag / signals.rate for lag in signals.removed],
        "estimate_rate": [clip.rate for clip in estimates],
        "reference_rate": [clip.rate for clip in references],
        "estimate_bandwidth": inspected.estimate_bands,
        "reference_bandwidth": reference_bands,
    }
    return pandas.DataFrame(table)


def channel_rows(signals: SystemSignals, tables: Sequence[DataFrame]) -> DataFrame | None:
    """A row per estimate and channel, in the order of the sources; None of a single channel.

    Args:
        signals: that were scored.
        tables: the scores of each channel, a row per estimate.
    """
    import pandas

    if len(tables) == 1:
        return None
    names = [signals.references[source].name for source in signals.attributed]
    of_channels = []
    for number, table in enumerate(tables, 1):
        index = {"source": names, "source_index": signals.attributed, "channel": number}
        of_channels.append(pandas.DataFrame(index).join(table[[*scores_in(table)]]))
    rows = pandas.concat(of_channels).sort_values(["source_index", "channel"])
    return rows.reset_index(drop=True)


def input_notes(
    signals: SystemSignals, settings: ScoringSettings, spans: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """Sentences on the changes made to the input."""
    clips, rate = (*signals.references, *signals.estimates), signals.rate
    notes = audio_input.remarks(clips, rate, signals.outputs.shape[-1])
    encoder_rate = signals.grid.sample_rate
    if high := sorted({clip.rate for clip in clips if clip.rate > encoder_rate}):
        notes.append(
            f"{', '.join(map(str, high))} Hz: what lies above {encoder_rate / 2000:g} kHz is "
            "discarded before scoring"
        )
    if settings.permute:
        names = [signals.references[source].name for source in signals.attributed]
        pairs = (f"{clip.name} -> {name}" for clip, name in zip(signals.estimates, names))
        notes.append(f"attributed by SI-SDR: {', '.join(pairs)}")
    notes += [
        f"{clip.path or clip.name}: a lag of {1000 * lag / rate:.2f} ms was removed"
        for clip, lag in zip(signals.estimates, signals.removed)
        if lag
    ]
    if settings.excerpts is not None:
        drawn = ", ".join(f"{begin / rate:.2f}-{end / rate:.2f}" for begin, end in spans)
        fewer = ""
        if 1 < len(spans) < settings.excerpts:
            fewer = (
                f" ({len(spans)} instead of {settings.excerpts}: the active passages hold no more)"
            )
        notes.append(f"excerpts scored (s): {drawn}{fewer}")
    return tuple(notes)
