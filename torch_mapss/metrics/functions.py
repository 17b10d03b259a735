"""Scores of every item of a batch, as functions like those of torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.eager import eager
from torch_mapss.metrics.scored_batch import (
    Target,
    item_means,
    reduced_score,
    score_batch,
)
from torch_mapss.pipeline.inputs import check_pit
from torch_mapss.pipeline.mapss import MAPSS, EncoderChoice, resolve
from torch_mapss.score_table import SCORES

__all__ = ["bleed", "clearance", "fidelity", "perceptual_match", "perceptual_separation"]


def perceptual_separation(
    preds: Tensor, target: Target, mapss: MAPSS | None = None, **options: Any
) -> Tensor:
    """PS, freedom from leakage, of every item of a batch: in [0, 1], higher is better.

    Args:
        preds: (B, S', T) estimates at the encoder's rate (16 kHz by default; ``sample_rate=``
            resamples).
        target: (B, S, T) references, S at least 2, or a bank of them (:meth:`MAPSS.prepare`).
        mapss: scorer to use; made from ``encoder`` and ``options`` if None.
        encoder: as in :class:`~torch_mapss.MAPSS`.
        reduction: ``"mean"`` over frames and sources, (B,); ``"source"``: (B, S');
            ``"pesq"``: the paper's pooling over frames, then the mean over sources, (B,) in
            [1.085, 1.315]; ``"none"``: frame scores (B, S', F).
        lengths: (B,) true lengths in samples of a padded batch.
        attributed: (S',) the reference each estimate belongs to; all in order if None.
        pit: ``"si_sdr"`` gives each reference the estimate that maximises the total SI-SDR of its
            mixture; scores then come in the order of the references. None: estimates are in order.
        options: further keywords of :class:`~torch_mapss.MAPSS` (``sample_rate``, ``layer``, ...).

    Returns:
        The scores, differentiable in ``preds``, NaN where undefined (see the module).

    Raises:
        TypeError, ValueError: input that cannot be scored, see :meth:`MAPSS.forward`; (S, T) or
            (B, T) input, which cannot be told apart.

    Example:
        >>> import torch
        >>> from torch_mapss.metrics import perceptual_separation
        >>> target = torch.randn(4, 2, 8000)
        >>> perceptual_separation(target, target, encoder="mel").shape
        torch.Size([4])

    It fits torchmetrics' :func:`permutation_invariant_training` with ``mode="permutation-wise"``;
    bind options with ``functools.partial(perceptual_separation, mapss=mapss)``, as old versions
    of torchmetrics do not pass them on. Speaker-wise mode passes one estimate and one reference,
    for which PS is undefined; it is refused. All S! permutations are scored, and the references are
    distorted again for each: ``pit="si_sdr"`` finds the order by SI-SDR at a fraction of the cost.
    """
    return _per_item("ps", preds, target, mapss, **options)


def perceptual_match(
    preds: Tensor, target: Target, mapss: MAPSS | None = None, *, log: bool = False, **options: Any
) -> Tensor:
    """PM, freedom from distortion, of every item of a batch: in [0, 1], higher is better.

    Args:
        preds, target, mapss, options: as in :func:`perceptual_separation`.
        reduction: ``"mean"`` over frames and sources, (B,); ``"source"``: (B, S'); ``"none"``:
            frame scores (B, S', F).
        log: log PM, at most 0: its mean over frames still ranks where PM has saturated at 0.

    Returns:
        The scores, differentiable in ``preds``, NaN where undefined (see the module).

    Raises:
        TypeError, ValueError: as in :func:`perceptual_separation`.
    """
    return _per_item("log_pm" if log else "pm", preds, target, mapss, **options)


def clearance(preds: Tensor, target: Target, mapss: MAPSS | None = None, **options: Any) -> Tensor:
    """Clearance, freedom from leakage, of every item of a batch: in [0, 1], higher is better.

    It measures how far an estimate is from the other sources, in distances of the diffusion map.
    The only encoder that is loaded is ``decomposition_encoder``, by default ``"mel"``, which needs
    no download.

    Args:
        preds, target, mapss, options: as in :func:`perceptual_separation`.
        reduction: ``"mean"`` over frames and sources, (B,); ``"source"``: (B, S'); ``"none"``:
            frame scores (B, S', F).

    Returns:
        The scores, differentiable in ``preds``, NaN where undefined (see the module).

    Raises:
        TypeError, ValueError: as in :func:`perceptual_separation`.
    """
    return _per_item("clearance", preds, target, mapss, **options)


def fidelity(preds: Tensor, target: Target, mapss: MAPSS | None = None, **options: Any) -> Tensor:
    """Fidelity, freedom from distortion, of every item of a batch: in [0, 1], higher is better.

    It measures the part of an estimate's displacement that does not point towards another source,
    in distances of the diffusion map; pooled over frames as 1 - RMS(1 - fidelity). Undefined where
    clearance is below 0.1.

    Args:
        preds, target, mapss, reduction, options: as in :func:`clearance`.

    Returns:
        The scores, (B,), (B, S') or (B, S', F), differentiable in ``preds``, NaN where undefined.

    Raises:
        TypeError, ValueError: as in :func:`perceptual_separation`.
    """
    return _per_item("fidelity", preds, target, mapss, **options)


def bleed(preds: Tensor, target: Target, mapss: MAPSS | None = None, **options: Any) -> Tensor:
    """Bleed of every item of a batch, in dB, lower is better; needs neither encoder nor bank.

    It measures the power that an estimate adds to its reference where its own source pauses and
    another one plays, relative to the reference's level where it plays; pooled over frames by mean
    power, within ±100 dB.

    Args:
        preds, target, mapss, reduction, options: as in :func:`clearance`.

    Returns:
        The levels, (B,), (B, S') or (B, S', F), NaN without such a frame.

    Raises:
        TypeError, ValueError: as in :func:`perceptual_separation`.
    """
    return _per_item("bleed_db", preds, target, mapss, **options)


@eager
def _per_item(
    score_name: str,
    preds: Tensor,
    target: Target,
    mapss: MAPSS | None,
    *,
    encoder: EncoderChoice | None = None,
    reduction: str = "mean",
    lengths: Tensor | Sequence[int] | None = None,
    attributed: Sequence[int] | Tensor | None = None,
    pit: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Tensor:
    score_name = reduced_score(score_name, reduction)
    measure = SCORES[score_name].measure
    if mapss is not None and seed != 0:
        options["seed"] = seed  # refused by MAPSS, since nothing is drawn here
    mapss = resolve(mapss, encoder, options, measure, seed)
    if isinstance(preds, Tensor) and preds.ndim == 2:
        raise ValueError(
            f"preds must have shape (B, S, T), got {tuple(preds.shape)}. If these are the sources "
            "of one mixture, pass preds.unsqueeze(0) and target.unsqueeze(0). If a permutation "
            "wrapper passed one source of each mixture: the measures compare an estimate with all "
            "sources of its mixture and have no speaker-wise value, use mode='permutation-wise'."
        )
    index = None if attributed is None else checks.attributed_sources(attributed)
    pit = check_pit(pit, index)
    batch = score_batch(mapss, preds, target, lengths, (measure,), index, pit=pit)
    if reduction == "none":
        return batch.by_frame(score_name)
    source_scores = batch.by_source([score_name])[score_name]
    return source_scores if reduction == "source" else item_means(source_scores)
