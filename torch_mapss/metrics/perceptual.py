"""PS and PM as torchmetrics metrics, and as functions in torchmetrics' manner.

How frames become one number: frame -> source (mean over its scored frames, or the paper's pooling)
-> item (mean over its defined sources) -> set (mean over the items that have one). A source is
undefined, NaN, where it is silent or never sounds together with another; an item is undefined, and
counted in ``skipped``, where all its sources are.

Metrics that share a :class:`~torch_mapss.MAPSS` share its work: one batch, handed to any number of
them, is encoded once and scored once for each measure. Sums are kept in float64, so that an epoch
gives the same value however it is split into batches and processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torch_mapss.core import checks
from torch_mapss.metrics.base import PerceptualMetric
from torch_mapss.metrics.shared_batch import Pooling, Target, item_means
from torch_mapss.pipeline.mapss import DEFAULT_ENCODER, MAPSS, EncoderChoice, resolve

__all__ = [
    "PerceptualMatch",
    "PerceptualSeparation",
    "perceptual_match",
    "perceptual_separation",
]


def perceptual_separation(
    preds: Tensor,
    target: Target,
    mapss: MAPSS | None = None,
    *,
    encoder: EncoderChoice = DEFAULT_ENCODER,
    reduction: str = "mean",
    lengths: Tensor | Sequence[int] | None = None,
    attributed: Sequence[int] | Tensor | None = None,
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
        options: further keywords of :class:`~torch_mapss.MAPSS`.

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
    :func:`torch_mapss.match_sources` finds the order by SI-SDR at a fraction of the cost.
    """
    checks.check_choice(reduction, "reduction", ("mean", "source", "pesq", "none"))
    pooling = Pooling("separation", "ps", reduction == "pesq")
    mapss = resolve(mapss, encoder, options)
    return _functional(pooling, reduction, mapss, preds, target, attributed, lengths)


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
    **options: Any,
) -> Tensor:
    """PM, freedom from distortion, of every item of a batch: in [0, 1], higher is better.

    Args:
        preds, target, mapss, encoder, lengths, attributed, options: as for
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
    pooling = Pooling("match", "log_pm" if log else "pm")
    mapss = resolve(mapss, encoder, options)
    return _functional(pooling, reduction, mapss, preds, target, attributed, lengths)


def _functional(
    pooling: Pooling,
    reduction: str,
    mapss: MAPSS,
    preds: Tensor,
    target: Target,
    attributed: Sequence[int] | Tensor | None,
    lengths: Tensor | Sequence[int] | None,
) -> Tensor:
    if isinstance(preds, Tensor) and preds.ndim == 2:
        raise ValueError(
            f"preds must have shape (B, S, T), got {tuple(preds.shape)}. If these are the sources "
            "of one mixture, pass preds.unsqueeze(0) and target.unsqueeze(0). If a permutation "
            "wrapper passed one source of each mixture: PS and PM compare an estimate with all "
            "sources of its mixture and have no speaker-wise value, use mode='permutation-wise'."
        )
    scores = mapss(preds, target, attributed, lengths, measures=pooling.measure)
    if reduction == "none":
        return pooling.frames(scores)
    sources = pooling.sources(scores)
    return sources if reduction == "source" else item_means(sources)


class PerceptualSeparation(PerceptualMetric):
    """Mean PS over a set: how free the estimates are of the other sources.

    In [0, 1], higher is better: 1 is no leakage, 1/2 means that an estimate is as close to another
    source as to its own. Input of ``update`` and ``forward``:

    - ``preds``: (B, S', T) or (S', T) estimates, at the encoder's rate (16 kHz for all but
      ``mert``; ``sample_rate=`` resamples)
    - ``target``: (B, S, T) or (S, T) references, S at least 2, or a bank made of them by
      :meth:`torch_mapss.MAPSS.prepare`
    - ``lengths``: (B,) true lengths in samples, if the batch is padded

    Args:
        mapss: a :class:`torch_mapss.MAPSS` to score with. Give one to all metrics and losses: they
            then share its encoder, and metrics also the work on a batch. Metrics that are given
            none still share the weights of a named encoder, but each encodes for itself.
        encoder: makes a MAPSS if ``mapss`` is None.
        reduction: what ``compute`` returns. ``"mean"``: a 0-dim tensor, the mean over items.
            ``"source"``: (S',), the mean of each source by its place.
            ``"pesq"``: 0-dim, with the paper's pooling over frames, in [1.085, 1.315]. ``"none"``:
            frame scores (n, S', F) on the CPU, NaN where undefined; these grow with every update.
            Lightning's ``self.log`` takes metrics of a single number. Log others by name at the end
            of the epoch, ``self.log_dict({f"ps_{i}": x for i, x in enumerate(values)})`` of
            ``values = metric.compute().flatten()``, and call ``metric.reset()``.
        attributed: (S',) the reference each estimate belongs to; all in order if None.
            ``attributed=(0,)`` scores one estimate against the first of the references.
        keep_items: also keep every item's scores, on the CPU, for :meth:`item_scores`.
        half_width: a confidence in (0, 1), e.g. 0.95: ``compute`` then returns a dictionary (log it
            at the end of the epoch: ``self.log_dict(metric.compute())``, then ``reset()``) of the
            mean ``"ps"`` and its ``"ps_half_width"``, the mean of the frames'
            error bounds (truncation plus tail): where every frame's bound holds, the mean is off
            by no more. Costs about as much again.
        frames: score at most so many frames of a batch, drawn at random: cheaper and coarser. An
            item that the draw misses counts among ``skipped``.
        kwargs: keywords of :class:`torch_mapss.MAPSS` (``layer``, ``sample_rate``, ``trim``,
            ``seed``, ...) and of :class:`torchmetrics.Metric` (``sync_on_compute``, ...).

    Attributes:
        mapss: the MAPSS in use.
        skipped: items whose score is undefined so far; they are left out of every mean.

    Raises:
        TypeError, ValueError: arguments that do not fit, see the message.

    Example:
        >>> import torch
        >>> from torch_mapss import PerceptualSeparation
        >>> target = torch.randn(2, 2, 8000)
        >>> metric = PerceptualSeparation(encoder="mel")
        >>> metric.update(target, target)
        >>> metric.compute().shape
        torch.Size([])
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        reduction: str = "mean",
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        half_width: float | None = None,
        frames: int | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_choice(reduction, "reduction", ("mean", "source", "pesq", "none"))
        pooling = Pooling("separation", "ps", reduction == "pesq")
        super().__init__(
            mapss, encoder, pooling, reduction, attributed, keep_items, half_width, frames, kwargs
        )


class PerceptualMatch(PerceptualMetric):
    """Mean PM over a set: how undistorted the estimates are.

    In [0, 1], higher is better: 1 is indistinguishable from the reference, 0 outside everything
    that the distortions of the reference reach. Input as for :class:`PerceptualSeparation`.

    Args:
        mapss, encoder, attributed, keep_items, frames, kwargs: as for
            :class:`PerceptualSeparation`.
        reduction: ``"mean"``, ``"source"`` or ``"none"``, as for :class:`PerceptualSeparation`;
            the paper's pooling of PM is the mean.
        log: accumulate log PM, at most 0. PM saturates at 0 on audible distortion; its log goes on
            ranking.
        half_width: as for :class:`PerceptualSeparation`, under ``"pm"`` and ``"pm_half_width"``;
            not with ``log``.

    Raises:
        TypeError, ValueError: arguments that do not fit, see the message.

    Example:
        >>> import torch
        >>> from torch_mapss import MAPSS, PerceptualMatch, PerceptualSeparation
        >>> from torchmetrics import MetricCollection
        >>> mapss = MAPSS("mel")
        >>> metrics = MetricCollection({"ps": PerceptualSeparation(mapss),
        ...                             "pm": PerceptualMatch(mapss)})
        >>> target = torch.randn(2, 2, 8000)
        >>> sorted(metrics(target, target))
        ['pm', 'ps']
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        encoder: EncoderChoice = DEFAULT_ENCODER,
        reduction: str = "mean",
        log: bool = False,
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        half_width: float | None = None,
        frames: int | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_choice(reduction, "reduction", ("mean", "source", "none"))
        pooling = Pooling("match", "log_pm" if log else "pm")
        super().__init__(
            mapss, encoder, pooling, reduction, attributed, keep_items, half_width, frames, kwargs
        )
