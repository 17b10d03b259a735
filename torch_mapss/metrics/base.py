"""Base of all metrics: scores batches with a MAPSS, and sums the scores over a set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from torch_mapss.core import checks
from torch_mapss.core.devices import back
from torch_mapss.core.eager import eager
from torch_mapss.metrics import states
from torch_mapss.metrics.scored_batch import ScoredBatch, Target, score_batch
from torch_mapss.pipeline.frame_draws import frame_generator
from torch_mapss.pipeline.inputs import check_pit
from torch_mapss.pipeline.mapss import MAPSS, EncoderChoice, resolve
from torch_mapss.score_table import FRAME_SCORES, SCORES, scores_of

# Keywords that are passed on to a new MAPSS; the others belong to torchmetrics.
_MAPSS_OPTIONS = frozenset(inspect.signature(MAPSS).parameters) - {"encoder", "measures", "seed"}


class ScoreMetric(Metric):
    """Sums all scores of some measures over a set.

    Metrics of equal settings and measures have equal states, whichever score each of them returns,
    so that a MetricCollection updates one of them for all.

    It defines nothing that a wrapper's ``__getattr__`` would forward by mistake; copying, for
    example, is left to ``__getstate__`` and ``__setstate__`` of the class.
    """

    full_state_update = False
    is_differentiable = True

    item_sum: Tensor
    items: Tensor
    seen: Tensor
    source_sum: Tensor
    source_count: Tensor
    sources: Tensor
    fingerprint: Tensor
    history: list[Tensor]
    shapes: list[Tensor]

    def __init__(
        self,
        mapss: MAPSS | None,
        measures: Sequence[str] | None,
        *,
        encoder: EncoderChoice | None = None,
        attributed: Sequence[int] | Tensor | None = None,
        keep_items: bool = False,
        keep_frames: bool = False,
        frames: int | None = None,
        seed: int = 0,
        pit: str | None = None,
        energy_measures: Sequence[str] = (),  # computed from waveforms, not by MAPSS
        **kwargs: Any,
    ) -> None:
        options = {name: kwargs.pop(name) for name in sorted(_MAPSS_OPTIONS & set(kwargs))}
        super().__init__(**kwargs)
        seed = checks.check_seed(seed)
        # In a tuple, so that it is not a submodule and half() and float() leave it alone; _apply
        # moves it.
        self._mapss = (resolve(mapss, encoder, options, measures, seed),)
        computed = self.mapss.measures if measures is None else measures
        self._measures = (*computed, *energy_measures)
        self._attributed = None if attributed is None else checks.attributed_sources(attributed)
        self._frames = None if frames is None else checks.check_whole(frames, "frames", 1)
        self._seed = seed
        self._pit = check_pit(pit, self._attributed)
        self._names = scores_of(self._measures)
        self._kept_names = self._names if keep_items or keep_frames else ()
        if keep_frames:
            ranked = (name for name in self._names if SCORES[name].ranked)
            self._kept_names = tuple(name for name in ranked if name in FRAME_SCORES)
        self._keep_frames = keep_frames
        #: Number of batches scored, which selects the random frames; set it to resume exactly.
        self.draws = 0
        self._add_states()
        if options.get("device") is not None:
            self.to(options["device"])

    def _add_states(self) -> None:
        # Added first, because old versions of torchmetrics compare only the first state when they
        # merge.
        arguments = self._measures, self._attributed, self._frames, self._seed, self._pit
        mark = states.fingerprint(self.mapss, arguments, self._kept_names, self._keep_frames)
        self.add_state("fingerprint", mark, dist_reduce_fx="max")
        for name, default, reduction in states.sums(len(self._names)):
            self.add_state(name, default, dist_reduce_fx=reduction)
        if self._kept_names:
            # (K · S' · (1 + F)) values of an item: each score pooled, and of its frames.
            self.add_state("history", [], dist_reduce_fx="cat")
            self.add_state("shapes", [], dist_reduce_fx="cat")  # S' and 1 + F of each item

    @property
    def mapss(self) -> MAPSS:
        """The MAPSS that scores; pass it to other metrics and losses to share its encoder."""
        return self._mapss[0]

    def _settings(self) -> dict[str, Any]:
        """Arguments by name, for ``print``."""
        settings = {
            "attributed": self._attributed,
            "frames": self._frames,
            "seed": self._seed,
            "pit": self._pit,
        }
        return {name: value for name, value in settings.items() if value not in (None, 0)}

    def extra_repr(self) -> str:
        """Settings, for ``print``."""
        return ", ".join(f"{name}={value!r}" for name, value in self._settings().items())

    # ------------------------------------------------------------------------- accumulating

    @eager
    def update(
        self,
        preds: Tensor | ScoredBatch,
        target: Target | None = None,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> None:
        """Score a batch and add it.

        Args:
            preds: (B, S', T) or (S', T) estimates.
            target: (B, S, T) or (S, T) references, or a bank of them (:meth:`MAPSS.prepare`).
            lengths: (B,) true lengths in samples of a padded batch.

        Raises:
            TypeError, ValueError: input that cannot be scored, see :meth:`MAPSS.forward`. The
                metric is then as it was before.
        """
        batch = preds if isinstance(preds, ScoredBatch) else self._scored(preds, target, lengths)
        source_scores = self._source_scores(batch)
        for name, increment in states.batch_sums(source_scores, self.item_sum.dtype).items():
            setattr(self, name, getattr(self, name) + increment)
        self.sources = self.sources.clamp(min=source_scores.shape[-1])
        if self._kept_names:
            columns = [self._names.index(name) for name in self._kept_names]
            kept = source_scores[:, columns].unsqueeze(-1)
            if self._keep_frames:
                frames = torch.stack([batch.by_frame(name) for name in self._kept_names], 1)
                kept = torch.cat([kept, frames], -1)
            rows, shapes = states.history_rows(kept)
            self.history.append(rows)
            self.shapes.append(shapes)

    @eager
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its value, at the cost of one :meth:`update`.

        The value is differentiable in ``preds``; the metric's states are not.
        """
        # Scored first, so that a refused batch leaves the states unchanged.
        value = super().forward(self._scored(*args, **kwargs))
        # torchmetrics would keep the value with its graph, which cannot be copied.
        self._forward_cache = _detached(value)
        return value

    def _scored(
        self,
        preds: Tensor,
        target: Target | None,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> ScoredBatch:
        if isinstance(preds, Tensor) and preds.device != self.device:
            raise ValueError(
                f"the metric on {self.device}, preds on {preds.device}, target on "
                f"{getattr(target, 'device', 'no device')}: move the metric with "
                f"metric.to({str(preds.device)!r}), or the signals with .to(device). A metric held "
                "as an attribute, in a torch.nn.ModuleDict or in a MetricCollection moves with its "
                "module; in a plain dict or list it does not."
            )
        with _naming_arguments(type(self).__name__):
            true = None if lengths is None else checks.check_lengths(lengths)
            if target is None:
                raise TypeError("target is missing. Pass update(estimates, references).")
            batch = score_batch(
                self.mapss,
                preds,
                target,
                true,
                self._measures,
                self._attributed,
                frames=self._frames,
                generator=frame_generator(self._seed, self.draws),
                pit=self._pit,
            )
            states.check_sources(batch.frame_scores.active.shape[1])
        self.draws += 1
        return batch

    def _source_scores(self, batch: ScoredBatch) -> Tensor:
        """(B, K, S') scores; those that the metric does not return are detached."""
        scores = batch.by_source(self._names)
        returned = self._returned_names()
        columns = [x if name in returned else x.detach() for name, x in scores.items()]
        return torch.stack(columns, 1)

    def _returned_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    # ------------------------------------------------------------------------- states

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep the precision of states, even if a wrapper converts those of its metric."""
        value = states.in_precision(name, value) if name in states.DTYPES else value
        super().__setattr__(name, value)

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = ()) -> ScoreMetric:
        # Whatever the conversion, sums keep their precision and the history stays on the CPU.
        device_before = self._device
        super()._apply(fn, exclude_state=tuple(self._defaults))
        self._computed = None  # a cached value would have been converted, and rounded, too
        if self._device == device_before:
            return self
        for name, default in self._defaults.items():
            if isinstance(default, Tensor):
                self._defaults[name] = back(default, self._device)
                setattr(self, name, back(getattr(self, name), self._device))
        self.mapss.to(self._device)
        return self

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        # Empty lists would be gathered with the wrong dtype, and a backend for accelerators cannot
        # gather lists on the CPU.
        lists = ("history", "shapes") if self._kept_names else ()
        for name in lists:
            empty = torch.zeros(0, dtype=states.DTYPES[name], device="cpu")
            setattr(self, name, [dim_zero_cat(getattr(self, name) or [empty]).to(self.device)])
        super()._sync_dist(dist_sync_fn, process_group)
        for name in lists:
            setattr(self, name, [dim_zero_cat(getattr(self, name)).cpu()])

    # ------------------------------------------------------------------------- results

    def _means(self) -> Tensor:
        """(K,) means over all items."""
        return self._rounded(states.ratio(self.item_sum, self.items))

    def _rounded(self, values: Tensor) -> Tensor:
        # Half precision would round a monitored score to 0.002 to 0.004.
        return back(values.to(torch.promote_types(self.dtype, torch.float32)), self.device)

    def _items(self, score_name: str) -> list[Tensor]:
        """(S', 1 + F) of a score of every item kept: pooled, then its F frames if they are kept."""
        if score_name not in self._kept_names:
            raise RuntimeError(
                "item scores are not kept unless asked for, as they grow with every update. Make "
                f"the metric with {type(self).__name__}(..., keep_items=True)."
            )
        k = self._kept_names.index(score_name)
        items = states.history_items(self.history, self.shapes, len(self._kept_names))
        return [item[k] for item in items]


def _detached(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: entry.detach() for name, entry in value.items()}
    return value.detach()


@contextmanager
def _naming_arguments(metric: str) -> Iterator[None]:
    """Name the metric's arguments in errors about the input."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        call = f"{metric}.update(preds=estimates, target=references): "
        raise type(error)(f"{call}{error}") from error
