"""PS and PM in training: losses, triggers of a curriculum, a Lightning callback."""

from __future__ import annotations

from torch_mapss._lazy import lazy_names

_HOMES = {
    "CurriculumCallback": "torch_mapss.training.lightning",
    "FrameTrigger": "torch_mapss.training.curriculum",
    "LossRecord": "torch_mapss.training.terms",
    "MAPSSLoss": "torch_mapss.training.losses",
    "MatchLoss": "torch_mapss.training.losses",
    "SeparationLoss": "torch_mapss.training.losses",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
