"""All scores of a set in one pass, as a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import rank_zero_warn

from torch_mapss.core.eager import eager
from torch_mapss.metrics import plots, states
from torch_mapss.metrics.base import ScoreMetric
from torch_mapss.pipeline.energy_ratios import bss_package
from torch_mapss.pipeline.mapss import MAPSS, EncoderChoice
from torch_mapss.score_table import SCORES


class SourceScores(ScoreMetric):
    """Mean of all scores over a set, as a dictionary; the way to log several scores.

    A batch is encoded and scored once for all measures of ``mapss``, and SI-SDR is added at no
    cost. ``compute()`` and ``forward()`` return the mean over items of every score by its name, as
    in the tables of the command line: ``clearance``, ``fidelity``, ``ps``, ``pm``, ``log_pm``,
    ``bleed_db``, ``si_sdr``, with ``bss=True`` ``sdr``, ``sir`` and ``sar``, then other poolings
    and diagnostics. Input as in :class:`PerceptualSeparation`.

    In Lightning::

        def __init__(self):
            self.scores = SourceScores(MAPSS(measures=("decomposition", "bleed")))

        def validation_step(self, batch, batch_index):
            self.scores.update(self.separate(batch["mixture"]), batch["references"])

        def on_validation_epoch_end(self):
            means = self.scores.compute()
            self.log_dict({f"val/{name}": value for name, value in means.items()})
            self.scores.reset()

    or, with the names prefixed by the collection, ``MetricCollection([SourceScores(mapss)],
    prefix="val/")``.

    Args:
        mapss: the scorer, which also selects the measures. Pass the same one to all metrics and
            losses.
        encoder: encoder of a new MAPSS with all measures, if ``mapss`` is None; None: the default
            encoder.
        attributed, frames, seed, pit, kwargs: as in :class:`PerceptualSeparation`.
        keep_items: also keep every item's scores, on the CPU, for :meth:`item_scores`.
        bss: add SDR, SIR and SAR of BSS Eval in dB, with filters of 512 taps, at the encoder's
            sample rate. An estimate is compared with all references, whatever other estimates there
            are. Needs fast_bss_eval (``pip install torch_mapss[bss]``).

    Attributes:
        mapss: the MAPSS in use.
        skipped: number of items in which a score is undefined so far, by score; its mean leaves
            them out.

    Raises:
        TypeError, ValueError: arguments that do not fit, see the message.
        ImportError: ``bss`` without fast_bss_eval.

    Example:
        >>> import torch
        >>> from torch_mapss import MAPSS, SourceScores
        >>> references = torch.randn(2, 2, 8000)
        >>> metric = SourceScores(MAPSS("mel", measures="decomposition"))
        >>> metric.update(references + 0.1 * references.flip(1), references)
        >>> list(metric.compute())
        ['clearance', 'fidelity', 'si_sdr']
    """

    def __init__(
        self,
        mapss: MAPSS | None = None,
        *,
        encoder: EncoderChoice | None = None,
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        frames: int | None = None,
        seed: int = 0,
        pit: str | None = None,
        bss: bool = False,
        **kwargs: Any,
    ) -> None:
        if bss:
            bss_package()  # fail now rather than at the first batch
        super().__init__(
            mapss,
            None,
            encoder=encoder,
            attributed=attributed,
            keep_items=keep_items,
            frames=frames,
            seed=seed,
            pit=pit,
            energy_measures=("si_sdr", "bss") if bss else ("si_sdr",),
            **kwargs,
        )

    @property
    def skipped(self) -> dict[str, int]:
        """Items with an undefined score since the last reset, counted by score, on this process."""
        counts = (self.seen - self.items).tolist()
        return dict(zip(self._names, counts))

    def _settings(self) -> dict[str, Any]:
        return {"measures": self._measures, **super()._settings()}

    def _returned_names(self) -> tuple[str, ...]:
        return self._names

    @eager
    def compute(self) -> dict[str, Tensor]:
        """Means over everything accumulated, by score.

        Returns:
            0-dim float tensors. NaN for a score that no item has, such as bleed where no source
            ever pauses; with a warning where none has any score. float32, also where the metric
            was converted to half precision; float64 after ``set_dtype(torch.float64)``.
        """
        seen = int(self.seen)
        if seen > 0 and not bool(self.items.any()):
            rank_zero_warn(
                f"SourceScores is undefined (NaN) in all of the {seen} items: the references are "
                "silent, or no two of them are active at once.",
                UserWarning,
            )
        return dict(zip(self._names, self._means().unbind()))

    @eager
    def item_scores(self) -> dict[str, Tensor]:
        """Scores of each item by name, NaN where undefined.

        Returns:
            (n, S') each, on the CPU, in the order of the updates, of this process (of all of them
            within ``with metric.sync_context():``).

        Raises:
            RuntimeError: the metric was made without ``keep_items=True``.
        """
        return {name: states.item_rows(self._items(name)) for name in self._names}

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Plot the scores that lie in [0, 1]; for others, make separate metrics.

        Args:
            val: a result of ``forward`` or ``compute``, or a list of them, drawn over steps;
                ``compute()`` if None.
            ax: matplotlib axes to draw into; a new figure if None.

        Returns:
            Figure and axes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        val = self.compute() if val is None else val
        steps = val if isinstance(val, list) else [val]
        scores = [SCORES[name] for name in self._names]
        shown = [score for score in scores if score.ranked and score.limits == plots.SHARE]
        curves = {}
        for score in shown:
            curves[score.label] = torch.stack([step[score.name].detach() for step in steps])
        return plots.draw_shares(curves, ax)
