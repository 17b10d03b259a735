r"""How far PS and PM may be off: radii, tails, and what becomes of them. Never with gradients.

Two errors a frame. The **radius** is what the discarded diffusion coordinates can change. For PS it
always holds (for the same closest cluster); so does PM's in the ``"derived"`` convention. The
paper's PM radius has constants C₁, C₂ that it does not give (1 here). The **tail** is a half-width
at the confidence asked for: mean and covariance of a cluster are estimated from its distortions. It
is first-order in those errors, its constants are unspecified, λmin is floored and the PM box is cut
at half of each parameter; the distortions are a designed bank, not a random sample.
``tail="bootstrap"`` resamples them instead. How often each interval holds its true score is
measured by ``benchmarks/coverage.py``.

* :mod:`torch_mapss.bounds.frames`: both errors of a frame;
* ``separation``, ``match``, ``schur``, ``bootstrap``, ``effective``: what they are made of;
* :mod:`torch_mapss.bounds.utterance`: errors of the pooled scores [eq:pesq_pool_h];
* :mod:`torch_mapss.bounds.correlation`: errors of a correlation with ratings [eq:pcc_hw];
* :mod:`torch_mapss.bounds.diagnostics`: whether the assumptions behind them hold.

**Errata.** ``convention="derived"`` and everything at the level of correlations read the paper as
follows: d_M, not d_M², in [eq:delta_ij_short]; distances from squared distances in [eq:temp_A],
whose ε(A) as printed adds √A times a length to A; hypot instead of a root of a sum in
[eq:ps_prob_compact]; the trace term in [eq:ps_mu_compact], without which a nominal 97.5 % covers
4 % (d = 40, n = 71); sqrt(r/n) in [eq:ps_cov]; four events in the union bound of PS; σ from σ² in
[eq:sig_b_pm]; E[E(x)] ≤ (Σλ^2t)^½, by Jensen; a bias that does not shrink with the number of
windows [eq:pesq_pool_b]; σ = p/z when intervals become standard deviations; the centred gradient of
PCC [eq:pcc_grad]; the SRCC radius from all pairs that can swap [eq:srcc_bias].

Example:
    >>> import torch
    >>> from torch_mapss.bounds import separation_bounds
    >>> _ = torch.manual_seed(0)
    >>> references = torch.randn(2, 6)                               # (S, M)
    >>> distortions = references[:, None] + 0.3 * torch.randn(2, 12, 6)
    >>> found = separation_bounds(references + 0.1, references, distortions)
    >>> found.radius.shape, bool((found.total >= found.radius).all())
    (torch.Size([2]), True)
"""

from __future__ import annotations

from torch_mapss.bounds.correlation import correlation_bounds, pearson, scenario_bounds, spearman
from torch_mapss.bounds.diagnostics import bank_correlation, gamma_fit_test, source_correlation
from torch_mapss.bounds.frames import (
    decomposition_bounds,
    match_bounds,
    separation_bounds,
    truncation_bounds,
    utterance_decomposition_bounds,
)
from torch_mapss.bounds.utterance import pool_match_bounds, pool_separation_bounds
from torch_mapss.core.frame_batches import Bounds

__all__ = [
    "Bounds",
    "bank_correlation",
    "correlation_bounds",
    "decomposition_bounds",
    "gamma_fit_test",
    "match_bounds",
    "pearson",
    "pool_match_bounds",
    "pool_separation_bounds",
    "scenario_bounds",
    "separation_bounds",
    "source_correlation",
    "spearman",
    "truncation_bounds",
    "utterance_decomposition_bounds",
]
