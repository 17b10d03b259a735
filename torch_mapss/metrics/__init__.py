"""Scores as torchmetrics metrics: :class:`SourceScores` for several, and one class per score.

``update(preds, target)`` takes (B, S', T) and (B, S, T), in torchmetrics' order; ``compute()`` is
the mean over frames, then sources, then mixtures. Undefined items (silent references, no frame with
two active sources) are left out and counted. States are sums of float64 and add up over processes,
whatever wrapper or conversion a metric lives in. ``pit="si_sdr"`` takes outputs in any order.

Each class of a single score has a function of its name in lower case, which gives the value of
every item of a batch.

Example:
    >>> import torch
    >>> from torch_mapss import MAPSS
    >>> from torch_mapss.metrics import SourceScores
    >>> metric = SourceScores(MAPSS("mel", measures=("decomposition", "separation")))
    >>> references = torch.randn(2, 2, 4000)
    >>> means = metric(references + 0.1 * references.flip(1), references)
    >>> round(float(means["si_sdr"]))
    20
"""

from __future__ import annotations

from torch_mapss.core.checks import import_package

import_package(
    "torchmetrics",
    "torch_mapss.metrics",
    ". torchmetrics imports transformers where that is installed, so a broken transformers stops "
    "it as well: in that case repair or uninstall transformers",
)

# ruff: noqa: E402  (a failing import of torchmetrics is explained first)
from torch_mapss.metrics.functions import (
    bleed,
    clearance,
    fidelity,
    perceptual_match,
    perceptual_separation,
)
from torch_mapss.metrics.perceptual import (
    Bleed,
    Clearance,
    Fidelity,
    PerceptualMatch,
    PerceptualSeparation,
)
from torch_mapss.metrics.source_scores import SourceScores

__all__ = [
    "Bleed",
    "Clearance",
    "Fidelity",
    "PerceptualMatch",
    "PerceptualSeparation",
    "SourceScores",
    "bleed",
    "clearance",
    "fidelity",
    "perceptual_match",
    "perceptual_separation",
]
