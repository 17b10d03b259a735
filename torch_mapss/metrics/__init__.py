"""The measures as torchmetrics metrics: one batch is scored once for all of them.

``update(preds, target)`` takes (B, S', T) and (B, S, T), in torchmetrics' order; ``compute()`` is
the mean over frames, then sources, then mixtures. Undefined items (silent references, no frame with
two active sources) are left out and counted. States are sums of float64 and add up over processes,
whatever wrapper or conversion a metric lives in. ``pit="si_sdr"`` takes outputs in any order.

Each class has a function of its name in lower case, which gives the value of every item of a batch.

Example:
    >>> import torch
    >>> from torchmetrics import MetricCollection
    >>> from torch_mapss import MAPSS
    >>> from torch_mapss.metrics import PerceptualMatch, PerceptualSeparation
    >>> mapss = MAPSS("mel")
    >>> metrics = MetricCollection([PerceptualSeparation(mapss), PerceptualMatch(mapss)])
    >>> references = torch.randn(2, 2, 4000)
    >>> values = metrics(references + 0.1 * references.flip(1), references)
    >>> sorted(values)
    ['PerceptualMatch', 'PerceptualSeparation']
"""

from __future__ import annotations

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

__all__ = [
    "Bleed",
    "Clearance",
    "Fidelity",
    "PerceptualMatch",
    "PerceptualSeparation",
    "bleed",
    "clearance",
    "fidelity",
    "perceptual_match",
    "perceptual_separation",
]
