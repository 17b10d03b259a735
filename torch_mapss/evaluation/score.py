"""Files or arrays of one mixture in, scores of its estimates out.

:func:`evaluate` is the public call; :func:`read_entry` and :func:`score_entries` are its two
halves, which a run over a test set takes for all systems of a mixture together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.core import checks
from torch_mapss.core.devices import device_name
from torch_mapss.core.pooling import masked_mean
from torch_mapss.evaluation import audio_input, excerpts, options
from torch_mapss.evaluation.audio_input import Clip
from torch_mapss.evaluation.input_checks import (
    Lags,
    Signals,
    covered_frames,
    inspect,
    measure_lags,
    muted_frames,
)
from torch_mapss.evaluation.measures import COLUMNS, FRAME_SCORES
from torch_mapss.evaluation.options import Request
from torch_mapss.evaluation.report import Report, SourceRow, versions
from torch_mapss.pipeline.scores import ScoreBounds, Scores

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

OnSegment = Callable[[int, int], object]
# A distance below this is rounding; its logarithm must not outweigh all others.
_LEAST_DISTANCE = 1e-6


def evaluate(
    *,
    estimates: Any,
    references: Any,
    mixture: Any = None,
    names: Sequence[str] | None = None,
    sample_rate: int | None = None,
    attributed: Sequence[int] | None = None,
    mixture_id: str = "",
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    on_segment: OnSegment | None = None,
    **settings: Any,
) -> Report:
    """Score the separated sources of one mixture against their references.

    Files may differ in rate and channels: each is averaged over its channels and resampled to the
    encoder's rate, and the report says so. For a test set see
    :func:`torch_mapss.evaluate_set`.

    Args:
        estimates: what a separator made: a list of paths (any format libsndfile reads), or an
            (S', T) array or tensor, or a list of (T,) ones. In the order of the references. None
            in a list: the source was not estimated.
        references: the true sources, S of them, at least two; as ``estimates``, without None.
        mixture: path or (T,) signal, for the plot, and to tell an estimate that is the mixture.
        names: one name per reference, for tables and plots; made of the file names otherwise.
        sample_rate: of arrays, in Hz; the encoder's by default. Files know theirs.
        attributed: which reference each estimate belongs to, e.g. ``(0,)`` to score the first
            source alone; all in order by default.
        mixture_id: decides which excerpts are drawn, if any are.
        device: to compute on. None: where a given ``mapss`` is, else as ``"auto"``, which is CUDA
            where there is one, else MPS, else the CPU; the summary says which.
        mapss: a :class:`~torch_mapss.MAPSS` to use, shared by many calls.
        on_segment: called with the number of segments done and in total, of clips longer than a
            segment.
        settings: what is scored and how,

            * ``measures``: a name or several of ``decomposition``, ``separation``, ``match``,
              ``bleed``; all by default. ``"decomposition"`` (clearance and fidelity) is quickest;
            * ``permute``: find the reference of each estimate by SI-SDR;
            * ``trim``: cut all signals to the shortest instead of refusing different lengths. The
              cut is at the end: nothing is aligned;
            * ``align="shift"``: move every estimate by one constant lag onto its reference, if its
              cross-correlation tells one of at most 500 ms, in whole samples; frames that it no
              longer reaches into are not scored;
            * ``channels="each"``: score every channel and average the scores, instead of scoring
              the mean of the channels; arrays are then (S, C, T);
            * ``sample_frames``: score at most so many frames, drawn with a fixed seed;
            * ``excerpts``, ``excerpt_seconds``: score so many excerpts instead of the whole, drawn
              before anything is prepared; the rows then have standard errors;
            * ``bounds``, ``confidence``, ``bounds_convention``, ``tail``: error bounds of frame
              scores, see :mod:`torch_mapss.bounds`;

            and all arguments of :class:`~torch_mapss.MAPSS` (``encoder="wav2vec2-large"`` by
            default; ``"mel"`` needs no download), ``bank_size``, ``only`` and ``without`` of its
            banks. ``segment`` is ``"auto"`` here.

    Returns:
        A :class:`Report`.

    Raises:
        TypeError, ValueError: input that cannot be scored; the message says what to do.
        FileNotFoundError: no such file.
        ImportError: a package needed for it is missing; the message names it.

    Warns:
        UserWarning: what makes the scores mean something else than a reader expects, as a silent
            estimate or a delay, see :attr:`Report.findings`.
    """
    given = options.checked_options(settings)
    if sample_rate is not None:
        sample_rate = checks.check_whole(sample_rate, "sample_rate", 1)
    request = options.request_of(given)
    device = options.chosen_device(device, mapss, given)
    scorer = options.scorer_of(given, device, mapss)
    each = request.channels == "each"

    def read(signals: Any, kind: str) -> tuple[Clip | None, ...]:
        return audio_input.read_set(signals, kind, scorer.sample_rate, sample_rate, each)

    true = _complete(read(references, "references"), names)
    found = read(estimates, "estimates")
    mixed = None if mixture is None else read([mixture], "mixture")[0]
    if sample_rate is not None and all(c is None or c.path for c in (*found, *true, mixed)):
        raise ValueError(
            f"sample_rate={sample_rate} was passed, but all input are files, which state their "
            "own rate. Leave sample_rate out; it is for arrays."
        )
    entry = read_entry(
        scorer, found, true, request, options.device_of(scorer, device), attributed, mixed
    )
    report = score_entries(scorer, [entry], request, mixture_id, on_segment)[0]
    for finding in report.findings:
        checks.warn_user(f"{finding.text}.")
    return report


def _complete(given: Sequence[Clip | None], names: Sequence[str] | None) -> tuple[Clip, ...]:
    """References, none of them missing, named."""
    found = [clip for clip in given if clip is not None]
    if len(found) < len(given):
        raise ValueError(
            "references must all be there, got None for one of them: an estimate is compared with "
            "every source of the mixture."
        )
    if names is None:
        return tuple(found)
    names = names if isinstance(names, str) else list(names)
    blank = any(not str(name).strip() for name in names)
    if isinstance(names, str) or len(names) != len(found) or blank:
        raise ValueError(
            f"names must be one name for each of the {len(found)} references, got {names!r}."
        )
    return tuple(clip for clip in audio_input.renamed(found, names) if clip is not None)


# ------------------------------------------------------------------------------------------------
# Signals
# ------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One system's estimates of a mixture, ready to be scored."""

    signals: Signals
    lags: Lags
    outputs: Tensor  # (C, S', T), moved by the lags that are removed
    truth: Tensor  # (C, S, T)


def read_entry(
    scorer: MAPSS,
    estimates: Sequence[Clip | None],
    references: Sequence[Clip],
    request: Request,
    device: torch.device,
    attributed: Sequence[int] | None = None,
    mixture: Clip | None = None,
) -> Entry:
    """What can be refused or found out of estimates before they are scored.

    Raises:
        TypeError, ValueError: lengths, numbers or attributions that do not fit.
    """
    given, index = _present(estimates, len(references), attributed)
    if len(references) < 2:
        raise ValueError(
            f"at least two references are needed, got {len(references)}: an estimate is compared "
            "with the other sources of the mixture."
        )
    samples = audio_input.common_length(given, references, request.trim)
    both = audio_input.stack([*given, *references], samples, device)
    outputs, truth = both[:, : len(given)], both[:, len(given) :]
    # Samples that are not finite are refused by the scorer, unless it was told not to look.
    mono_out, mono_true = (x.mean(0).nan_to_num(0.0, 0.0, 0.0) for x in (outputs, truth))
    if request.permute:
        if attributed is not None:
            raise ValueError("permute finds what attributed states: pass one of them.")
        index = tuple(audio.match_sources(mono_out, mono_true).tolist())
    grid = scorer.grid
    signals = Signals(
        estimates=given,
        references=references,
        outputs=mono_out,
        truth=mono_true,
        attributed=checks.check_attributed(index, len(given), len(references)),
        mixture=mixture,
        rate=scorer.sample_rate,
        encoder_rate=grid.sample_rate,
        hop_s=grid.hop / grid.sample_rate,
        frame_s=grid.receptive_field / grid.sample_rate,
    )
    lags = measure_lags(signals, request.align is not None)
    return Entry(signals, lags, _earlier(outputs, lags.removed), truth)


def _present(
    estimates: Sequence[Clip | None], sources: int, attributed: Sequence[int] | None
) -> tuple[tuple[Clip, ...], tuple[int, ...] | None]:
    """The estimates there are, and the reference of each (None: all in order)."""
    given = tuple(clip for clip in estimates if clip is not None)
    if len(given) == len(estimates):
        return given, None if attributed is None else checks.whole_numbers(attributed, "attributed")
    if attributed is not None:
        raise ValueError("estimates hold None and attributed is given: use one of the two.")
    if len(estimates) != sources:
        raise ValueError(
            f"estimates hold None, so there must be one entry per reference ({sources}), got "
            f"{len(estimates)}."
        )
    return given, tuple(place for place, clip in enumerate(estimates) if clip is not None)


def _earlier(outputs: Tensor, lags: Sequence[int]) -> Tensor:
    """Each estimate (..., S', T) earlier by its lag, in samples."""
    if not any(lags):
        return outputs
    moved = [audio.shift(outputs[..., k, :], lag) for k, lag in enumerate(lags)]
    return torch.stack(moved, -2)


# ------------------------------------------------------------------------------------------------
# Scores
# ------------------------------------------------------------------------------------------------


def score_entries(
    scorer: MAPSS,
    entries: Sequence[Entry],
    request: Request,
    key: str = "",
    on_segment: OnSegment | None = None,
) -> list[Report]:
    """Reports of several systems on the same references, of one length, in one pass.

    Args:
        scorer: of equal rate as the signals.
        entries: one per system.
        request: what is scored and how.
        key: decides which excerpts are drawn.
        on_segment: called with the number of parts (excerpts, channels, segments) done and in
            total.
    """
    spans = spans_of(scorer, entries[0], request, key)
    channels = len(entries[0].truth)
    found: list[list[Scores]] = [[] for _ in entries]
    bounds: list[ScoreBounds | None] = [None] * len(entries)
    total = len(spans) * channels
    for done, (start, stop) in enumerate(spans):
        parts: list[list[Scores]] = [[] for _ in entries]
        for channel in range(channels):

            def tell(now: int, of: int, before: int = done * channels + channel) -> None:
                if on_segment is not None:
                    on_segment(before * of + now, total * of)

            truth = entries[0].truth[channel, :, start:stop]
            outputs = [entry.outputs[channel, :, start:stop] for entry in entries]
            indices = [entry.signals.attributed for entry in entries]
            made = _scored(scorer, outputs, truth, indices, request, tell)
            for place, (scores, bound) in enumerate(made):
                parts[place].append(scores)
                bounds[place] = bound
            tell(1, 1)
        for place, own in enumerate(parts):
            found[place].append(_averaged(own))
    times = [start / scorer.sample_rate for start, _ in spans]
    return [
        _report(scorer, entry, own, times, spans, bound, request)
        for entry, own, bound in zip(entries, found, bounds)
    ]


def spans_of(scorer: MAPSS, entry: Entry, request: Request, key: str) -> list[tuple[int, int]]:
    """The samples to be scored: excerpts, or all."""
    if request.excerpts is None:
        return [(0, entry.truth.shape[-1])]
    truth, rate = entry.signals.truth, scorer.sample_rate
    return excerpts.draw(
        truth, rate, request.excerpts, request.excerpt_seconds, scorer.config.activity, key
    )


def _scored(
    scorer: MAPSS,
    outputs: Sequence[Tensor],
    truth: Tensor,
    indices: Sequence[Sequence[int]],
    request: Request,
    on_segment: OnSegment,
) -> list[tuple[Scores, ScoreBounds | None]]:
    bank = scorer.prepare(truth, measures=request.measures)
    shared: dict[str, Any] = {"measures": request.measures, "frames": request.sample_frames}
    shared["on_segment"] = on_segment
    bounds: list[ScoreBounds | None] = [None] * len(outputs)
    if request.bounds:  # which reads the scores off the same maps
        kind: dict[str, Any] = {"convention": request.bounds_convention, "tail": request.tail}
        made = scorer.bound_systems(outputs, bank, request.confidence, indices, **kind, **shared)
        if made[0].scores is not None:
            return [(each.scores, each) for each in made if each.scores is not None]
        bounds = list(made)
    return list(zip(scorer.score_systems(outputs, bank, indices, **shared), bounds))


def _tensors(scores: Scores) -> dict[str, Tensor]:
    values = {field.name: getattr(scores, field.name) for field in fields(scores)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _averaged(channels: Sequence[Scores]) -> Scores:
    """Frame scores averaged over the channels in which they are defined."""
    if len(channels) == 1:
        return channels[0]
    changed: dict[str, Any] = {"active": torch.stack([one.active for one in channels]).any(0)}
    for name, values in _tensors(channels[0]).items():
        every = torch.stack([getattr(one, name) for one in channels])
        if name in ("active", "times"):
            continue
        if name.endswith("_defined"):
            changed[name] = every.any(0)
        elif name.endswith("_dimension"):
            changed[name] = every.amax(0)
        else:
            there = torch.stack([one.defined(name) for one in channels])
            mean = torch.where(there, every, 0.0).sum(0) / there.sum(0)
            blank = torch.nan if name == "bleed_db" else 0.0
            changed[name] = torch.where(there.any(0), mean, blank).to(values.dtype)
    return replace(channels[0], **changed)


def _joined(parts: Sequence[Scores], starts: Sequence[float]) -> Scores:
    """The frames of excerpts, one after another, at their times in the whole signal."""
    if len(parts) == 1:
        return replace(parts[0], times=parts[0].times + starts[0])
    every = [_tensors(part) for part in parts]
    found: dict[str, Any] = {name: torch.cat([one[name] for one in every], -1) for name in every[0]}
    found["times"] = torch.cat([part.times + start for part, start in zip(parts, starts)])
    return replace(parts[0], **found)


# ------------------------------------------------------------------------------------------------
# Reports
# ------------------------------------------------------------------------------------------------


def _report(
    scorer: MAPSS,
    entry: Entry,
    parts: Sequence[Scores],
    starts: Sequence[float],
    spans: Sequence[tuple[int, int]],
    bounds: ScoreBounds | None,
    request: Request,
) -> Report:
    signals, lags = entry.signals, entry.lags
    scores = _within_reach(_joined(parts, starts), lags, signals)
    looked = inspect(signals, lags)
    active = scores.active[0].cpu()
    frames = {
        name: torch.where(scores.defined(name), getattr(scores, name), torch.nan)[0].cpu()
        for name in FRAME_SCORES
        if getattr(scores, name) is not None
    }
    utterances = _columns(scores, bounds)
    errors: dict[str, float] = {}
    if request.excerpts is not None:
        by_source, errors = _sampling(parts, _columns(scores, None))
        utterances |= by_source
    return Report(
        estimates=tuple(signals.estimates),
        references=tuple(signals.references),
        attributed=tuple(signals.attributed),
        times=scores.times.cpu(),
        active=active,
        **frames,
        rows=_rows(signals, lags, looked, scores, utterances),
        sample_rate=scorer.sample_rate,
        settings={**scorer.describe(), **request._asdict()},
        versions=versions(),
        notes=_notes(signals, lags, request, spans),
        findings=looked.findings,
        device=device_name(signals.outputs.device),
        bounds=None if bounds is None else _on_cpu(bounds, scores.active),
        mixture=signals.mixture,
        errors=errors,
    )


def _within_reach(scores: Scores, lags: Lags, signals: Signals) -> Scores:
    """Without the frames that an estimate no longer reaches into, as its lag was removed."""
    if not any(lags.removed):
        return scores
    shifts = [lag / signals.rate for lag in lags.removed]
    seconds = signals.outputs.shape[-1] / signals.rate
    covered = covered_frames(shifts, scores.times, signals.frame_s, seconds)
    return replace(scores, active=scores.active & covered.to(scores.active.device))


def _columns(scores: Scores, bounds: ScoreBounds | None) -> dict[str, list[float]]:
    """Utterance scores of what was computed and what belongs to them, per estimate."""
    pooled, active = scores.utterance(), scores.active
    found = {name: getattr(pooled, name) for name in COLUMNS if hasattr(pooled, name)}
    if scores.foreign_distance is not None and scores.attributed_distance is not None:
        away = scores.foreign_distance
        found["attributed_distance"] = masked_mean(scores.attributed_distance, active)
        found["foreign_distance"] = masked_mean(away, active)
        found["log_foreign_distance"] = masked_mean(away.clamp(min=_LEAST_DISTANCE).log(), active)
    computed = {c for name in scores.measures for c in _computed(name)}
    found = {name: values for name, values in found.items() if name in computed}
    for name in ("separation_dimension", "match_dimension"):
        each = getattr(scores, name)
        if each is not None:
            found[name] = masked_mean(each.double().unsqueeze(1).expand(active.shape), active)
    if bounds is not None:
        found |= _utterance_bounds(scores, bounds)
    return {name: values[0].tolist() for name, values in found.items()}


def _computed(measure: str) -> tuple[str, ...]:
    from torch_mapss.pipeline.measures import MEASURES

    record = MEASURES[measure]
    logs = ("log_foreign_distance",) if "foreign_distance" in record.fields else ()
    return (*record.columns, *record.fields, *logs)


def _sampling(
    parts: Sequence[Scores], names: dict[str, list[float]]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Standard errors over excerpts: of the score of each estimate, and of the mean of them."""
    each = [_columns(part, None) for part in parts]
    own = [name for name in names if name in COLUMNS]
    count = len(next(iter(names.values())))
    by_source = [
        excerpts.standard_errors([{name: one[name][k] for name in own} for one in each])
        for k in range(count)
    ]
    means = [{name: _mean(one[name]) for name in own} for one in each]
    rows = {f"{name}_se": [found[name] for found in by_source] for name in own}
    return rows, excerpts.standard_errors(means)


def _mean(values: Sequence[float]) -> float:
    found = [value for value in values if not math.isnan(value)]
    return sum(found) / len(found) if found else math.nan


def _utterance_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """Radius and half-width of each utterance score, (1, S') each."""
    from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds

    found = {}
    for name in ("clearance", "fidelity", "ps", "pm"):
        each = bounds.of(name)
        if each is None:
            continue
        there = scores.defined(name)
        if name == "fidelity":  # of a root mean square: by Minkowski's inequality
            for part in ("radius", "tail"):
                found[f"{name}_{part}"] = masked_mean(getattr(each, part).square(), there).sqrt()
            continue
        pooled = pool_match_bounds(each.radius, each.tail, there)  # of a plain mean
        found |= {f"{name}_radius": pooled.radius, f"{name}_tail": pooled.tail}
        if name == "ps":
            pooled = pool_separation_bounds(scores.of("ps"), each.radius, each.tail, there)
            found |= {"ps_pesq_radius": pooled.radius, "ps_pesq_tail": pooled.tail}
    return found


def _on_cpu(bounds: ScoreBounds, active: Tensor) -> ScoreBounds:
    made: dict[str, Any] = {
        name: type(part)(*(tensor.cpu() for tensor in part))
        for name in ("clearance", "fidelity", "ps", "pm")
        if (part := bounds.of(name)) is not None
    }
    return bounds._replace(**made, active=active.cpu(), scores=None)


def _rows(
    signals: Signals,
    lags: Lags,
    looked: Any,
    scores: Scores,
    values: dict[str, list[float]],
) -> tuple[SourceRow, ...]:
    counts = scores.active[0].sum(-1).tolist()
    outputs = _earlier(signals.outputs, lags.removed)
    muted = muted_frames(outputs, scores.times, signals.frame_s, signals.rate)
    muted_counts = (muted & scores.active[0]).sum(-1).tolist()
    rows = []
    for place, (estimate, source) in enumerate(zip(signals.estimates, signals.attributed)):
        reference = signals.references[source]
        lag = lags.found[place]
        rows.append(
            SourceRow(
                source=reference.name,
                source_index=source,
                estimate=estimate.path or estimate.name,
                reference=reference.path or reference.name,
                **{name: own[place] for name, own in values.items()},
                frames=counts[place],
                total_frames=scores.active.shape[-1],
                muted_frames=muted_counts[place],
                silent=looked.silent[place],
                lag_ms=math.nan if lag is None else 1000.0 * lag / signals.rate,
                shift_ms=1000.0 * lags.removed[place] / signals.rate,
                estimate_rate=estimate.rate,
                reference_rate=reference.rate,
                estimate_bandwidth=looked.estimate_bands[place],
                reference_bandwidth=looked.reference_bands[source],
            )
        )
    return tuple(rows)


def _notes(
    signals: Signals, lags: Lags, request: Request, spans: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """What was done to the input."""
    estimates, references = signals.estimates, signals.references
    samples = signals.outputs.shape[-1]
    notes = audio_input.remarks([*references, *estimates], signals.rate, samples)
    rates = sorted({c.rate for c in (*references, *estimates) if c.rate > signals.encoder_rate})
    if rates:
        notes.append(
            f"{', '.join(map(str, rates))} Hz: what lies above {signals.encoder_rate / 2000:g} kHz "
            "is discarded before scoring"
        )
    if request.permute:
        pairs = (f"{e.name} -> {references[i].name}" for e, i in zip(estimates, signals.attributed))
        notes.append(f"attributed by SI-SDR: {', '.join(pairs)}")
    for clip, lag in zip(estimates, lags.removed):
        if lag:
            notes.append(
                f"{clip.path or clip.name}: a lag of {1000 * lag / signals.rate:.2f} ms was removed"
            )
    if request.excerpts is not None:
        drawn = ", ".join(f"{a / signals.rate:.2f}-{b / signals.rate:.2f}" for a, b in spans)
        notes.append(f"excerpts scored (s): {drawn}")
    return tuple(notes)
