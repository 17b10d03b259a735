"""PS and PM of every item of a batch, as functions like those of torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.metrics.shared_batch import Target, in_order
from torch_mapss.metrics.values import LOG_PM, PM, PS, PS_PESQ, Value, item_means
from torch_mapss.pipeline.mapss import DEFAULT_ENCODER, MAPSS, EncoderChoice, resolve
from torch_mapss.pipeline.permutation import check_pit

__all__ = ["perceptual_match", "perceptual_separation"]


@with_torch_defaults
def perceptual_separation(
    preds: Tensor,
    target: Target,
    mapss: MAPSS | None = None,
    *,
    encoder: EncoderChoice = DEFAULT_ENCODER,
    reduction: str = "mean",
    lengths: Tensor | Sequence[int] | None = None,
    attributed: Sequence[int] | Tensor | None = None,
    pit: str | None = None,
    **options: Any,
) -> Tensor:
    """PS, freedom from leakage, of every item of a batch: in [0, 1], higher is better.

    Args:
        preds: (B, S', T) estimates at the encoder's rate (16 kHz by default; ``sample_rate=``
            resamples).
        target: (B, S, T) references, S at least 2, or a bank of them (:meth:`MAPSS.prepare`).
        mapss: scores with it; one is made of ``encoder`` and ``options`` if None.
        encoder: as for :class:`~torch_mapss.MAPSS`.
        reduction: ``"mean"`` over frames and sources, (B,); ``"source"``: (B, S');
            ``"pesq"``: the paper's pooling over frames, then the mean over sources, (B,) in
            [1.085, 1.315]; ``"none"``: frame scores (B, S', F).
        lengths: (B,) true lengths in samples of a padded batch.
        attributed: (S',) the reference each estimate belongs to; all in order if None.
        pit: ``"si_sdr"`` gives each reference the estimate that maximises the total SI-SDR of its
            mixture; scores then stand in the order of the references. None: they are in order.
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
    of torchmetrics do not hand them on.
    Speaker-wise mode hands over one estimate and one reference at a time, of which PS is not
    defined, and is refused. All S! permutations are scored and their references distorted anew:
    ``pit="si_sdr"`` finds the order by SI-SDR at a fraction of the cost.
    """
    checks.check_choice(reduction, "reduction", ("mean", "source", "pesq", "none"))
    value = PS_PESQ if reduction == "pesq" else PS
    mapss = resolve(mapss, encoder, options)
    return _per_item(value, reduction, mapss, preds, target, attributed, lengths, pit)


@with_torch_defaults
def perceptual_match(
    preds: Tensor,
    target: Target,
    mapss: MAPSS | None = None,
    *,
    encoder: EncoderChoice = DEFAULT_ENCODER,
    reduction: str = "mean",
    log: bool = False,
    lengths: Tensor | Sequence[int] | None = None,
    attributed: Sequence[int] | Tensor | None = None,
    pit: str | None = None,
    **options: Any,
) -> Tensor:
    """PM, freedom from distortion, of every item of a batch: in [0, 1], higher is better.

    Args:
        preds, target, mapss, encoder, lengths, attributed, pit, options: as for
            :func:`perceptual_separation`.
        reduction: ``"mean"`` over frames and sources, (B,); ``"source"``: (B, S'); ``"none"``:
            frame scores (B, S', F).
        log: log PM, at most 0: its mean over frames still ranks where PM has saturated at 0.

    Returns:
        The scores, differentiable in ``preds``, NaN where undefined (see the module).

    Raises:
        TypeError, ValueError: as for :func:`perceptual_separation`.
    """
    checks.check_choice(reduction, "reduction", ("mean", "source", "none"))
    value = LOG_PM if log else PM
    mapss = resolve(mapss, encoder, options)
    return _per_item(value, reduction, mapss, preds, target, attributed, lengths, pit)


def _per_item(
    value: Value,
    reduction: str,
    mapss: MAPSS,
    preds: Tensor,
    target: Target,
    attributed: Sequence[int] | Tensor | None,
    lengths: Tensor | Sequence[int] | None,
    pit: str | None,
) -> Tensor:
    if isinstance(preds, Tensor) and preds.ndim == 2:
        raise ValueError(
            f"preds must have shape (B, S, T), got {tuple(preds.shape)}. If these are the sources "
            "of one mixture, pass preds.unsqueeze(0) and target.unsqueeze(0). If a permutation "
            "wrapper passed one source of each mixture: PS and PM compare an estimate with all "
            "sources of its mixture and have no speaker-wise value, use mode='permutation-wise'."
        )
    if pit is not None and check_pit(pit, None if attributed is None else tuple(attributed)):
        true = None if lengths is None else checks.whole_numbers(lengths, "lengths")
        preds = in_order(mapss, preds, target, true, {value.measure}, pit)
    scores = mapss(preds, target, attributed, lengths, measures=value.measure)
    if reduction == "none":
        return value.frames(scores)
    sources = value.sources(scores)
    return sources if reduction == "source" else item_means(sources)
