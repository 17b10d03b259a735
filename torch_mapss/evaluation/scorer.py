"""Files or arrays of one mixture in, scores of its estimates out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.evaluation import clips
from torch_mapss.evaluation.clips import Clip
from torch_mapss.evaluation.entries import entered, score_entries, silent
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.request import (
    PreparedOnce,
    Request,
    chosen_device,
    device_of,
    make_scorer,
)
from torch_mapss.pipeline.bank import ReferenceBank

if TYPE_CHECKING:
    from torch_mapss.pipeline.mapss import MAPSS


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
    stage = on_stage or silent
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
    on_stage: Callable[[str], object] = silent,
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
