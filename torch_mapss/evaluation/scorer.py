"""Files or arrays of one mixture in, scores of its estimates out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.bounds.frames import CONVENTIONS, TAILS, check_confidence
from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds
from torch_mapss.core import checks
from torch_mapss.core.aggregate import masked_mean
from torch_mapss.core.devices import best_device, device_name
from torch_mapss.evaluation import clips
from torch_mapss.evaluation.clips import Clip
from torch_mapss.evaluation.inspection import (
    Inspection,
    Lags,
    Signals,
    covered_frames,
    inspect,
    measure_lags,
    muted_frames,
)
from torch_mapss.evaluation.report import Report, SourceRow, versions
from torch_mapss.pipeline.records import ReferenceBank, ScoreBounds, Scores

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS

# A distance below this is rounding; its logarithm must not outweigh all others.
_LEAST_DISTANCE = 1e-6


# ------------------------------------------------------------------------------------------------
# The call
# ------------------------------------------------------------------------------------------------


def evaluate(
    *,
    estimates: Any,
    references: Any,
    mixture: Any = None,
    names: Sequence[str] | None = None,
    sample_rate: int | None = None,
    attributed: Sequence[int] | None = None,
    permute: bool = False,
    trim: bool = False,
    bounds: bool = False,
    confidence: float = 0.95,
    sample_frames: int | None = None,
    align: str | None = None,
    bounds_convention: str | None = None,
    tail: str = "concentration",
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    prepared: PreparedOnce | None = None,
    on_stage: Callable[[str], object] | None = None,
    on_segment: Callable[[int, int], object] | None = None,
    **options: Any,
) -> Report:
    """Score the separated sources of one mixture against their references.

    PS (Perceptual Separation, leakage) and PM (Perceptual Match, distortion) lie in [0, 1], higher
    is better. Files may differ in rate and channels: each is mixed down to the mean of its
    channels and resampled to the encoder's rate, and the report says so.

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
        permute: find out which reference each estimate belongs to, by SI-SDR.
        trim: cut all signals to the shortest instead of refusing different lengths. The cut is at
            the end: nothing is aligned.
        bounds: compute error radius and half-width of every frame as well (takes longer).
        confidence: of the half-widths.
        sample_frames: score at most so many frames, drawn at random with a fixed seed: quicker,
            and means stay unbiased. All by default.
        align: ``"shift"`` moves every estimate by one constant lag onto its reference, if its
            cross-correlation tells one of at most 500 ms, in whole samples; frames that it no
            longer reaches into are not scored. Nothing is moved by default.
        bounds_convention: of the bounds, ``"paper"``, ``"reference"`` or ``"derived"``; that of
            the scores by default. See :mod:`torch_mapss.bounds`.
        tail: of the bounds, ``"concentration"``, the paper's inequalities, or ``"bootstrap"``,
            which is narrow and holds for PS, and takes longer.
        device: to compute on. None: where a given ``mapss`` is, else as ``"auto"``, which is CUDA
            where there is one, else MPS, else the CPU; the summary says which.
        mapss: a :class:`~torch_mapss.MAPSS` to use, shared by many calls.
        prepared: shared by the calls for several systems on one mixture: its references are then
            distorted and encoded once, ``prepared = PreparedOnce(mapss)``.
        on_stage: told the name of each stage as it begins, for a progress display.
        on_segment: told how many segments of a clip longer than ``segment`` are scored and how many
            there are: as scoring begins, and after each.
        options: of :class:`~torch_mapss.MAPSS` otherwise: ``encoder="wav2vec2-large"`` (the
            default; ``"mel"`` needs no download), ``layer``, ``seed``, ``convention``, ...

    Returns:
        A :class:`Report`.

    Raises:
        TypeError, ValueError: input that cannot be scored; the message says what to do.
        FileNotFoundError: no such file.
        ImportError: a package needed for it is missing; the message names it.

    Warns:
        UserWarning: what makes the scores mean something else than a reader thinks, as a silent
            estimate or a delay, see :attr:`Report.findings`.
    """
    # Long for its signature; below it stands one call per stage.
    if sample_rate is not None:
        sample_rate = checks.check_whole(sample_rate, "sample_rate", 1)
    request = Request(
        permute, trim, bounds, confidence, sample_frames, align, bounds_convention, tail
    ).checked()
    device = chosen_device(device, mapss, options)
    scorer = make_scorer(mapss, device, options)
    place = device_of(scorer, device)
    stage = on_stage or _silent
    stage("reading files")
    truth = clips.read_set(references, "references", scorer.sample_rate, sample_rate)
    true = _complete(truth, names)
    found = clips.read_set(estimates, "estimates", scorer.sample_rate, sample_rate)
    mixed = _read_mixture(mixture, scorer.sample_rate, sample_rate)
    _check_sample_rate(sample_rate, [*found, *true, mixed])
    report = score_clips(
        scorer,
        found,
        true,
        request,
        attributed=attributed,
        mixture=mixed,
        device=place,
        prepared=prepared,
        on_stage=stage,
        on_segment=on_segment,
    )
    for finding in report.findings:
        checks.warn_user(f"{finding.text}.")
    return report


class PreparedOnce:
    """Remembers the last references and their bank.

    Args:
        mapss: prepares the banks.
    """

    def __init__(self, mapss: MAPSS) -> None:
        self.mapss = mapss
        self._last: tuple[Tensor, ReferenceBank] | None = None

    def __call__(self, references: Tensor) -> ReferenceBank:
        """The bank of (S, T) references, prepared only if they are not the last ones."""
        if self._last is not None:
            known, bank = self._last
            if known.device == references.device and torch.equal(known, references):
                return bank
        self._last = None  # frees the old bank before the new one is made
        bank = self.mapss.prepare(references)
        self._last = references, bank
        return bank


class Request(NamedTuple):
    """What is asked of a scoring, beside the scorer's own settings."""

    permute: bool = False
    trim: bool = False
    bounds: bool = False
    confidence: float = 0.95
    sample_frames: int | None = None
    align: str | None = None
    bounds_convention: str | None = None  # None: that of the scores
    tail: str = "concentration"

    def checked(self) -> Request:
        """Itself.

        Raises:
            TypeError, ValueError: a setting that is none.
        """
        check_confidence(self.confidence)
        check_align(self.align)
        if self.bounds_convention is not None:
            checks.check_choice(self.bounds_convention, "bounds_convention", CONVENTIONS)
        checks.check_choice(self.tail, "tail", TAILS)
        if self.sample_frames is not None:
            checks.check_whole(self.sample_frames, "sample_frames", 1)
        return self


def check_align(align: str | None) -> None:
    """Refuse another way to align than those there are.

    Raises:
        ValueError: it is none of them.
    """
    if align not in (None, "shift"):
        raise ValueError(
            f"align must be None or 'shift', which removes one constant lag, got {align!r}."
        )


def make_scorer(
    mapss: MAPSS | None, device: torch.device | str | None, options: Mapping[str, Any]
) -> MAPSS:
    """The MAPSS given, or one of the options.

    Raises:
        ValueError: both are given.
    """
    if mapss is not None:
        if options:
            raise ValueError(
                f"{', '.join(sorted(options))} cannot be applied to a MAPSS that is already made. "
                "Set it there, or leave mapss out."
            )
        return mapss if device is None else mapss.to(device)
    from torch_mapss.pipeline.mapss import MAPSS as Scorer

    if isinstance(options.get("encoder", ""), str | os.PathLike):
        return Scorer(device=device, **options)
    made = Scorer(**options)  # of an encoder that is there already, and moves
    return made if device is None else made.to(device)


def chosen_device(
    device: torch.device | str | None, mapss: MAPSS | None, options: Mapping[str, Any]
) -> torch.device | None:
    """The device that is meant; None: where the scorer or encoder that was given is.

    "auto", and None where neither was given, take the fastest there is.
    """
    named = mapss is None and isinstance(options.get("encoder", ""), str | os.PathLike)
    if device == "auto" or (device is None and named):
        return best_device()
    return None if device is None else torch.device(device)


def device_of(scorer: MAPSS, device: torch.device | str | None) -> torch.device:
    """Where the waveforms belong: ``device``, or where the encoder's weights are."""
    if device is not None:
        return torch.device(device)
    weights = [*scorer.encoder.parameters(), *scorer.encoder.buffers()]
    return weights[0].device if weights else torch.device("cpu")


def _complete(given: Sequence[Clip | None], names: Sequence[str] | None) -> tuple[Clip, ...]:
    """References, none of them missing, named."""
    found = [clip for clip in given if clip is not None]
    if len(found) < len(given):
        raise ValueError(
            "references must all be there, got None for one of them: PS compares an estimate with "
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
    return tuple(clip for clip in clips.renamed(found, names) if clip is not None)


def _silent(stage: str) -> None:
    del stage


def score_clips(
    scorer: MAPSS,
    estimates: Sequence[Clip | None],
    references: Sequence[Clip],
    request: Request,
    *,
    device: torch.device,
    attributed: Sequence[int] | None = None,
    mixture: Clip | None = None,
    prepared: Callable[[Tensor], ReferenceBank] | None = None,
    on_stage: Callable[[str], object] = _silent,
    on_segment: Callable[[int, int], object] | None = None,
) -> Report:
    """Score clips that are read already.

    Args:
        scorer: of equal rate as the clips.
        estimates: one per reference with None for those not estimated, or as ``attributed`` says.
        references: the sources of the mixture.
        request: what is wanted.
        device: to compute on.
        attributed: the reference of each estimate.
        mixture: for the plot, and to tell an estimate that is the mixture.
        prepared: turns reference waveforms (S, T) into a bank, e.g. from a cache.
        on_stage: told the name of each stage as it begins.
        on_segment: told how many segments of a long clip are scored, and of how many.
    """
    entry = entered(
        scorer, estimates, references, request, device, attributed=attributed, mixture=mixture
    )
    return score_entries(scorer, [entry], request, prepared, on_stage, on_segment)[0]


class Entry(NamedTuple):
    """One system's estimates of a mixture, ready to be scored."""

    signals: Signals
    lags: Lags
    outputs: Tensor  # (S', T), moved by the lags that are removed
    truth: Tensor  # (S, T)


def entered(
    scorer: MAPSS,
    estimates: Sequence[Clip | None],
    references: Sequence[Clip],
    request: Request,
    device: torch.device,
    *,
    attributed: Sequence[int] | None = None,
    mixture: Clip | None = None,
) -> Entry:
    """What can be refused or found out of estimates before they are scored."""
    given, index = _present(estimates, len(references), attributed)
    if len(references) < 2:
        raise ValueError(
            f"at least two references are needed, got {len(references)}: PS compares an estimate "
            "with the other sources of the mixture."
        )
    samples = clips.common_length(given, references, request.trim)
    outputs = clips.stack(given, samples, device)
    truth = clips.stack(references, samples, device)
    if request.permute:
        index = _matched(outputs, truth, attributed)
    index = checks.check_attributed(index, len(given), len(references))
    checks_of = _signals(scorer, given, references, outputs, truth, index, mixture)
    lags = measure_lags(checks_of, request.align is not None)
    return Entry(checks_of, lags, _moved(outputs, lags.removed), truth)


def score_entries(
    scorer: MAPSS,
    entries: Sequence[Entry],
    request: Request,
    prepared: Callable[[Tensor], ReferenceBank] | None = None,
    on_stage: Callable[[str], object] = _silent,
    on_segment: Callable[[int, int], object] | None = None,
) -> list[Report]:
    """Reports of several systems on the same references, of one length, in one pass."""
    on_stage("encoding references and distortions")
    bank = (prepared or scorer.prepare)(entries[0].truth)
    on_stage("scoring frames and their bounds" if request.bounds else "scoring frames")
    reports = []
    for entry, (scores, bounds) in zip(
        entries, _scored(scorer, entries, bank, request, on_segment)
    ):
        scores, bounds = _within_reach(scores, bounds, entry.lags, entry.signals)
        reports.append(_assembled(scorer, entry.signals, entry.lags, scores, bounds, request))
    return reports


def _signals(
    scorer: MAPSS,
    estimates: Sequence[Clip],
    references: Sequence[Clip],
    outputs: Tensor,
    truth: Tensor,
    index: tuple[int, ...],
    mixture: Clip | None,
) -> Signals:
    """What is to be looked at, samples that are not finite as zeros: the scorer has refused them,
    unless it was told not to look.
    """
    grid = scorer.grid
    return Signals(
        estimates=estimates,
        references=references,
        outputs=outputs.nan_to_num(0.0, 0.0, 0.0),
        truth=truth.nan_to_num(0.0, 0.0, 0.0),
        attributed=index,
        mixture=mixture,
        rate=scorer.sample_rate,
        encoder_rate=grid.sample_rate,
        hop_s=grid.hop / grid.sample_rate,
        frame_s=grid.receptive_field / grid.sample_rate,
    )


def _moved(outputs: Tensor, lags: Sequence[int]) -> Tensor:
    """Each estimate (S', T) earlier by its lag, in samples."""
    if not any(lags):
        return outputs
    return torch.stack([audio.shift(wave, lag) for wave, lag in zip(outputs, lags)])


def _scored(
    scorer: MAPSS,
    entries: Sequence[Entry],
    bank: ReferenceBank,
    request: Request,
    on_segment: Callable[[int, int], object] | None,
) -> list[tuple[Scores, ScoreBounds | None]]:
    outputs = [entry.outputs for entry in entries]
    indices = [entry.signals.attributed for entry in entries]
    frames: dict[str, Any] = {"frames": request.sample_frames, "on_segment": on_segment}
    bounds: list[ScoreBounds | None] = [None] * len(entries)
    if request.bounds:  # which reads the scores off the same maps
        kind: dict[str, Any] = {"convention": request.bounds_convention, "tail": request.tail}
        made = scorer.bound_systems(outputs, bank, request.confidence, indices, **kind, **frames)
        if made[0].scores is not None:
            return [(each.scores, each) for each in made if each.scores is not None]
        bounds = list(made)
    return list(zip(scorer.score_systems(outputs, bank, indices, **frames), bounds))


def _within_reach(
    scores: Scores, bounds: ScoreBounds | None, lags: Lags, signals: Signals
) -> tuple[Scores, ScoreBounds | None]:
    """Without the frames that an estimate no longer reaches into, as its lag was removed."""
    if not any(lags.removed):
        return scores, bounds
    shifts = [lag / signals.rate for lag in lags.removed]
    seconds = signals.outputs.shape[-1] / signals.rate
    covered = covered_frames(shifts, scores.times, signals.frame_s, seconds)
    active = scores.active & covered.to(scores.active.device)
    kept = None if bounds is None else bounds._replace(active=active)
    return replace(scores, active=active), kept


def _present(
    estimates: Sequence[Clip | None], sources: int, attributed: Sequence[int] | None
) -> tuple[tuple[Clip, ...], tuple[int, ...] | None]:
    """The estimates there are, and the reference of each (None: all in order)."""
    given = tuple(clip for clip in estimates if clip is not None)
    if len(given) == len(estimates):
        index = None if attributed is None else checks.whole_numbers(attributed, "attributed")
        return given, index
    if attributed is not None:
        raise ValueError(
            "estimates hold None and attributed is given: say it in one of the two ways only."
        )
    if len(estimates) != sources:
        raise ValueError(
            f"estimates hold None, so there must be one entry per reference ({sources}), got "
            f"{len(estimates)}."
        )
    return given, tuple(place for place, clip in enumerate(estimates) if clip is not None)


def _matched(outputs: Tensor, truth: Tensor, attributed: object) -> tuple[int, ...]:
    if attributed is not None:
        raise ValueError(
            "permute and attributed exclude each other: the one looks for what the other states."
        )
    return tuple(audio.match_sources(outputs, truth).tolist())


def _assembled(
    scorer: MAPSS,
    signals: Signals,
    lags: Lags,
    scores: Scores,
    bounds: ScoreBounds | None,
    request: Request,
) -> Report:
    active = scores.active[0].cpu()

    def frames(name: str) -> Tensor:
        return torch.where(active, getattr(scores, name)[0].cpu(), torch.nan)

    looked = inspect(signals, lags)
    return Report(
        estimates=tuple(signals.estimates),
        references=tuple(signals.references),
        attributed=tuple(signals.attributed),
        times=scores.times.cpu(),
        active=active,
        ps=frames("ps"),
        pm=frames("pm"),
        log_pm=frames("log_pm"),
        attributed_distance=frames("attributed_distance"),
        foreign_distance=frames("foreign_distance"),
        rows=_source_rows(signals, lags, looked, scores, bounds),
        sample_rate=scorer.sample_rate,
        settings={**scorer.describe(), **request._asdict()},
        versions=versions(),
        notes=_notes(signals, lags, request),
        findings=looked.findings,
        device=device_name(signals.outputs.device),
        bounds=None if bounds is None else _on_cpu(bounds),
        mixture=signals.mixture,
        pm_rank=None if scores.pm_rank is None else frames("pm_rank"),
    )


def _notes(signals: Signals, lags: Lags, request: Request) -> tuple[str, ...]:
    """What was done to the input."""
    estimates, references = signals.estimates, signals.references
    samples = signals.outputs.shape[-1]
    notes = clips.remarks([*references, *estimates], signals.rate, samples)
    if request.permute:
        pairs = (f"{e.name} -> {references[i].name}" for e, i in zip(estimates, signals.attributed))
        notes.append(f"attributed by SI-SDR: {', '.join(pairs)}")
    for clip, lag in zip(estimates, lags.removed):
        if lag:
            notes.append(
                f"{clip.path or clip.name}: a lag of {1000 * lag / signals.rate:.2f} ms was removed"
            )
    return tuple(notes)


def _on_cpu(bounds: ScoreBounds) -> ScoreBounds:
    ps, pm = (type(part)(*(tensor.cpu() for tensor in part)) for part in (bounds.ps, bounds.pm))
    return bounds._replace(ps=ps, pm=pm, active=bounds.active.cpu(), scores=None)


def _source_rows(
    signals: Signals, lags: Lags, looked: Inspection, scores: Scores, bounds: ScoreBounds | None
) -> tuple[SourceRow, ...]:
    numbers = {name: values[0].tolist() for name, values in _columns(scores, bounds).items()}
    counts = scores.active[0].sum(-1).tolist()
    muted = _muted(signals, lags, scores)
    rows = []
    for place, (estimate, source) in enumerate(zip(signals.estimates, signals.attributed)):
        reference = signals.references[source]
        lag, moved = lags.found[place], lags.removed[place]
        rows.append(
            SourceRow(
                source=reference.name,
                source_index=source,
                estimate=estimate.path or estimate.name,
                reference=reference.path or reference.name,
                frames=counts[place],
                total_frames=scores.active.shape[-1],
                muted_frames=muted[place],
                silent=looked.silent[place],
                lag_ms=math.nan if lag is None else 1000.0 * lag / signals.rate,
                shift_ms=1000.0 * moved / signals.rate,
                estimate_rate=estimate.rate,
                reference_rate=reference.rate,
                estimate_bandwidth=looked.estimate_bands[place],
                reference_bandwidth=looked.reference_bands[source],
                **{name: values[place] for name, values in numbers.items()},
            )
        )
    return tuple(rows)


def _columns(scores: Scores, bounds: ScoreBounds | None) -> dict[str, Tensor]:
    """Utterance scores and what belongs to them, (1, S') each; NaN where no frame is scored."""
    pooled, active = scores.utterance(), scores.active
    logs = torch.where(active, scores.log_pm, torch.nan)
    columns = {
        "ps": pooled.ps,
        "pm": pooled.pm,
        "log_pm": pooled.log_pm,
        "log_pm_median": logs.nanquantile(0.5, dim=-1),
        "ps_pesq": pooled.ps_pesq,
        "attributed_distance": masked_mean(scores.attributed_distance, active),
        "foreign_distance": masked_mean(scores.foreign_distance, active),
        "log_foreign_distance": masked_mean(
            scores.foreign_distance.clamp(min=_LEAST_DISTANCE).log(), active
        ),
    }
    if scores.pm_rank is not None:
        columns["pm_rank"] = pooled.pm_rank
    for name in ("separation_dimension", "match_dimension"):
        each = getattr(scores, name).to(scores.ps).unsqueeze(1).expand_as(scores.ps)
        columns[name] = masked_mean(each, active)
    return columns if bounds is None else columns | _utterance_bounds(scores, bounds)


def _muted(signals: Signals, lags: Lags, scores: Scores) -> list[int]:
    """Scored frames of each estimate in which it is muted."""
    outputs = _moved(signals.outputs, lags.removed)
    muted = muted_frames(outputs, scores.times, signals.frame_s, signals.rate)
    found: list[int] = (muted & scores.active[0]).sum(-1).tolist()
    return found


def _utterance_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """Radius and half-width of each utterance score, (1, S') each."""
    active = scores.active
    found = {
        "ps": pool_match_bounds(bounds.ps.radius, bounds.ps.tail, active),  # of a plain mean
        "pm": pool_match_bounds(bounds.pm.radius, bounds.pm.tail.nan_to_num(), active),
        "ps_pesq": pool_separation_bounds(scores.ps, bounds.ps.radius, bounds.ps.tail, active),
    }
    columns = {
        f"{name}_{part}": getattr(pooled, part)
        for name, pooled in found.items()
        for part in ("radius", "tail")
    }
    stated = ~bounds.pm.tail.isnan().any(-1)  # the conformal convention states none
    columns["pm_tail"] = torch.where(stated, columns["pm_tail"], torch.nan)
    return columns


def _read_mixture(mixture: Any, rate: int, sample_rate: int | None) -> Clip | None:
    if mixture is None:
        return None
    return clips.read_set([mixture], "mixture", rate, sample_rate)[0]


def _check_sample_rate(sample_rate: int | None, clips: Sequence[Clip | None]) -> None:
    if sample_rate is not None and all(clip is None or clip.path is not None for clip in clips):
        raise ValueError(
            f"sample_rate={sample_rate} was passed, but all input are files, which state their "
            "own rate. Leave sample_rate out; it is for arrays."
        )
