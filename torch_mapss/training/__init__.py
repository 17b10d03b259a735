"""The measures in training: losses, triggers of a curriculum, a Lightning callback.

* :class:`DecompositionLoss`, :class:`MAPSSLoss` and the losses of single measures are called as
  ``loss(estimates, references)`` or, much cheaper, ``loss(estimates, bank)`` with
  ``bank = loss.prepare(references)``. Undefined items add exactly zero.
* :class:`FrameTrigger` fires when frame scores say that a stage is learnt.
* :class:`CurriculumCallback` drives a trigger in Lightning.

Example:
    >>> import torch
    >>> from torch_mapss import MAPSS, DecompositionLoss
    >>> references = torch.randn(1, 2, 8000)
    >>> estimates = (references + 0.3 * references.flip(1)).requires_grad_()
    >>> loss = DecompositionLoss(MAPSS("mel"), si_sdr=0.1)
    >>> loss(estimates, references).backward()
    >>> bool(estimates.grad.isfinite().all())
    True

A loop that validates and raises the interferer's level once a quarter of the frames is separated:

    >>> from torch_mapss import FrameTrigger, PerceptualSeparation
    >>> from torch_mapss.curriculum import Quantile
    >>> separator = torch.nn.Conv1d(1, 2, 33, padding=16)            # yours
    >>> optimizer = torch.optim.Adam(separator.parameters(), lr=1e-3)
    >>> frames = PerceptualSeparation(loss.mapss, reduction="none")   # frame scores
    >>> trigger = FrameTrigger(Quantile("ps", 0.25, above=0.7), patience=2)
    >>> level = -6.0                                                  # dB
    >>> for epoch in range(2):
    ...     gain = torch.tensor([1.0, 10 ** (level / 20)]).view(1, 2, 1)
    ...     mixture = (gain * references).sum(1, keepdim=True)
    ...     optimizer.zero_grad()
    ...     loss(separator(mixture), references).backward()
    ...     optimizer.step()
    ...     with torch.no_grad():
    ...         frames.update(separator(mixture), references)
    ...     event = trigger.update({"ps": frames.compute()})
    ...     frames.reset()
    ...     level += 3.0 if event else 0.0
    >>> level
    -6.0
"""

from __future__ import annotations

from torch_mapss._lazy import lazy_names

_HOMES = {
    "BleedLoss": "torch_mapss.training.losses",
    "ClearanceLoss": "torch_mapss.training.losses",
    "DecompositionLoss": "torch_mapss.training.losses",
    "FidelityLoss": "torch_mapss.training.losses",
    "MAPSSLoss": "torch_mapss.training.losses",
    "MatchLoss": "torch_mapss.training.losses",
    "PerceptualLoss": "torch_mapss.training.losses",
    "SeparationLoss": "torch_mapss.training.losses",
    "LossRecord": "torch_mapss.training.terms",
    "FrameTrigger": "torch_mapss.training.curriculum",
    "CurriculumCallback": "torch_mapss.training.lightning",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
