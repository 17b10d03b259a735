"""A metric of good manners: precise states, one update per call, no harm from a bad batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from torch_mapss.core.devices import back
from torch_mapss.core.torch_defaults import with_torch_defaults
from torch_mapss.metrics import states


class SteadyMetric(Metric):
    """A metric of the states in :mod:`torch_mapss.metrics.states`, whatever is done to it.

    It defines nothing that a wrapper's ``__getattr__`` would take for the wrapper's own: copying,
    for one, is left to ``__getstate__`` and ``__setstate__`` of the class.
    """

    history: list[Tensor]
    shapes: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._in_forward = False

    def __setattr__(self, name: str, value: Any) -> None:
        """States keep their precision, also where a wrapper converts those of its metric."""
        value = states.kept(name, value) if name in states.DTYPES else value
        super().__setattr__(name, value)

    @with_torch_defaults
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value, at the price of one :meth:`update`.

        The value is differentiable in ``preds``; what the metric keeps is not.
        """
        before = {name: _copied(getattr(self, name)) for name in self._defaults}
        counted, self._in_forward = self._update_count, True
        try:
            value = super().forward(*args, **kwargs)
        except BaseException:
            self._restore(before, counted)
            raise
        finally:
            self._in_forward = False
        # torchmetrics keeps the value, and with it the graph, which could not be copied.
        self._forward_cache = _detached(value)
        return value

    def _restore(self, before: dict[str, Any], counted: int) -> None:
        """Undo what a failed forward has reset."""
        for name, state in before.items():
            setattr(self, name, state)
        self._update_count, self._computed, self._is_synced = counted, None, False
        self._enable_grad, self._should_unsync = False, True
        self._to_sync = self.sync_on_compute

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = ()) -> SteadyMetric:
        # Sums keep their precision, history stays on the CPU, whatever the conversion.
        before = self._device
        super()._apply(fn, exclude_state=tuple(self._defaults))
        self._computed = None  # a value that was kept has been converted, and rounded, as well
        if self._device == before:
            return self
        for name, default in self._defaults.items():
            if isinstance(default, Tensor):
                self._defaults[name] = back(default, self._device)
                setattr(self, name, back(getattr(self, name), self._device))
        self._moved()
        return self

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any = None) -> None:
        # Empty lists would be gathered with a dtype of their own, and lists on the CPU not at all
        # by a backend for accelerators.
        if self._has_history():
            empty = torch.zeros(0, dtype=torch.float32), torch.zeros(0, dtype=torch.int64)
            for name, blank in zip(("history", "shapes"), empty):
                setattr(self, name, [dim_zero_cat(getattr(self, name) or [blank]).to(self.device)])
        super()._sync_dist(dist_sync_fn, process_group)
        if self._has_history():
            for name in ("history", "shapes"):
                setattr(self, name, [dim_zero_cat(getattr(self, name)).cpu()])

    def _has_history(self) -> bool:
        return "history" in self._defaults

    def _moved(self) -> None:
        """Take along, to ``self.device``, what is no state."""


def _copied(state: Any) -> Any:
    return list(state) if isinstance(state, list) else state


def _detached(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _detached(entry) for name, entry in value.items()}
    return value.detach() if isinstance(value, Tensor) else value
