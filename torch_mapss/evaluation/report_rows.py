"""Scores of one mixture and system as a report, with its rows and notes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_mapss.core.devices import device_name
from torch_mapss.evaluation import audio_input, pooled
from torch_mapss.evaluation.input_checks import Inspection
from torch_mapss.evaluation.protocol import pair_encoder_notes
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.settings import ScoringSettings
from torch_mapss.evaluation.system_signals import SystemSignals, covered_frames, muted_frames
from torch_mapss.pipeline.scores import ScoreBounds, Scores
from torch_mapss.score_table import scores_in, scores_of

if TYPE_CHECKING:
    from pandas import DataFrame


def estimate_rows(inspected: Inspection, scores: Scores, columns: DataFrame) -> DataFrame:
    """One row per estimate: its identity, its scores, and the measurements on its signals."""
    import pandas

    signals, active = inspected.signals, scores.active[0]
    estimates = signals.estimates
    muted = muted_frames(signals, scores.times)
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
    """A row per estimate and channel, in the order of the sources; None for a single channel.

    Args:
        signals: the signals that were scored.
        tables: for each channel, its scores with a row per estimate.
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
    notes = audio_input.remarks(clips, rate, signals.mono_estimates.shape[-1])
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


def make_report(
    inspected: Inspection,
    scored: Sequence[tuple[Scores, ScoreBounds | None]],
    spans: Sequence[tuple[int, int]],
    key: str,
    settings: ScoringSettings,
    description: Mapping[str, Any],
) -> Report:
    """Report of one system's estimates of a mixture.

    Args:
        inspected: the system's signals, and what was measured of them.
        scored: for each channel the scores of all frames, with their bounds if those were
            requested.
        spans: begin and end, in samples, of the whole or of each excerpt.
        key: name of the mixture.
        settings: settings of the scoring.
        description: everything that the scores depend on, as plain values.
    """
    signals, rate = inspected.signals, inspected.signals.rate
    channels, bounds = [scores for scores, _ in scored], scored[-1][1]
    if any(signals.removed):
        covered = covered_frames(signals, channels[0].times)
        channels = [pooled.covered(scores, covered) for scores in channels]
    of_channels = []  # a table per channel
    for of_channel, ratios in zip(channels, inspected.energy_ratios):
        of_channels.append(pooled.columns(of_channel, bounds).assign(**ratios))
    scores, columns = pooled.averaged(channels), pooled.mean_over_channels(of_channels)
    bounds_of_frames = {} if bounds is None else pooled.frame_bounds(scores, bounds)
    errors: dict[str, float] = {}
    if settings.excerpts is not None:
        seconds = torch.tensor(spans, dtype=torch.float64, device="cpu") / rate
        times = scores.times.cpu().unsqueeze(-1)
        inside = (times >= seconds[:, 0]) & (times < seconds[:, 1])  # (F, excerpts)
        sampled, errors = pooled.sampling(channels, inside)
        columns = columns.join(sampled)
        in_any = inside.any(-1)
        scores = pooled.selected(scores, in_any)
        bounds_of_frames = {n: values[..., in_any] for n, values in bounds_of_frames.items()}
    frames = pooled.frames(scores)
    if settings.shown_measures is not None:
        shown = scores_of(settings.shown_measures)
        hidden = [name for name in scores_in(columns) if name not in shown]
        columns = columns.drop(columns=hidden)
        of_channels = [table.drop(columns=hidden) for table in of_channels]
        frames = {name: values for name, values in frames.items() if name in shown}
    return Report(
        estimates=tuple(signals.estimates),
        references=tuple(signals.references),
        attributed=tuple(signals.attributed),
        times=scores.times.cpu(),
        active=scores.active[0].cpu(),
        frames=frames,
        bounds=bounds_of_frames,
        scores=estimate_rows(inspected, scores, columns),
        channels=channel_rows(signals, of_channels),
        errors=errors,
        sample_rate=rate,
        settings=description,
        notes=(
            *input_notes(signals, settings, spans),
            *pair_encoder_notes(description, frames),
        ),
        findings=inspected.findings,
        device=device_name(signals.mono_estimates.device),
        mixture=signals.mixture,
        mixture_id=key,
        grid_rate=signals.grid.sample_rate,
    )
