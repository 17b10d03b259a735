"""Torchmetrics metrics of single scores.

How frames become one number: frame -> source (a column of ``scores.utterance()``) -> item (mean
over its defined sources) -> set (mean over the items that have one). A source is undefined, NaN,
where it is silent or never active together with another (for :class:`Clearance`: silent, or no
other source is ever active; for :class:`Bleed`: it never pauses while another one is active); an
item is undefined, and counted in ``skipped``, where all its sources are.

Metrics of one measure that share a :class:`~torch_mapss.MAPSS` have equal states, so a
``MetricCollection`` scores a batch once for all of them from its second ``update`` on. For scores
of several measures take :class:`~torch_mapss.SourceScores`, which encodes and scores everything
once. Sums are kept in float64, so that an epoch gives the same value however it is split into
batches and processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from torch_mapss.core.eager import eager
from torch_mapss.metrics import plots, states
from torch_mapss.metrics.base import ScoreMetric
from torch_mapss.metrics.scored_batch import reduced_score
from torch_mapss.pipeline.mapss import MAPSS, EncoderChoice
from torch_mapss.pipeline.measures import MEASURES
from torch_mapss.score_table import SCORES, Score

__all__ = ["Bleed", "Clearance", "Fidelity", "PerceptualMatch", "PerceptualSeparation"]


class _OfScore:
    """Property of a metric's score: the default score on a class, its own score on an instance.

    A descriptor, because Metric refuses to set these on an instance, and torchmetrics also reads
    them on classes.
    """

    def __init__(self, read: Callable[[Score], Any]) -> None:
        self.read = read

    def __get__(self, metric: SingleScore | None, metric_class: type[SingleScore]) -> Any:
        return self.read(SCORES[(metric_class if metric is None else metric).score_name])


class SingleScore(ScoreMetric):
    """Mean of one score over a set; a subclass names the score."""

    higher_is_better = _OfScore(lambda score: score.higher_is_better)  # type: ignore[assignment]
    plot_lower_bound = _OfScore(lambda score: score.limits[0])  # type: ignore[assignment]
    plot_upper_bound = _OfScore(lambda score: score.limits[1])  # type: ignore[assignment]
    score_name: str  # in the table of scores
    _needs = "frames in which two different references are active"  # to be defined

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        encoder: EncoderChoice | None = None,
        reduction: str = "mean",
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        frames: int | None = None,
        seed: int = 0,
        pit: str | None = None,
        **kwargs: Any,
    ) -> None:
        frame_score = self.score_name
        super().__init__(
            mapss,
            (SCORES[frame_score].measure,),
            encoder=encoder,
            attributed=attributed,
            keep_items=keep_items,
            keep_frames=reduction == "none",
            frames=frames,
            seed=seed,
            pit=pit,
            **kwargs,
        )
        self.reduction = reduction
        self.score_name = reduced_score(frame_score, reduction)

    @property
    def skipped(self) -> int:
        """Number of items with an undefined score since the last reset, on this process.

        Within ``with metric.sync_context():`` the count over all processes.
        """
        return int(self.seen - self.items[self._index])

    @property
    def _index(self) -> int:
        return self._names.index(self.score_name)

    def _settings(self) -> dict[str, Any]:
        argument = MEASURES[self._measures[0]].encoder
        encoders = self.mapss.config.encoders
        encoder = {argument: encoders[argument].name} if argument else {}
        return {**encoder, "reduction": self.reduction, **super()._settings()}

    def _returned_names(self) -> tuple[str, ...]:
        return (self.score_name,)

    @eager
    def compute(self) -> Any:
        """The value over everything accumulated.

        Returns:
            By default a 0-dim float tensor; for other reductions see the class. NaN, with a
            warning, where nothing was defined. float32, also where the metric was converted to
            half precision; float64 after ``set_dtype(torch.float64)``.
        """
        seen, k = int(self.seen), self._index
        if seen > 0 and int(self.items[k]) == 0:
            rank_zero_warn(
                f"{type(self).__name__} is undefined (NaN) in all of the {seen} items: it needs "
                f"{self._needs}.",
                UserWarning,
            )
        if self.reduction == "none":
            return states.padded([item[:, 1:] for item in self._items(self.score_name)])
        if self.reduction == "source":
            # Before the first update every source is NaN.
            sources = int(self.sources) or len(self._attributed or (0,))
            means = states.ratio(self.source_sum[k], self.source_count[k])
            return self._rounded(means[:sources])
        return self._means()[k]

    @eager
    def item_scores(self) -> Tensor:
        """Scores of each item, NaN where undefined, which shows the items that were skipped.

        Returns:
            (n, S') on the CPU, in the order of the updates, of this process (of all of them
            within ``with metric.sync_context():``): frames pooled, whatever the ``reduction``.

        Raises:
            RuntimeError: the metric was made without ``keep_items=True``.
        """
        return states.item_rows(self._items(self.score_name))

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot one or several values.

        Args:
            val: a result of ``forward`` or ``compute``, or a list of them, drawn over steps;
                ``compute()`` if None. Frame scores (``reduction="none"``) are drawn over seconds.
            ax: matplotlib axes to draw into; a new figure if None.

        Returns:
            Figure and axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        val = self.compute() if val is None else val
        return plots.draw(val, self.score_name, self.mapss.times, ax)


class PerceptualSeparation(SingleScore):
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
        mapss: a :class:`torch_mapss.MAPSS` to score with. Pass the same one to all metrics and
            losses, so that they share its encoder. Metrics without one still share the weights of a
            named encoder.
        encoder: encoder of a new MAPSS if ``mapss`` is None; None: the default encoder of MAPSS.
        reduction: result of ``compute``. ``"mean"``: a 0-dim tensor, the mean over items.
            ``"source"``: (S',), the mean of each source by its place. ``"pesq"``: 0-dim, with the
            paper's pooling over frames, in [1.085, 1.315]. ``"none"``: frame scores (n, S', F) on
            the CPU, NaN where undefined; these grow with every update. Lightning's ``self.log``
            takes metrics of a single number. Log others by name at the end of the epoch,
            ``self.log_dict({f"ps_{i}": x for i, x in enumerate(values)})`` of ``values =
            metric.compute().flatten()``, and call ``metric.reset()``.
        attributed: (S',) the reference each estimate belongs to; all in order if None.
            ``attributed=(0,)`` scores one estimate against the first of the references.
        keep_items: also keep every item's scores, on the CPU, for :meth:`item_scores`.
        frames: largest number of frames to score per batch, drawn at random: cheaper but coarser.
            Each batch has a separate draw, so that the mean over many batches is unbiased. An item
            that the draw misses counts among ``skipped``.
        seed: seed of these draws, and of the noise in the banks of a new MAPSS. Equal seeds and an
            equal order of batches give equal values. ``metric.draws`` counts the draws, continues
            through ``reset()``, and can be set to resume. In distributed evaluation every process
            counts separately, so values are reproducible for a given number of processes.
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

    score_name = "ps"


class PerceptualMatch(SingleScore):
    """Mean PM over a set: how undistorted the estimates are.

    In [0, 1], higher is better: 1 is indistinguishable from the reference, 0 is farther out than
    all distortions of the reference. Input as in :class:`PerceptualSeparation`.

    Args:
        mapss, encoder, attributed, keep_items, frames, pit, kwargs: as for
            :class:`PerceptualSeparation`.
        reduction: ``"mean"``, ``"source"`` or ``"none"``, as in :class:`PerceptualSeparation`;
            the paper's pooling of PM is the mean.
        log: accumulate log PM, at most 0. PM saturates at 0 on audible distortion; its log still
            ranks.

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

    score_name = "pm"

    def __init__(self, mapss: MAPSS | None = None, *, log: bool = False, **options: Any):
        self.score_name = "log_pm" if log else "pm"
        super().__init__(mapss, **options)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "log": self.score_name == "log_pm"}


class Clearance(SingleScore):
    """Mean clearance over a set: how free the estimates are of the other sources.

    In [0, 1], higher is better: 1 as far from the other sources as the true source is, 0 another
    source. Read it together with :class:`Fidelity`, since silence is far from everything. Needs no
    download and a fiftieth of the time of PS.

    Args:
        mapss, encoder, attributed, keep_items, frames, pit, kwargs: as for
            :class:`PerceptualSeparation`; without ``mapss`` no encoder is loaded but the one of
            ``decomposition_encoder``, ``"mel"``.
        reduction: ``"mean"``, ``"source"`` or ``"none"``, as in :class:`PerceptualSeparation`.

    Example:
        >>> import torch
        >>> from torch_mapss import Clearance
        >>> target = torch.randn(2, 2, 8000)
        >>> float(Clearance()(target, target))
        1.0
    """

    score_name = "clearance"


class Fidelity(SingleScore):
    """Mean fidelity over a set: how undistorted the estimates are.

    In [0, 1], higher is better: 1 is undistorted. Pooled over frames as 1 - RMS(1 - F), so that bad
    moments weigh more; undefined where an output is another source (its clearance is below 0.1) in
    more than half of the frames.

    Args:
        mapss, encoder, reduction, attributed, keep_items, frames, pit, kwargs: as for
            :class:`Clearance`.
    """

    score_name = "fidelity"
    _needs = "frames in which two different references are active and the output is its own source"


class Bleed(SingleScore):
    """Mean bleed over a set: level in dB that estimates add in the pauses of their sources.

    Lower is better. Levels are relative to that of the reference where it is active, and the
    sources of an item are averaged in dB. Apart from :class:`Clearance`, no other metric uses these
    frames. Needs neither encoder nor bank.

    Args:
        mapss, encoder, reduction, attributed, keep_items, frames, pit, kwargs: as for
            :class:`Clearance`.
    """

    score_name = "bleed_db"
    _needs = "frames in which the own reference pauses and another one is active"
