"""PS and PM as torchmetrics metrics.

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
from torch_mapss.metrics.base import PerceptualMetric, request_of
from torch_mapss.metrics.shared_batch import Pooling
from torch_mapss.pipeline.mapss import DEFAULT_ENCODER, MAPSS, EncoderChoice

__all__ = ["PerceptualMatch", "PerceptualSeparation"]


class PerceptualSeparation(PerceptualMetric):
    """Mean PS over a set: how free the estimates are of the other sources.

    In [0, 1], higher is better: 1 is no leakage, 1/2 means that an estimate is as close to another
    source as to its own. Input of ``update`` and ``forward``:

    - ``preds``: (B, S', T) or (S', T) estimates, at the encoder's rate (16 kHz for all but
      ``mert``; ``sample_rate=`` resamples)
    - ``target``: (B, S, T) or (S, T) references, S at least 2, or a bank made of them by
      :meth:`torch_mapss.MAPSS.prepare`
    - ``lengths``: (B,) true lengths in samples, if the batch is padded: each item is scored as if
      it were alone, whatever the padding holds

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
            mean ``"ps"`` and its ``"ps_half_width"``, by the one rule of
            :mod:`torch_mapss.bounds.utterance`, as :func:`torch_mapss.evaluate` reports it: a bound
            of what truncation and finite distortions do to the scores, not of how far another set
            of items would fall. Costs about as much again.
        frames: score at most so many frames of a batch, drawn at random: cheaper and coarser. An
            item that the draw misses counts among ``skipped``.
        pit: ``"si_sdr"`` for separators whose outputs come in any order: each reference gets the
            estimate that maximises the total SI-SDR of its mixture, as in the losses, and the
            places of ``reduction="source"`` are those of the references. None: they are in order.
        tail: of the half-width: ``"concentration"``, the paper's inequalities, or ``"bootstrap"``,
            which is narrow and holds for PS, and takes longer.
        bounds_convention: of the half-width, ``"paper"``, ``"reference"`` or ``"derived"``; that of
            the scores if None.
        kwargs: keywords of :class:`torch_mapss.MAPSS` (``layer``, ``trim``, ``seed``, ...;
            ``sample_rate=8000`` for input at 8 kHz, which is resampled to the encoder's rate) and
            of :class:`torchmetrics.Metric` (``sync_on_compute``, ...).

    Attributes:
        mapss: the MAPSS in use.
        skipped: items whose score is undefined so far; they are left out of every mean.

    Raises:
        TypeError, ValueError: arguments that do not fit, see the message.

    The result is float32 whatever the module around is converted to. Lightning's "bf16-true" rounds
    the signals of a batch to 8 bits before a metric sees them; on outputs of real separators (three
    mixtures, ``mel``) that moved PS by 0.0001, PM by 0.001 and log PM by 0.06.

    torchmetrics' ``PermutationInvariantTraining`` takes the function, not the class, and whole
    mixtures: ``PermutationInvariantTraining(partial(perceptual_separation, mapss=mapss),
    mode="permutation-wise")``. It scores all S! orders; ``pit="si_sdr"`` here is cheaper, and the
    order it finds does not hang on the score.

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
        pit: str | None = None,
        tail: str = "concentration",
        bounds_convention: str | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_choice(reduction, "reduction", ("mean", "source", "pesq", "none"))
        pooling = Pooling("separation", "ps", reduction == "pesq")
        request = request_of(pooling, attributed, half_width, frames, pit, tail, bounds_convention)
        super().__init__(mapss, encoder, pooling, reduction, request, keep_items, kwargs)


class PerceptualMatch(PerceptualMetric):
    """Mean PM over a set: how undistorted the estimates are.

    In [0, 1], higher is better: 1 is indistinguishable from the reference, 0 outside everything
    that the distortions of the reference reach. Input as for :class:`PerceptualSeparation`.

    Args:
        mapss, encoder, attributed, keep_items, frames, pit, tail, bounds_convention, kwargs: as
            for :class:`PerceptualSeparation`.
        reduction: ``"mean"``, ``"source"`` or ``"none"``, as for :class:`PerceptualSeparation`;
            the paper's pooling of PM is the mean.
        log: accumulate log PM, at most 0. PM saturates at 0 on audible distortion; its log goes on
            ranking.
        rank: accumulate the rank form of the conformal convention (``convention="conformal"``),
            in (0, 1] and at least 1/(N_p + 1) with N_p distortions; no gradient. Of a frame it is
            at most u with probability at most u, if estimate and distortions are exchangeable.
        half_width: as for :class:`PerceptualSeparation`, under ``"pm"`` and ``"pm_half_width"``;
            not with ``log`` and ``rank``, nor in the conformal convention.

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
        rank: bool = False,
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        half_width: float | None = None,
        frames: int | None = None,
        pit: str | None = None,
        tail: str = "concentration",
        bounds_convention: str | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_choice(reduction, "reduction", ("mean", "source", "none"))
        if log and rank:
            raise ValueError("log=True and rank=True exclude each other. Make two metrics.")
        pooling = Pooling("match", "pm_rank" if rank else "log_pm" if log else "pm")
        request = request_of(pooling, attributed, half_width, frames, pit, tail, bounds_convention)
        super().__init__(mapss, encoder, pooling, reduction, request, keep_items, kwargs)
