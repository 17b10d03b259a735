"""Files or arrays of one mixture in, scores of its estimates out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torch_mapss import audio
from torch_mapss.bounds.frames import check_confidence
from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds
from torch_mapss.core import checks
from torch_mapss.core.aggregate import masked_mean
from torch_mapss.evaluation import clips
from torch_mapss.evaluation.clips import Clip
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
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    prepared: PreparedOnce | None = None,
    on_stage: Callable[[str], object] | None = None,
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
        mixture: path or (T,) signal, for the plot alone.
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
        device: to compute on; where a given ``mapss`` is, else the CPU.
        mapss: a :class:`~torch_mapss.MAPSS` to use, shared by many calls.
        prepared: shared by the calls for several systems on one mixture: its references are then
            distorted and encoded once, ``prepared = PreparedOnce(mapss)``.
        on_stage: told the name of each stage as it begins, for a progress display.
        options: of :class:`~torch_mapss.MAPSS` otherwise: ``encoder="wav2vec2-large"`` (the
            default; ``"mel"`` needs no download), ``layer``, ``seed``, ``convention``, ...

    Returns:
        A :class:`Report`.

    Raises:
        TypeError, ValueError: input that cannot be scored; the message says what to do.
        FileNotFoundError: no such file.
        ImportError: a package needed for it is missing; the message names it.
    """
    if sample_rate is not None:
        sample_rate = checks.check_whole(sample_rate, "sample_rate", 1)
    check_confidence(confidence)
    scorer = make_scorer(mapss, device, options)
    place = device_of(scorer, device)
    stage = on_stage or _silent
    stage("reading files")
    truth = clips.read_set(references, "references", scorer.sample_rate, sample_rate)
    true = _complete(truth, names)
    found = clips.read_set(estimates, "estimates", scorer.sample_rate, sample_rate)
    request = Request(permute, trim, bounds, confidence, sample_frames)
    mixed = _read_mixture(mixture, scorer.sample_rate, sample_rate)
    _check_sample_rate(sample_rate, [*found, *true, mixed])
    report = score_clips(
        scorer,
        found,
        true,
        request,
        attributed=attributed,
        device=place,
        prepared=prepared,
        on_stage=stage,
    )
    return report if mixed is None else replace(report, mixture=mixed)


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
    prepared: Callable[[Tensor], ReferenceBank] | None = None,
    on_stage: Callable[[str], object] = _silent,
) -> Report:
    """Score clips that are read already.

    Args:
        scorer: of equal rate as the clips.
        estimates: one per reference with None for those not estimated, or as ``attributed`` says.
        references: the sources of the mixture.
        request: what is wanted.
        device: to compute on.
        attributed: the reference of each estimate.
        prepared: turns reference waveforms (S, T) into a bank, e.g. from a cache.
        on_stage: told the name of each stage as it begins.
    """
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
    on_stage("encoding references and distortions")
    bank = (prepared or scorer.prepare)(truth)
    on_stage("scoring frames and their bounds" if request.bounds else "scoring frames")
    options: dict[str, Any] = {"attributed": index, "frames": request.sample_frames}
    bounds = None
    if request.bounds:  # which reads the scores off the same maps
        bounds = scorer.bounds(outputs, bank, confidence=request.confidence, **options)
        assert bounds.scores is not None
        scores = bounds.scores
    else:
        with torch.no_grad():
            scores = scorer(outputs, bank, **options)
    return _assembled(scorer, given, references, index, samples, scores, bounds, request)


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
    estimates: tuple[Clip, ...],
    references: Sequence[Clip],
    attributed: tuple[int, ...] | None,
    samples: int,
    scores: Scores,
    bounds: ScoreBounds | None,
    request: Request,
) -> Report:
    index = tuple(range(len(references))) if attributed is None else attributed
    active = scores.active[0].cpu()

    def frames(name: str) -> Tensor:
        return torch.where(active, getattr(scores, name)[0].cpu(), torch.nan)

    rate = scorer.sample_rate
    notes = clips.remarks([*references, *estimates], rate, samples)
    if request.permute:
        pairs = (f"{e.name} -> {references[i].name}" for e, i in zip(estimates, index))
        notes.append(f"attributed by SI-SDR: {', '.join(pairs)}")
    return Report(
        estimates=estimates,
        references=tuple(references),
        attributed=index,
        times=scores.times.cpu(),
        active=active,
        ps=frames("ps"),
        pm=frames("pm"),
        log_pm=frames("log_pm"),
        attributed_distance=frames("attributed_distance"),
        foreign_distance=frames("foreign_distance"),
        rows=_source_rows(estimates, references, index, scores, bounds),
        sample_rate=rate,
        settings={**scorer.describe(), **request._asdict()},
        versions=versions(),
        notes=tuple(notes),
        bounds=None if bounds is None else _on_cpu(bounds),
    )


def _on_cpu(bounds: ScoreBounds) -> ScoreBounds:
    ps, pm = (type(part)(*(tensor.cpu() for tensor in part)) for part in (bounds.ps, bounds.pm))
    return bounds._replace(ps=ps, pm=pm, active=bounds.active.cpu(), scores=None)


def _source_rows(
    estimates: Sequence[Clip],
    references: Sequence[Clip],
    index: Sequence[int],
    scores: Scores,
    bounds: ScoreBounds | None,
) -> tuple[SourceRow, ...]:
    pooled, active = scores.utterance(), scores.active
    columns = {
        "ps": pooled.ps,
        "pm": pooled.pm,
        "log_pm": pooled.log_pm,
        "ps_pesq": pooled.ps_pesq,
        "attributed_distance": masked_mean(scores.attributed_distance, active),
        "foreign_distance": masked_mean(scores.foreign_distance, active),
        "log_foreign_distance": masked_mean(
            scores.foreign_distance.clamp(min=_LEAST_DISTANCE).log(), active
        ),
    }
    if bounds is not None:
        columns |= _utterance_bounds(scores, bounds)
    numbers = {name: values[0].tolist() for name, values in columns.items()}
    rows = []
    for place, (estimate, source) in enumerate(zip(estimates, index)):
        reference = references[source]
        rows.append(
            SourceRow(
                source=reference.name,
                source_index=source,
                estimate=estimate.path or estimate.name,
                reference=reference.path or reference.name,
                frames=int(pooled.frames[0, place]),
                total_frames=active.shape[-1],
                estimate_rate=estimate.rate,
                reference_rate=reference.rate,
                **{name: values[place] for name, values in numbers.items()},
            )
        )
    return tuple(rows)


def _utterance_bounds(scores: Scores, bounds: ScoreBounds) -> dict[str, Tensor]:
    """Radius and half-width of each utterance score, (1, S') each."""
    active = scores.active
    found = {
        "ps": pool_match_bounds(bounds.ps.radius, bounds.ps.tail, active),  # of a plain mean
        "pm": pool_match_bounds(bounds.pm.radius, bounds.pm.tail, active),
        "ps_pesq": pool_separation_bounds(scores.ps, bounds.ps.radius, bounds.ps.tail, active),
    }
    return {
        f"{name}_{part}": getattr(pooled, part)
        for name, pooled in found.items()
        for part in ("radius", "tail")
    }


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
