"""The public scoring of one mixture, from files or arrays, into a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from torch_mapss.core import checks
from torch_mapss.evaluation.report import Report
from torch_mapss.evaluation.score import Scorer
from torch_mapss.pipeline.segments import OnSegment

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
    mixture_id: str = "",
    device: torch.device | str | None = None,
    mapss: MAPSS | None = None,
    on_segment: OnSegment | None = None,
    **settings: Any,
) -> Report:
    """Score the separated sources of one mixture against their references.

    Files may differ in rate and channels: each is averaged over its channels and resampled to the
    encoder's rate, and the report says so. For test sets, see :func:`torch_mapss.evaluate_set`.

    Args:
        estimates: the output of a separator: a list of paths (any format that libsndfile reads), an
            (S', T) array or tensor, or a list of (T,) ones, in the order of the references. None in
            a list: the source was not estimated.
        references: the S true sources, at least two; as ``estimates``, but without None.
        mixture: path or (T,) signal, for the plot, and to recognise an estimate that is the
            mixture.
        names: one name per reference, for tables and plots; by default made from the file names.
        sample_rate: sample rate of arrays in Hz; the encoder's by default. Files state theirs.
        attributed: index of the reference of each estimate, e.g. ``(0,)`` to score only the first
            source; all in order by default.
        mixture_id: name of the mixture in saved reports; also seeds the draw of excerpts.
        device: device to compute on. None: that of a given ``mapss``, else as ``"auto"``: CUDA if
            available, else MPS, else the CPU. The summary names it.
        mapss: an existing :class:`~torch_mapss.MAPSS`, for sharing between calls.
        on_segment: progress callback ``(done, total)`` for the segments of long clips.
        settings: what to score, and how:

            * ``measures``: one or several of ``decomposition``, ``separation``, ``match``,
              ``bleed``, ``bss`` (SDR, SIR and SAR), or names of their scores; all but ``bss`` by
              default. ``"decomposition"`` (clearance and fidelity) is the fastest. SI-SDR is always
              included;
            * ``permute``: find the reference of each estimate by SI-SDR;
            * ``trim``: cut all signals at the end to the shortest, instead of refusing different
              lengths. This does not align them;
            * ``align="shift"``: shift each estimate by a constant lag onto its reference, if their
              cross-correlation shows one of at most 500 ms, in whole samples; frames that the
              shifted estimate no longer covers are not scored;
            * ``channels="each"``: score every channel, and average the scores of an estimate over
              its channels, instead of scoring the mean of the channels; arrays are then (S, C, T).
              :attr:`Report.channels` has the scores of each channel;
            * ``sample_frames``: largest number of frames to score, drawn by the mixture's id;
            * ``excerpts``, ``excerpt_seconds``: number and length of excerpts to score instead of
              the whole, drawn before anything is prepared; the rows then have standard errors;
            * ``bounds``, ``confidence``, ``bounds_convention``, ``tail``: error bounds of frame
              scores, see :mod:`torch_mapss.bounds`;

            and all arguments of :class:`~torch_mapss.MAPSS` (``encoder="wav2vec2-large"`` by
            default; ``"mel"`` needs no download), and ``bank_size``, ``only`` and ``without`` for
            its banks. ``segment`` is ``"auto"`` by default.

    Returns:
        A :class:`Report`.

    Raises:
        TypeError, ValueError: input that cannot be scored; the message says what to do.
        FileNotFoundError: a file does not exist.
        ImportError: a required package is missing; the message names it.

    Warns:
        UserWarning: findings about the signals that change how the scores should be read, such as a
            silent estimate or a delay, see :attr:`Report.findings`.
    """
    if sample_rate is not None:
        sample_rate = checks.check_whole(sample_rate, "sample_rate", 1)
    scorer = Scorer.of(settings, device, mapss)
    if scorer.settings.permute and attributed is not None:
        raise ValueError("permute and attributed exclude each other: pass one of them.")
    truth = scorer.references(references, names, sample_rate)
    outputs = scorer.read(estimates, "estimates", sample_rate)
    mixed = None if mixture is None else scorer.read([mixture], "mixture", sample_rate)[0]
    clips = [clip for clip in (*outputs, *truth.clips, mixed) if clip is not None]
    if sample_rate is not None and all(clip.path for clip in clips):
        raise ValueError(
            f"sample_rate={sample_rate} was passed, but all inputs are files, which state their "
            "own rate. Leave sample_rate out; it is for arrays."
        )
    inspected = scorer.inspect(outputs, truth, attributed, mixed)
    (report,) = scorer.reports([inspected], mixture_id, on_segment)
    for finding in report.findings:
        checks.warn_user(f"{finding.text}.")
    has_arrays = any(clip.path is None for clip in clips)
    if has_arrays and sample_rate is None and scorer.mapss.config.rate is None:
        rate = report.sample_rate
        note = f"arrays were taken to be at {rate} Hz, the encoder's rate (sample_rate=None)"
        report = replace(report, notes=(note, *report.notes))
    return report
