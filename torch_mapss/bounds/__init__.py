r"""Error bounds of the scores, and their propagation to utterances and correlations. No gradients.

Each frame has two errors. The **radius** is the largest change that the discarded diffusion
coordinates can cause. For PS it always holds (for the same closest cluster), and so does PM's in
the ``"derived"`` convention. The paper's PM radius has constants C₁, C₂ that it leaves open (1
here). The **tail** is a half-width at the requested confidence, as the mean and covariance of a
cluster are estimated from its distortions. It is first-order in those errors, its constants are
unspecified (1 here); λ̃min is floored at 5 % of λmax and the PM box is cut at half of each
parameter, both to keep bounds from being extremely loose, and both can make them too short; Δ_a has
no derivation in the paper; the map itself is treated as fixed; the distortions are a designed bank,
not a random sample. ``tail="bootstrap"`` resamples them instead.
``benchmarks/coverage.py`` measures how often each interval contains the true score.

* :mod:`torch_mapss.bounds.frames`: both errors of a frame;
* ``separation``, ``match``, ``schur``, ``bootstrap``, ``effective``: their ingredients;
* :mod:`torch_mapss.bounds.utterance`: errors of the pooled scores [eq:pesq_pool_h];
* :mod:`torch_mapss.bounds.correlation`: errors of a correlation with ratings [eq:pcc_hw];
* :mod:`torch_mapss.bounds.diagnostics`: whether the assumptions behind them hold.

**Errata.** ``convention="derived"``, and everything at the level of correlations, reads the paper
with these corrections:

* [eq:delta_ij_short]: d_M, not d_M²;
* [eq:temp_A]: distances from squared distances (ε(A) as printed adds √A times a length to A);
* [eq:ps_prob_compact]: hypot instead of the root of a sum;
* [eq:ps_mu_compact]: with the trace term, without which a nominal 97.5 % covers 4 % (d = 40, n =
  71);
* [eq:ps_cov]: sqrt(r/n);
* union bound of PS: four events;
* [eq:sig_b_pm]: σ from σ²;
* truncation error: E[E(x)] ≤ (Σλ^2t)^½, by Jensen;
* [eq:pesq_pool_b]: the bias does not shrink with the number of windows;
* intervals as standard deviations: σ = p/z;
* [eq:pcc_grad]: the gradient of PCC with both vectors centred;
* [eq:srcc_bias]: the SRCC radius from all pairs that can swap.

Example:
    >>> import torch
    >>> from torch_mapss.bounds import separation_bounds
    >>> _ = torch.manual_seed(0)
    >>> references = torch.randn(2, 6)                               # (S, M)
    >>> distortions = references[:, None] + 0.3 * torch.randn(2, 12, 6)
    >>> bounds = separation_bounds(references + 0.1, references, distortions)
    >>> bounds.radius.shape, bool((bounds.total >= bounds.radius).all())
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
from torch_mapss.core.error_bounds import Bounds

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
