"""The same as :mod:`torch_mapss.training.lightning`."""

from __future__ import annotations

from torch_mapss.training.lightning import CurriculumCallback

__all__ = ["CurriculumCallback"]
