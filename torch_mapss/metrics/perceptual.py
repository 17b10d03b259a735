"""The measures as torchmetrics metrics.

How frames become one number: frame -> source (a column of ``scores.utterance()``) -> item (mean
over its defined sources) -> set (mean over the items that have one). A source is undefined, NaN,
where it is silent or never active together with another (for :class:`Bleed`: never silent while
another one is active); an item is undefined, and counted in ``skipped``, where all its sources are.

Metrics that share a :class:`~torch_mapss.MAPSS` share its work: one batch, handed to any number of
them, is encoded once and scored once for each measure. Sums are kept in float64, so that an epoch
gives the same value however it is split into batches and processes.
"""

from __future__ import annotations

from typing import Any

from torch_mapss.metrics.base import PerceptualMetric
from torch_mapss.metrics.values import BLEED, CLEARANCE, FIDELITY, LOG_PM, PM, PS
from torch_mapss.pipeline.mapss import MAPSS

__all__ = ["Bleed", "Clearance", "Fidelity", "PerceptualMatch", "PerceptualSeparation"]


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
        frames: score at most so many frames of a batch, drawn at random: cheaper and coarser. An
            item that the draw misses counts among ``skipped``.
        pit: ``"si_sdr"`` for separators whose outputs come in any order: each reference gets the
            estimate that maximises the total SI-SDR of its mixture, as in the losses, and the
            places of ``reduction="source"`` are those of the references. None: they are in order.
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
    order it finds does not depend on the score.

    Example:
        >>> import torch
        >>> from torch_mapss import PerceptualSeparation
        >>> target = torch.randn(2, 2, 8000)
        >>> metric = PerceptualSeparation(encoder="mel")
        >>> metric.update(target, target)
        >>> metric.compute().shape
        torch.Size([])
    """

    value = PS


class PerceptualMatch(PerceptualMetric):
    """Mean PM over a set: how undistorted the estimates are.

    In [0, 1], higher is better: 1 is indistinguishable from the reference, 0 outside everything
    that the distortions of the reference reach. Input as for :class:`PerceptualSeparation`.

    Args:
        mapss, encoder, attributed, keep_items, frames, pit, kwargs: as for
            :class:`PerceptualSeparation`.
        reduction: ``"mean"``, ``"source"`` or ``"none"``, as for :class:`PerceptualSeparation`;
            the paper's pooling of PM is the mean.
        log: accumulate log PM, at most 0. PM saturates at 0 on audible distortion; its log goes on
            ranking.

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

    value = PM

    def __init__(self, mapss: MAPSS | None = None, *, log: bool = False, **options: Any):
        self.value = LOG_PM if log else PM
        super().__init__(mapss, **options)


class Clearance(PerceptualMetric):
    """Mean clearance over a set: how free the estimates are of the other sources.

    In [0, 1], higher is better: 1 as far from the other sources as the true source is, 0 another
    source. To be read together with :class:`Fidelity`: silence is clear of everything. Needs no
    download and a fiftieth of the time of PS.

    Args:
        mapss, encoder, attributed, keep_items, frames, pit, kwargs: as for
            :class:`PerceptualSeparation`; without ``mapss`` no encoder is loaded but the one of
            ``decomposition_encoder``, ``"mel"``.
        reduction: ``"mean"``, ``"source"`` or ``"none"``, as for :class:`PerceptualSeparation`.

    Example:
        >>> import torch
        >>> from torch_mapss import Clearance
        >>> target = torch.randn(2, 2, 8000)
        >>> float(Clearance()(target, target))
        1.0
    """

    value = CLEARANCE


class Fidelity(PerceptualMetric):
    """Mean fidelity over a set: how undistorted the estimates are.

    In [0, 1], higher is better: 1 is undistorted. Pooled over frames as 1 - RMS(1 - F), in which
    bad moments weigh; undefined where an output is another source (its clearance is below 0.1)
    in more than half of the frames.

    Args:
        mapss, encoder, reduction, attributed, keep_items, frames, pit, kwargs: as for
            :class:`Clearance`.
    """

    value = FIDELITY
    _needs = "frames in which two different references are active and the output is its own source"


class Bleed(PerceptualMetric):
    """Mean bleed over a set: level in dB, where the own reference is silent and another is not.

    Lower is better. Relative to the level where the own reference is active; the sources of an
    item are averaged in dB. No other metric sees these frames. Needs neither encoder nor bank.

    Args:
        mapss, encoder, reduction, attributed, keep_items, frames, pit, kwargs: as for
            :class:`Clearance`.
    """

    value = BLEED
    higher_is_better = False
    _needs = "frames in which the own reference pauses and another one is active"
