r"""Error bounds of PS and PM: what truncation and finitely many distortions can do to a score.

Everything here runs without gradients, on all clusters of all frames at once, and reads the same
maps as the scores. Two errors are told apart and added [eq:ps_final_bound], [eq:pm_final_bound]:

* **radius**, deterministic: the score keeps d of N-1 coordinates.
* **tail**, probabilistic: mean and covariance of a cluster are estimates from its N_p distortions.

**Truncation.** Order the coordinates retained first. Let :math:`LL^T = \Sigma + \epsilon I` be the
Cholesky factor of the full space and :math:`w = L^{-1}\Delta`. The leading block of L is the factor
of the retained block, its trailing block the factor of the Schur complement S, so
:math:`a = \sum_{\ell \le d} w_\ell^2` and :math:`b = r^T S^{-1} r = \sum_{\ell > d} w_\ell^2` of
[eq:sq_mahal_to_schur]: one factorisation gives both. (S must carry the ridge of the discarded
block, else a + b is not the full distance; [eq:schur] drops it.)

**The PS radius is no approximation.** As b >= 0, distances only grow: :math:`A' = A + \delta_A`,
:math:`B' = B + \delta_B`, :math:`0 \le \delta \le \sqrt b`. With j* kept,

.. math:: |PS' - PS| = \frac{|A\delta_B - B\delta_A|}{(A+B)(A'+B')}
          \le \frac{B\delta_A + A\delta_B}{(A+B)^2},

which is [eq:truncation_error_ps], without the Taylor step it is printed with.

**Two corners.** Q(k, a/θ) rises with k (a Gamma(k + h) variable is a Gamma(k) variable plus an
independent non-negative one, so its tail is larger) and falls with x = a/θ (the tail of a
distribution), hence rises with θ and falls with a. On a box its maximum is therefore at
(k₊, θ₊, a₋), its minimum at (k₋, θ₋, a₊); both are corners, and the largest ``|Q - Q₀|`` over the
eight corners, and over the whole box, is the larger of those two changes.

**The derived tail of PS.** Â² = Δᵀ(Σ+εI)⁻¹Δ. Moving the mean by δ and the covariance by E changes
it to first order by :math:`-2\Delta^T\Sigma^{-1}\delta - \Delta^T\Sigma^{-1}E\Sigma^{-1}\Delta`.
With λ the least eigenvalue, :math:`|\Sigma^{-1}\Delta| \le A/\sqrt\lambda`, so this is at most

.. math:: \varepsilon = 2 A \Delta_\mu/\sqrt{\lambda} + A^2 \Delta_\Sigma/\lambda .

From squares to distances, ``|A-Â| (A+Â) <= ε`` and ``A+Â >= max(Â, |A-Â|)`` give
``|A-Â| <= min(√ε, ε/Â)``. The mean of n points of covariance Σ is off by sqrt(tr Σ/n) on average
and fluctuates about that by sqrt(2 λmax ln(2/δ)/n): both enter Δ_μ. Covariances concentrate like
sqrt(r/n) + (r + ln(2/δ))/n. Two clusters, two events each: every event gets δ/4. PS then moves by
at most its gradient norm times the hypotenuse of the two distance errors.

**The derived tail of PM.** [eq:sig_b_pm] mixes R² with σ. For g in [0, R] the bound is one of σ²:
``|σ²-σ̂²| <= v = R² sqrt(2 ln(2/δ)/N_p) + 3R² ln(2/δ)/N_p``, and as above
``|σ-σ̂| <= min(√v, v/σ̂)``. The **derived radius** of PM needs no C₁, C₂: the full-space k and θ are
computed, and the box takes their true distance from the retained ones.

**What is guaranteed.** The PS radius, and the derived PM radius: always (j* and the points given).
Everything else is an approximation. The tails are first-order in the errors of mean, covariance, k
and θ; their constants (C, C₁, C₂, 1 here) are nowhere specified; λ̃min is floored at 5 % of λmax and
the box of PM is cut at half of each parameter, both to keep bounds from being extremely loose, and
both can make them too short; Δ_a has no derivation in the paper; the map itself is taken as given;
distortions are a designed bank, not a random sample. ε(A) of [eq:temp_A] adds sqrt(A) times a
length to A: it is dimensionally odd, and kept so in the paper's convention.
``benchmarks/coverage.py`` measures how often each interval holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_mapss import _checks, measures
from torch_mapss.bootstrap import bootstrap_match, bootstrap_separation, half_width
from torch_mapss.manifold import DiffusionMap, Embedding, Settings
from torch_mapss.measures import RIDGE, Layout
from torch_mapss.special import gammaincc

CONVENTIONS = ("paper", "reference", "derived")
TAILS = ("concentration", "bootstrap")
# Extra ridge of the released implementation on the Schur complement.
_REFERENCE_RIDGE = 1e-9
# Its guards: on a variance, on divisors, on an upper limit.
_REFERENCE_VARIANCE, _REFERENCE_DIVISOR, _REFERENCE_LIMIT = 1e-12, 1e-9, 1e-12


class Bounds(NamedTuple):
    """How far the scores of :mod:`torch_mapss.functional` may be off."""

    radius: Tensor  # (..., S') truncation error, deterministic
    tail: Tensor  # (..., S') finite-sample half-width at the confidence asked for
    total: Tensor  # (..., S') radius + tail


class TruncationBounds(NamedTuple):
    """Length of what the truncated embedding of a point leaves out."""

    expectation: Tensor  # (...) root mean square of E(x) under π, so at least its mean
    bound: Tensor  # (...) E(x) stays below it with the confidence asked for


class Options(NamedTuple):
    """Everything a bound depends on beside the points; see :func:`separation_bounds`."""

    confidence: float = 0.95
    convention: str = "paper"
    tail: str = "concentration"
    n_eff: float | str = 0.7
    c: float = 1.0
    c1: float = 1.0
    c2: float = 1.0
    floor: float = 0.05
    cap: float = 0.5
    draws: int = 200
    seed: int = 0


# --------------------------------------------------------------------------------------------
# Public functions
# --------------------------------------------------------------------------------------------


@torch.no_grad()
def separation_bounds(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    confidence: float = 0.95,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    alpha: float = 1.0,
    time: float = 1.0,
    energy: float = 0.99,
    convention: str = "paper",
    tail: str = "concentration",
    n_eff: float | str = 0.7,
    c: float = 1.0,
    floor: float = 0.05,
    draws: int = 200,
    seed: int = 0,
) -> Bounds:
    """Error radius and half-width of PS [sec:bounds], for the scores of the same arguments.

    |PS of the full space - PS| <= radius holds always (with the closest cluster j* kept). The tail
    is an approximation: see the module's notes, and ``benchmarks/coverage.py`` for how often it
    holds. Nothing is capped except where a convention says so: a bound above ½ says little.

    Args:
        outputs, references, distortions, attributed, active, mask, alpha, time, energy: as for
            :func:`torch_mapss.functional.perceptual_separation`.
        confidence: 1 - δ in (0, 1), for each measure on its own.
        convention: ``"paper"`` as printed, ``"reference"`` as the released implementation,
            ``"derived"`` with units, unions and constants put right (the scores are the paper's).
        tail: ``"concentration"`` (the paper's inequalities) or ``"bootstrap"``: the ``confidence``
            quantile of the change when the distortions are drawn again with replacement, on the
            map as it is. Costs ``draws`` factorisations per cluster.
        n_eff: effective sample size: a share of the cluster's points in (0, 1], or ``"bartlett"``
            to estimate it for every cluster from the autocorrelation along the bank's order
            (never more than the cluster has). Smaller is wider.
        c: constant C of [eq:ps_cov], which the paper leaves open. Larger is safer and wider.
        floor: ε_r in (0, 1], the share of λmax added to the least eigenvalue. Larger is tighter.
        draws: number of bootstrap draws.
        seed: of the bootstrap draws; every frame resamples the same distortions.

    Returns:
        :class:`Bounds` of (..., S') tensors. 0 where the score is undefined (own source inactive,
        or alone): the caller masks. Where the score is ½ by rule (both distances 0) the tail is ½.

    Raises:
        TypeError, ValueError: as the score; and a setting out of its range.
    """
    options = Options(confidence, convention, tail, n_eff, c, floor=floor, draws=draws, seed=seed)
    settings = _settings(alpha, time, energy, options)
    clouds = _checks.check_clouds(outputs, references, distortions, attributed, active, mask, 1)
    kernel = partial(separation_kernel, options=options)
    radius, width = measures.score_frames(clouds, settings, kernel, rest=True)
    return Bounds(radius, width, radius + width)


@torch.no_grad()
def match_bounds(
    outputs: Tensor,
    references: Tensor,
    distortions: Tensor,
    *,
    confidence: float = 0.95,
    attributed: Sequence[int] | Tensor | None = None,
    active: Tensor | None = None,
    mask: Tensor | None = None,
    alpha: float = 1.0,
    time: float = 1.0,
    energy: float = 0.99,
    convention: str = "paper",
    tail: str = "concentration",
    c1: float = 1.0,
    c2: float = 1.0,
    cap: float = 0.5,
    draws: int = 200,
    seed: int = 0,
) -> Bounds:
    """Error radius and half-width of PM [app:pm_measure], for the scores of the same arguments.

    The radius is guaranteed in the derived convention; in the others it depends on c1 and c2.

    Args:
        outputs, references, distortions, attributed, active, mask, alpha, time, energy: as for
            :func:`torch_mapss.functional.perceptual_match`.
        confidence, convention, tail, draws, seed: as for :func:`separation_bounds`.
        c1: C₁ of [eq:pm_k_bias], which the paper leaves open; scales the half-width of k.
        c2: C₂ of [eq:pm_theta_bias], the same for θ.
        cap: largest half-width of k, θ and a as a share of each. The paper's ½ keeps the tail from
            becoming extremely loose; ``math.inf`` removes it (and with 70 distortions then leaves
            little but vacuous tails).

    Returns:
        :class:`Bounds` of (..., S') tensors. 0 where the score is undefined. Where PM is 0 or 1 by
        the rule for collapsed clusters there is no fit, and the tail is 1.

    Raises:
        TypeError, ValueError: as the score; and a setting out of its range.
    """
    options = Options(confidence, convention, tail, c1=c1, c2=c2, cap=cap, draws=draws, seed=seed)
    settings = _settings(alpha, time, energy, options)
    clouds = _checks.check_clouds(outputs, references, distortions, attributed, active, mask, 2)
    kernel = partial(match_kernel, options=options)
    radius, width = measures.score_frames(clouds, settings, kernel, rest=True)
    return Bounds(radius, width, radius + width)


@torch.no_grad()
def truncation_bounds(
    embedded: DiffusionMap,
    confidence: float = 0.95,
    *,
    time: float = 1.0,
    c: float = 1.0,
    convention: str = "paper",
) -> TruncationBounds:
    r"""Truncation error E(x) of the embedding itself [app:conf_bound_pi], x drawn from π.

    E(x) is the length of the discarded coordinates of a point. Its mean square under π is
    :math:`\sum_{\ell>d}\lambda_\ell^{2t}`; the paper prints the root as its mean, which it bounds
    from above (Jensen).

    The printed high-probability bound :math:`C\lambda_{d+1}^t K (m + \sqrt{m \ln(1/\delta)})` is
    never below one that always holds: :math:`\sum_\ell u_\ell(i)^2 = 1/\pi_i - 1`, so
    :math:`E(x_i) \le \lambda_{d+1}^t (1/\pi_{min} - 1)^{1/2} < \lambda_{d+1}^t K`. ``"derived"``
    gives the smaller of this and Markov's :math:`(\sum\lambda^{2t}/\delta)^{1/2}`.

    Args:
        embedded: of :func:`torch_mapss.functional.diffusion_map`, paper convention.
        confidence: 1 - δ in (0, 1).
        time: the t the map was made with.
        c: constant C, which the paper leaves open (printed bound only).
        convention: ``"paper"`` or ``"derived"``.

    Returns:
        :class:`TruncationBounds` of (...) tensors; 0 where nothing is discarded.

    Raises:
        ValueError: a setting out of its range.
    """
    check_confidence(confidence)
    _checks.check_choice(convention, "convention", ("paper", "derived"))
    present = embedded.stationary > 0.0
    m = (present.sum(-1) - 1 - embedded.dimension).clamp(min=0)
    index = torch.arange(embedded.eigenvalues.shape[-1], device=m.device)
    discarded = index >= embedded.dimension.unsqueeze(-1)
    powers = torch.where(discarded, embedded.eigenvalues.pow(time), 0.0)
    square = powers.square().sum(-1)
    least = torch.where(present, embedded.stationary, 1.0).amin(-1)
    following = powers.amax(-1)
    if convention == "derived":
        sure = following * (1.0 / least - 1.0).clamp(min=0.0).sqrt()
        bound = torch.minimum(sure, (square / (1.0 - confidence)).sqrt())
    else:
        k = (least * math.log(2.0)).rsqrt()
        log = -math.log1p(-confidence)
        m = m.to(following.dtype)
        bound = c * following * k * (m + (m * log).sqrt())
    return TruncationBounds(square.sqrt(), bound)


# --------------------------------------------------------------------------------------------
# Checks
# --------------------------------------------------------------------------------------------


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless ``confidence`` lies in (0, 1)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(
            f"confidence must lie strictly between 0 and 1, got {confidence}. It is the share of "
            "cases the interval is to hold, e.g. 0.95 (not 95)."
        )


def _settings(alpha: float, time: float, energy: float, options: Options) -> Settings:
    _check_options(options)
    graph = "reference" if options.convention == "reference" else "paper"
    _checks.check_map_settings(alpha, time, energy, graph, _checks.CONVENTIONS)
    return Settings(alpha, time, energy, graph)


def _check_options(options: Options) -> None:
    check_confidence(options.confidence)
    _checks.check_choice(options.convention, "convention", CONVENTIONS)
    _checks.check_choice(options.tail, "tail", TAILS)
    share = options.n_eff
    if isinstance(share, str):
        _checks.check_choice(share, "n_eff", ("bartlett",))
    elif not 0.0 < share <= 1.0:
        raise ValueError(
            f"n_eff must be a share of the cluster's points in (0, 1] or 'bartlett', got {share}."
        )
    for name in ("c", "c1", "c2", "cap"):
        if not getattr(options, name) > 0.0:
            raise ValueError(f"{name} must be positive, got {getattr(options, name)}.")
    if not 0.0 < options.floor <= 1.0:
        raise ValueError(
            f"floor must lie in (0, 1], got {options.floor}. It is the share of the largest "
            "eigenvalue that is added to the least one; the paper takes 0.05."
        )
    if options.draws < 1:
        raise ValueError(f"draws must be at least 1, got {options.draws}. Use 200 or more.")


# --------------------------------------------------------------------------------------------
# The full space
# --------------------------------------------------------------------------------------------


def whole_space(embedding: Embedding) -> Embedding:
    """The embedding with all N-1 coordinates in place of the d retained ones."""
    if embedding.rest is None:
        return embedding
    missing = embedding.rest.shape[-1] - embedding.coordinates.shape[-1]
    return embedding._replace(coordinates=pad(embedding.coordinates, (0, missing)) + embedding.rest)


def _is_retained(embedding: Embedding, width: int) -> Tensor:
    """(F, width) bool: columns below d."""
    index = torch.arange(width, device=embedding.dimension.device)
    return index < embedding.dimension.unsqueeze(-1)


def schur_parts(factor: Tensor, deviations: Tensor, retained: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of [eq:sq_mahal_to_schur] for the rows of ``deviations``.

    Args:
        factor: (F, S, D, D) Cholesky factor of the ridge covariance, retained coordinates first.
        deviations: (F, S, n, D).
        retained: (F, D) bool.

    Returns:
        The retained and the discarded part of the squared distance, each (F, S, n).
    """
    whitened = torch.linalg.solve_triangular(factor, deviations.mT, upper=False)
    squares = whitened.square()
    kept = retained[:, None, :, None]
    return torch.where(kept, squares, 0.0).sum(-2), torch.where(kept, 0.0, squares).sum(-2)


def _factor(deviations: Tensor, divisor: Tensor, retained: Tensor, settings: Settings) -> Tensor:
    """Cholesky factor of Σ + εI; the released implementation adds 1e-9 on the discarded block."""
    if settings.convention != "reference":
        return measures.ridge_factor(deviations, divisor)
    matrix = deviations.mT @ deviations / divisor[..., None, None]
    matrix = matrix + torch.diag_embed(_reference_ridge(retained, matrix.dtype))
    return torch.linalg.cholesky_ex(matrix).L


def _reference_ridge(retained: Tensor, dtype: torch.dtype) -> Tensor:
    """(F, 1, D) diagonal: ε, and 1e-9 more where discarded."""
    return (RIDGE + _REFERENCE_RIDGE * (~retained).to(dtype)).unsqueeze(-2)


def _nothing_discarded(embedding: Embedding, layout: Layout) -> Tensor:
    """(F, 1) bool: d = N-1."""
    points = embedding.coordinates
    valid = measures._validity(layout, len(points), points.device)
    count = points.shape[-2] if valid is None else valid.sum(-1)
    return (embedding.dimension == count - 1).unsqueeze(-1)


# --------------------------------------------------------------------------------------------
# PS
# --------------------------------------------------------------------------------------------


class Sides(NamedTuple):
    """Every output against its own cluster and the closest foreign one, in this order."""

    distance: Tensor  # (F, S', 2) A and B, retained
    discarded: Tensor  # (F, S', 2) b = rᵀS⁻¹r of either
    cluster: Tensor  # (F, S', 2) int64, index of the cluster
    scored: Tensor  # (F, S') bool


class Spread(NamedTuple):
    """What the tail of PS reads of a cluster; eigenvalues of Σ^(d) as shares of the largest."""

    top: Tensor  # λmax
    floored: Tensor  # λ̃min / λmax
    rank: Tensor  # r, trace / λmax
    size: Tensor  # n_eff


def separation_kernel(
    embedding: Embedding, layout: Layout, settings: Settings, options: Options
) -> tuple[Tensor, Tensor]:
    """Radius and tail of PS (F, S') of a chunk of frames."""
    sides = separation_sides(embedding, layout, settings)
    radius = _separation_radius(sides)
    if options.tail == "bootstrap":
        score, draws = bootstrap_separation(
            embedding, layout, settings, options.draws, options.seed
        )
        tail = half_width(draws, score, options.confidence)
        tail = torch.where(_undecided(sides), 0.5, tail)
    else:
        tail = _separation_tail(sides, _spread(embedding, layout, options), options)
    if options.convention == "reference":
        unbounded = ~_nothing_discarded(embedding, layout)
        radius, tail = radius * unbounded, tail * unbounded
    return torch.where(sides.scored, radius, 0.0), torch.where(sides.scored, tail, 0.0)


def separation_sides(embedding: Embedding, layout: Layout, settings: Settings) -> Sides:
    """Retained and discarded parts of every output's two distances, j* that of the retained."""
    full = whole_space(embedding)
    outputs, clusters = measures._split(full.coordinates, layout)
    active, present = measures._presence(layout, len(outputs), outputs.device)
    mean, deviations, divisor = measures.cluster_statistics(clusters, present)
    retained = _is_retained(embedding, outputs.shape[-1])
    factor = _factor(deviations, divisor, retained, settings)
    delta = outputs.unsqueeze(-3) - mean.unsqueeze(-2)  # (F, S, S', D)
    kept, discarded = (part.mT for part in schur_parts(factor, delta, retained))
    cluster = _own_and_nearest(kept, active, layout)
    ridge = RIDGE if settings.convention == "reference" else 0.0
    return Sides(
        (kept.gather(-1, cluster) + ridge).sqrt(),
        discarded.gather(-1, cluster),
        cluster,
        measures._scored(layout, len(outputs), outputs.device),
    )


def _own_and_nearest(squared: Tensor, active: Tensor, layout: Layout) -> Tensor:
    """(F, S', 2) index of the attributed and of the closest other active cluster."""
    own = torch.tensor(layout.attributed, device=squared.device)
    own = own.expand(len(squared), -1).unsqueeze(-1)
    everyone = torch.arange(layout.sources, device=squared.device)
    foreign = (everyone != own) & active.unsqueeze(-2)
    nearest = torch.where(foreign, squared, torch.inf).argmin(-1, keepdim=True)
    return torch.cat([own, nearest], -1)


def _undecided(sides: Sides) -> Tensor:
    """(F, S') both distances are 0 and PS is ½ by rule: nothing bounds it but its range."""
    return sides.distance.sum(-1) <= 0.0


def _separation_radius(sides: Sides) -> Tensor:
    """[eq:truncation_error_ps]; 0 where PS is ½ by rule (its tail is vacuous there)."""
    total = sides.distance.sum(-1)
    weighted = (sides.distance.flip(-1) * sides.discarded.sqrt()).sum(-1)
    safe = torch.where(total > 0.0, total, 1.0)
    return torch.where(total > 0.0, weighted / safe.square(), 0.0)


def _spread(embedding: Embedding, layout: Layout, options: Options) -> Spread:
    """:class:`Spread` of every cluster, each field (F, S)."""
    _, clusters = measures._split(embedding.coordinates, layout)
    _, present = measures._presence(layout, len(clusters), clusters.device)
    _, deviations, divisor = measures.cluster_statistics(clusters, present)
    covariance = deviations.mT @ deviations / divisor[..., None, None]
    ridge = RIDGE if options.convention == "reference" else 0.0
    bottom, top, trace = _extreme_eigenvalues(covariance, embedding.dimension.unsqueeze(-1))
    bottom, top = bottom + ridge, top + ridge
    trace = trace + ridge * embedding.dimension.unsqueeze(-1)
    some = top > 0.0
    share = torch.where(some, bottom / torch.where(some, top, 1.0), 0.0)
    rank = torch.where(some, trace / torch.where(some, top, 1.0), 1.0)
    if options.convention == "reference":
        floored = share.clamp(min=options.floor)
    else:
        floored = share + options.floor  # λmin(Σ + ε_r λmax I)
    size = _effective_size(clusters, present, embedding.dimension, options)
    return Spread(top, floored, rank, size)


def _extreme_eigenvalues(covariance: Tensor, dimension: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Least and largest eigenvalue and trace of the leading d×d blocks of (F, S, D, D).

    Rows beyond d are zero. Their diagonal is set to the mean eigenvalue, which lies between the
    two extremes and so leaves both as they are.
    """
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    index = torch.arange(covariance.shape[-1], device=covariance.device)
    beyond = index >= dimension.unsqueeze(-1)
    filler = torch.where(beyond, (trace / dimension).unsqueeze(-1), 0.0)
    values = torch.linalg.eigvalsh(covariance + torch.diag_embed(filler)).clamp(min=0.0)
    return values[..., 0], values[..., -1], trace


def _effective_size(
    clusters: Tensor, present: Tensor, dimension: Tensor, options: Options
) -> Tensor:
    """n_eff (F, S) of every cluster, at least 1."""
    count = present.sum(-1).to(clusters.dtype)
    if isinstance(options.n_eff, str):
        correlation = bartlett_sum(clusters, present, dimension)
        size = count / (1.0 + 2.0 * correlation).clamp(min=1.0)
    else:
        size = options.n_eff * count
    if options.convention == "reference":
        size = size.floor().clamp(min=3.0)
    return size.clamp(min=1.0)


def _separation_tail(sides: Sides, spread: Spread, options: Options) -> Tensor:
    """[eq:aftermizath] in the three conventions."""
    delta = 1.0 - options.confidence
    a, b = sides.distance.unbind(-1)
    some = a + b > 0.0
    slope = torch.hypot(a, b) / torch.where(some, a + b, 1.0).square()
    picked = Spread(*(_of_sides(field, sides) for field in spread))
    if options.convention == "derived":
        error = derived_distance_error(sides.distance, picked, delta / 4.0, options.c)
        tail = slope * torch.linalg.vector_norm(error, dim=-1)
    elif options.convention == "reference":
        own = picked._replace(size=picked.size[..., :1])  # the own cluster's size serves both
        error = _printed_distance_error(sides.distance, own, delta / 2.0, options)
        tail = (slope * torch.linalg.vector_norm(error, dim=-1)).clamp(max=1.0)
    else:
        error = _printed_distance_error(sides.distance, picked, delta / 2.0, options)
        tail = slope * error.sum(-1).sqrt()
    return torch.where(some, tail, 0.5)


def _of_sides(values: Tensor, sides: Sides) -> Tensor:
    """values (F, S) of the clusters of every side, (F, S', 2)."""
    wide = values.unsqueeze(-2).expand(*sides.cluster.shape[:-1], values.shape[-1])
    return wide.gather(-1, sides.cluster)


def _printed_distance_error(
    distance: Tensor, spread: Spread, delta: float, options: Options
) -> Tensor:
    """ε(A) of [eq:temp_A] as printed, with Δ_μ of [eq:ps_mu] and Δ_Σ of [eq:ps_cov]."""
    log = math.log(2.0 / delta)
    mean = (2.0 * spread.top * log / spread.size).sqrt()
    first = (spread.rank / spread.size).sqrt()
    if options.convention != "reference":
        first = spread.rank / spread.size
    covariance = options.c * (first + (spread.rank + log) / spread.size)  # over λmax
    return 2.0 * distance.sqrt() * mean * spread.floored.rsqrt() + distance * covariance


def derived_distance_error(
    distance: Tensor, spread: Spread, delta: float, c: float = 1.0
) -> Tensor:
    """|A - Â| from the error of A², each event with probability ``delta``; see the module."""
    log = math.log(2.0 / delta)
    n = spread.size
    mean = (2.0 * log / n).sqrt() + (spread.rank / n).sqrt()  # over sqrt λmax
    covariance = c * ((spread.rank / n).sqrt() + (spread.rank + log) / n)  # over λmax
    squared = 2.0 * distance * mean * spread.floored.rsqrt()
    squared = squared + distance.square() * covariance / spread.floored
    safe = torch.where(distance > 0.0, distance, 1.0)
    return torch.where(distance > 0.0, torch.minimum(squared.sqrt(), squared / safe), 0.0)


# --------------------------------------------------------------------------------------------
# Bartlett's effective sample size
# --------------------------------------------------------------------------------------------


def lag_correlations(clusters: Tensor, present: Tensor, dimension: Tensor) -> Tensor:
    """ρ̂_ℓ along the bank's order, averaged over the d retained coordinates [sec:bounds].

    ρ̂_ℓ of a coordinate is the Pearson correlation of x_1 … x_(n-ℓ) with x_(1+ℓ) … x_n. Sums of
    products of all lags come from one Fourier transform, the rest from cumulative sums.

    Args:
        clusters: (F, S, n, D), zero beyond d.
        present: (F, S, n) bool; absent points leave the order.
        dimension: (F,) d.

    Returns:
        (F, S, n-1), lags 1 to n-1; a coordinate that does not vary counts as 0.
    """
    n = clusters.shape[-2]
    order = (~present).to(torch.uint8).argsort(dim=-1, stable=True)
    x = clusters.gather(-2, order.unsqueeze(-1).expand_as(clusters))
    here = present.gather(-1, order).unsqueeze(-1)
    count = present.sum(-1)[..., None, None]  # (F, S, 1, 1)
    x = torch.where(here, x - (x * here).sum(-2, keepdim=True) / count.clamp(min=1), 0.0)
    transform = torch.fft.rfft(x, n=2 * n, dim=-2)
    products = torch.fft.irfft(transform.abs().square(), n=2 * n, dim=-2)[..., 1:n, :]
    lag = torch.arange(1, n, device=x.device)[:, None]
    size = (count - lag).clamp(min=1).to(x.dtype)
    early, late = _ends(x, count, lag)
    early_square, late_square = _ends(x.square(), count, lag)
    covariance = products - early * late / size
    early, late = early_square - early.square() / size, late_square - late.square() / size
    rounding = 1e-12 * x.square().sum(-2, keepdim=True)
    varies = (early > rounding) & (late > rounding)
    scale = torch.where(varies, early * late, 1.0).sqrt()
    correlation = torch.where(varies, covariance / scale, 0.0)
    correlation = torch.where(count - lag >= 2, correlation, 0.0)
    return correlation.sum(-1) / dimension[:, None, None]


def _ends(x: Tensor, count: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the first and of the last count - ℓ rows of x (F, S, n, D), each (F, S, n-1, D)."""
    total = x.sum(-2, keepdim=True)
    head = x.cumsum(-2)
    place = (count - lag - 1).clamp(min=0).expand(*lag.shape[:-2], *head.shape[:-2], len(lag), 1)
    early = head.gather(-2, place.expand(*place.shape[:-1], x.shape[-1]))
    return early, total - head[..., : len(lag), :]


def bartlett_sum(clusters: Tensor, present: Tensor, dimension: Tensor) -> Tensor:
    """Σ_{ℓ≤L} ρ̂_ℓ, (F, S): up to and with the first insignificant lag L [sec:bounds]."""
    rho = lag_correlations(clusters, present, dimension)
    count = present.sum(-1, keepdim=True)
    lag = torch.arange(1, rho.shape[-1] + 1, device=rho.device)
    z = normal_quantile(0.95)
    insignificant = rho.abs() < z / (count - lag).clamp(min=1).to(rho.dtype).sqrt()
    usable = lag <= count - 2
    before = (insignificant & usable).cumsum(-1) - (insignificant & usable).to(torch.int64)
    return torch.where(usable & (before == 0), rho, 0.0).sum(-1)


def normal_quantile(confidence: float) -> float:
    """z_{c*}, c* = (1 + c)/2: half-width of a standard normal interval of that confidence."""
    return math.sqrt(2.0) * float(torch.erfinv(torch.tensor(confidence, dtype=torch.float64)))


# --------------------------------------------------------------------------------------------
# PM
# --------------------------------------------------------------------------------------------


class MatchParts(NamedTuple):
    """Squared distances from the reference, split at d."""

    g: Tensor  # (F, S', P) of the distortions, retained
    gaps: Tensor  # (F, S', P) what the discarded coordinates add [eq:diff_sq_mahal]
    a: Tensor  # (F, S') of the output, retained
    gap_a: Tensor  # (F, S') [eq:diff_sq_mahal_out]
    there: Tensor  # (F, S', P) bool
    members: Tensor  # (F, S') N_p


class Gamma(NamedTuple):
    """Moments of the squared distances of a cluster and their Gamma."""

    mean: Tensor
    variance: Tensor
    k: Tensor
    theta: Tensor


Box = tuple[Tensor, Tensor, Tensor]  # k, θ, a: a point, or half-widths


def match_kernel(
    embedding: Embedding, layout: Layout, settings: Settings, options: Options
) -> tuple[Tensor, Tensor]:
    """Radius and tail of PM (F, S') of a chunk of frames."""
    parts = match_parts(embedding, layout, settings)
    fit, collapsed = _fit(parts, embedding, settings)
    radius = _match_radius(parts, fit, options)
    if options.tail == "bootstrap":
        score, draws = bootstrap_match(embedding, layout, settings, options.draws, options.seed)
        tail = half_width(draws, score, options.confidence)
    else:
        tail = _match_tail(parts, fit, options)
    radius, tail = torch.where(collapsed, 0.0, radius), torch.where(collapsed, 1.0, tail)
    scored = measures._scored(layout, len(radius), radius.device)
    if options.convention == "reference":
        scored = scored & ~_nothing_discarded(embedding, layout)
    return torch.where(scored, radius, 0.0), torch.where(scored, tail, 0.0)


def match_parts(embedding: Embedding, layout: Layout, settings: Settings) -> MatchParts:
    """:class:`MatchParts` of every output of a chunk of frames."""
    full = whole_space(embedding)
    deviations, output, there, count = measures.attributed_deviations(full, layout)
    retained = _is_retained(embedding, output.shape[-1])
    rows = torch.cat([deviations, output.unsqueeze(-2)], -2)
    divisor = (count - 1).clamp(min=1)
    if settings.convention == "reference":
        kept, discarded = _reference_parts(rows, there, divisor, retained)
    else:
        factor = measures.ridge_factor(deviations, divisor)
        kept, discarded = schur_parts(factor, rows, retained)
    floor = measures.rounding_floor(embedding.coordinates).unsqueeze(-1)
    a = torch.where(kept[..., -1] <= floor, 0.0, kept[..., -1])
    gaps = torch.where(there, discarded[..., :-1], 0.0)
    return MatchParts(kept[..., :-1], gaps, a, discarded[..., -1], there, count)


def _reference_parts(
    rows: Tensor, there: Tensor, divisor: Tensor, retained: Tensor
) -> tuple[Tensor, Tensor]:
    """a and b as the released implementation has them: Σ_d, Σ_m about the mean of the deviations,
    C_dm about the reference. The matrix need not be positive, so b may have either sign."""
    deviations = rows[..., :-1, :]
    about_reference = deviations.mT @ deviations / divisor[..., None, None]
    mean = deviations.sum(-2, keepdim=True) / (divisor + 1)[..., None, None]
    centred = torch.where(there.unsqueeze(-1), deviations - mean, 0.0)
    about_mean = centred.mT @ centred / divisor[..., None, None]
    kept = retained[:, None, :]
    same = kept.unsqueeze(-1) == kept.unsqueeze(-2)
    matrix = torch.where(same, about_mean, about_reference)
    matrix = matrix + torch.diag_embed(_reference_ridge(retained, rows.dtype))
    return _block_parts(matrix, rows, kept)


def _block_parts(matrix: Tensor, rows: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of [eq:sq_mahal_to_schur] by explicit blocks; ``kept`` (F, 1, D)."""
    both = kept.unsqueeze(-1) & kept.unsqueeze(-2)
    neither = ~kept.unsqueeze(-1) & ~kept.unsqueeze(-2)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    top = torch.linalg.cholesky_ex(torch.where(both, matrix, eye)).L
    cross = torch.where(kept.unsqueeze(-1) & ~kept.unsqueeze(-2), matrix, 0.0)
    head = torch.where(kept.unsqueeze(-2), rows, 0.0).mT  # (F, S', D, n)
    left = torch.linalg.solve_triangular(top, torch.cat([cross, head], -1), upper=False)
    cross, head = left.split([matrix.shape[-1], rows.shape[-2]], -1)
    schur = torch.where(neither, matrix - cross.mT @ cross, eye)
    residual = torch.where(kept.unsqueeze(-1), 0.0, rows.mT - cross.mT @ head)
    return head.square().sum(-2), (residual * torch.linalg.solve(schur, residual)).sum(-2)


def _fit(parts: MatchParts, embedding: Embedding, settings: Settings) -> tuple[Gamma, Tensor]:
    """Gamma of the retained distances, and where there is none (1 and 1 stand in for it)."""
    mean, variance = measures.masked_moments(parts.g, parts.there, parts.members)
    floor = measures.rounding_floor(embedding.coordinates).unsqueeze(-1)
    collapsed = measures._collapsed(mean, variance, floor, settings)
    collapsed = collapsed | embedding.degenerate.unsqueeze(-1)
    mean, variance = torch.where(collapsed, 1.0, mean), torch.where(collapsed, 1.0, variance)
    if settings.convention == "reference":
        variance = variance + _REFERENCE_VARIANCE
    return gamma(mean, variance), collapsed


def gamma(mean: Tensor, variance: Tensor) -> Gamma:
    """[eq:gamma_matching]."""
    return Gamma(mean, variance, mean.square() / variance, variance / mean)


def corner_maximum(centre: Box, half: Box, floors: tuple[float, float, float]) -> Tensor:
    """Largest change of Q over a box [eq:pm_corner_radius]; two corners suffice, see the module."""
    least, most = [], []
    for middle, width, floor in zip(centre, half, floors):
        least.append((middle - width.abs()).clamp(min=floor))
        most.append((middle + width.abs()).clamp(min=floor))
    at_centre = gammaincc(centre[0], centre[2] / centre[1])
    highest = gammaincc(most[0], least[2] / most[1])
    lowest = gammaincc(least[0], most[2] / least[1])
    return torch.maximum(highest - at_centre, at_centre - lowest).clamp(min=0.0)


def _match_radius(parts: MatchParts, fit: Gamma, options: Options) -> Tensor:
    """[eq:ps_bias] over the box of [eq:pm_k_bias] and [eq:pm_theta_bias], or the exact one."""
    mean, variance = measures.masked_moments(parts.g + parts.gaps, parts.there, parts.members)
    floors = (1e-12, 1e-12, 0.0)
    if options.convention == "derived":
        floored = torch.where(variance > 0.0, variance, fit.variance)
        full = gamma(torch.where(mean > 0.0, mean, fit.mean), floored)
        half = options.c1 * (full.k - fit.k), options.c2 * (full.theta - fit.theta), parts.gap_a
        return corner_maximum((fit.k, fit.theta, parts.a), half, floors)
    guard = 0.0
    if options.convention == "reference":
        variance, guard, floors = (
            variance + _REFERENCE_VARIANCE,
            _REFERENCE_DIVISOR,
            (1e-6, 1e-6, 1e-8),
        )
    largest = torch.where(parts.there, parts.gaps, -torch.inf).amax(-1)
    largest = torch.where(torch.isfinite(largest), largest, 0.0)  # no distortion: not scored
    count = parts.members.to(parts.a.dtype)
    factor = largest * count / (count - 1).clamp(min=1)
    half = (
        options.c1 * factor * (mean + fit.mean) / fit.variance,
        options.c2 * factor * (variance + fit.variance) / (fit.mean.square() + guard),
        parts.gap_a,
    )
    return corner_maximum((fit.k, fit.theta, parts.a), half, floors)


def _match_tail(parts: MatchParts, fit: Gamma, options: Options) -> Tensor:
    """[eq:pm_prob_tail]: moments by Bernstein, k and θ to first order, then the box."""
    log = math.log(6.0 / (1.0 - options.confidence))  # ln(2/(δ/3))
    over_n = log / parts.members.clamp(min=1).to(parts.a.dtype)  # an integer divides in float32
    sigma = fit.variance.sqrt()
    reference = options.convention == "reference"
    largest, delta_a = _distance_range(parts, over_n, reference)
    delta_mu = (2.0 * fit.variance * over_n).sqrt() + 3.0 * largest * over_n
    delta_sigma = _deviation_error(sigma, largest, over_n, options.convention)
    guard = _REFERENCE_DIVISOR if reference else 0.0
    by_mu = 2.0 * fit.mean / (fit.variance + guard), fit.variance / (fit.mean.square() + guard)
    by_sigma = 2.0 * fit.mean.square() / (sigma**3 + guard), 2.0 * sigma / (fit.mean + guard)
    limit_a = options.cap * parts.a + (_REFERENCE_LIMIT if reference else 0.0)
    half = (
        torch.minimum(by_mu[0] * delta_mu + by_sigma[0] * delta_sigma, options.cap * fit.k),
        torch.minimum(by_mu[1] * delta_mu + by_sigma[1] * delta_sigma, options.cap * fit.theta),
        torch.minimum(delta_a, limit_a),
    )
    floors = (1e-12, 1e-12, 1e-8 if reference else 0.0)
    return corner_maximum((fit.k, fit.theta, parts.a), half, floors)


def _distance_range(parts: MatchParts, over_n: Tensor, reference: bool) -> tuple[Tensor, Tensor]:
    """R, over the full space (the retained one in the reference convention), and Δ_a."""
    if reference:
        largest = torch.where(parts.there, parts.g, 0.0).amax(-1) + _REFERENCE_LIMIT
        return largest, largest * (2.0 * over_n).sqrt()
    largest = torch.where(parts.there, parts.g + parts.gaps, 0.0).amax(-1)
    return largest, largest * over_n.sqrt()


def _deviation_error(sigma: Tensor, largest: Tensor, over_n: Tensor, convention: str) -> Tensor:
    """Δ_σ [eq:sig_b_pm]; "derived" bounds σ² and converts."""
    if convention != "derived":
        return largest * (2.0 * over_n).sqrt() + 3.0 * largest.square() * over_n
    of_variance = largest.square() * ((2.0 * over_n).sqrt() + 3.0 * over_n)
    return torch.minimum(of_variance.sqrt(), of_variance / sigma)
