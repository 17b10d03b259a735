"""torch_mapss: Perceptual Separation (PS) and Perceptual Match (PM) in PyTorch.

Two measures of a separated source per frame, in [0, 1], higher is better: PS, how free it is of
the other sources, and PM, how undistorted it is (MAPSS, ICLR 2026). Batched, differentiable, with
error bounds.

What lives where
    ``torch_mapss.functional``   embeddings -> scores, stateless
    ``MAPSS``                    waveforms -> frame scores; ``prepare`` references once
    ``SeparationLoss``, ``MatchLoss``, ``MAPSSLoss``, ``FrameTrigger``   training
    ``PerceptualSeparation``, ``PerceptualMatch``   torchmetrics metrics
    ``evaluate``                 files or arrays -> a report to print, save and plot
    ``match_sources``            which estimate belongs to which reference, by SI-SDR
    ``torch_mapss.audio``, ``.distortions``, ``.encoders``, ``.manifold``, ``.measures``,
    ``.aggregate``               the stages, one room each
    ``torch_mapss.bounds``, ``.utterance``, ``.correlation``, ``.diagnostics``   error bounds
    ``torch_mapss.lightning``    the curriculum as a callback

Names load on first use: importing the package costs little more than importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives; read by ``__getattr__`` below.
_HOMES = {
    "MAPSS": "pipeline",
    "ReferenceBank": "records",
    "Scores": "records",
    "ScoreBounds": "records",
    "DistortionBank": "distortions",
    "Distortion": "distortions",
    "load_encoder": "encoders",
    "SeparationLoss": "losses",
    "MatchLoss": "losses",
    "MAPSSLoss": "losses",
    "FrameTrigger": "curriculum",
    "PerceptualSeparation": "metrics",
    "PerceptualMatch": "metrics",
    "evaluate": "report",
    "Report": "report",
    "match_sources": "audio",
}

__all__ = [*_HOMES, "functional"]

if TYPE_CHECKING:  # the same, for type checkers
    from torch_mapss import functional as functional
    from torch_mapss.audio import match_sources as match_sources
    from torch_mapss.curriculum import FrameTrigger as FrameTrigger
    from torch_mapss.distortions import Distortion as Distortion
    from torch_mapss.distortions import DistortionBank as DistortionBank
    from torch_mapss.encoders import load_encoder as load_encoder
    from torch_mapss.losses import (
        MAPSSLoss as MAPSSLoss,
    )
    from torch_mapss.losses import (
        MatchLoss as MatchLoss,
    )
    from torch_mapss.losses import (
        SeparationLoss as SeparationLoss,
    )
    from torch_mapss.metrics import (
        PerceptualMatch as PerceptualMatch,
    )
    from torch_mapss.metrics import (
        PerceptualSeparation as PerceptualSeparation,
    )
    from torch_mapss.pipeline import MAPSS as MAPSS
    from torch_mapss.records import (
        ReferenceBank as ReferenceBank,
    )
    from torch_mapss.records import (
        ScoreBounds as ScoreBounds,
    )
    from torch_mapss.records import (
        Scores as Scores,
    )
    from torch_mapss.report import Report as Report
    from torch_mapss.report import evaluate as evaluate


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"torch_mapss.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name == "functional":
        return importlib.import_module("torch_mapss.functional")
    raise AttributeError(f"module 'torch_mapss' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
