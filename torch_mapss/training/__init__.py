"""PS and PM in training: losses, triggers of a curriculum, a Lightning callback.

* :class:`MAPSSLoss`, :class:`SeparationLoss`, :class:`MatchLoss` are called as
  ``loss(estimates, references)`` or, much cheaper, ``loss(estimates, bank)`` with
  ``bank = loss.mapss.prepare(references)``. Undefined items add exactly zero.
* :class:`FrameTrigger` fires when frame scores say that a stage is learnt.
* :class:`CurriculumCallback` drives a trigger in Lightning.

Example:
    >>> import torch
    >>> from torch_mapss import MAPSS, MAPSSLoss
    >>> references = torch.randn(1, 2, 8000)
    >>> estimates = (references + 0.3 * references.flip(1)).requires_grad_()
    >>> loss = MAPSSLoss(MAPSS("mel"))
    >>> loss(estimates, references).backward()
    >>> bool(estimates.grad.isfinite().all())
    True
"""

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
