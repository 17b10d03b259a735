"""torch_mapss: how much leakage and distortion a separated source contains.

Per frame, in [0, 1], higher is better: clearance and Perceptual Separation (PS) for leakage,
fidelity and Perceptual Match (PM) for distortion; PS and PM are those of MAPSS (ICLR 2026).
Batched, differentiable, with error bounds.

The subpackages; each imports only from those above it:

* :mod:`torch_mapss.core`: points -> scores
* :mod:`torch_mapss.audio`: files, waveforms, loudness, frames, matching
* :mod:`torch_mapss.distortions`: the banks
* :mod:`torch_mapss.encoders`: waveform in, frames of features out
* :mod:`torch_mapss.bounds`: error bounds, without gradients
* :mod:`torch_mapss.functional`: embeddings -> scores, stateless
* :mod:`torch_mapss.pipeline`: ``MAPSS``, waveforms -> frame scores
* :mod:`torch_mapss.metrics`: torchmetrics classes
* :mod:`torch_mapss.evaluation`: files -> report, the command line
* :mod:`torch_mapss.training`: losses, curriculum, Lightning

Names load on first use: importing the package costs little more than importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_mapss._lazy import lazy_names

__version__ = "0.5.0"

# Where each public name lives; it loads on first use.
_NAMES = {
    "pipeline.mapss": "MAPSS",
    "pipeline.bank": "ReferenceBank",
    "pipeline.scores": "Scores ScoreBounds",
    "distortions": "DistortionBank Distortion",
    "encoders": "load_encoder",
    "training.losses": "DecompositionLoss ClearanceLoss FidelityLoss BleedLoss SeparationLoss "
    "MatchLoss MAPSSLoss",
    "training.curriculum": "FrameTrigger",
    "metrics": "Clearance Fidelity Bleed PerceptualSeparation PerceptualMatch SourceScores",
    "evaluation.single_mixture": "evaluate",
    "evaluation.run": "evaluate_set",
    "evaluation.score_mixture": "score_mixture",
    "evaluation.report": "Report",
    "audio": "match_sources",
    "evaluation.comparison": "compare",
}
_HOMES = {
    name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()
}
_SUBPACKAGES = (
    *("core", "audio", "distortions", "encoders", "bounds", "functional"),
    *("pipeline", "metrics", "evaluation", "training"),
)

__all__ = [*_HOMES, *_SUBPACKAGES]

__getattr__, __dir__ = lazy_names(
    __name__, _HOMES | {name: f"{__name__}.{name}" for name in _SUBPACKAGES}
)

if TYPE_CHECKING:  # the same, for type checkers
    from torch_mapss import functional as functional
    from torch_mapss.audio import match_sources as match_sources
    from torch_mapss.distortions import Distortion as Distortion
    from torch_mapss.distortions import DistortionBank as DistortionBank
    from torch_mapss.encoders import load_encoder as load_encoder
    from torch_mapss.evaluation.comparison import compare as compare
    from torch_mapss.evaluation.report import Report as Report
    from torch_mapss.evaluation.run import evaluate_set as evaluate_set
    from torch_mapss.evaluation.score_mixture import score_mixture as score_mixture
    from torch_mapss.evaluation.single_mixture import evaluate as evaluate
    from torch_mapss.metrics import Bleed as Bleed
    from torch_mapss.metrics import Clearance as Clearance
    from torch_mapss.metrics import Fidelity as Fidelity
    from torch_mapss.metrics import PerceptualMatch as PerceptualMatch
    from torch_mapss.metrics import PerceptualSeparation as PerceptualSeparation
    from torch_mapss.metrics import SourceScores as SourceScores
    from torch_mapss.pipeline.bank import ReferenceBank as ReferenceBank
    from torch_mapss.pipeline.mapss import MAPSS as MAPSS
    from torch_mapss.pipeline.scores import ScoreBounds as ScoreBounds
    from torch_mapss.pipeline.scores import Scores as Scores
    from torch_mapss.training.curriculum import FrameTrigger as FrameTrigger
    from torch_mapss.training.losses import BleedLoss as BleedLoss
    from torch_mapss.training.losses import ClearanceLoss as ClearanceLoss
    from torch_mapss.training.losses import DecompositionLoss as DecompositionLoss
    from torch_mapss.training.losses import FidelityLoss as FidelityLoss
    from torch_mapss.training.losses import MAPSSLoss as MAPSSLoss
    from torch_mapss.training.losses import MatchLoss as MatchLoss
    from torch_mapss.training.losses import SeparationLoss as SeparationLoss
