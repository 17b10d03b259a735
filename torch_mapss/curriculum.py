"""The same as :mod:`torch_mapss.training.curriculum`."""

from __future__ import annotations

from torch_mapss.training.curriculum import Fraction, FrameTrigger, Quantile, Trend, TriggerEvent

__all__ = ["Fraction", "FrameTrigger", "Quantile", "Trend", "TriggerEvent"]
