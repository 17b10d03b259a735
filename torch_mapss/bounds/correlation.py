r"""Utterances -> correlation with listeners: PCC and SRCC with their own error.

One trial and source gives Q systems a score each, with a radius b and a half-width h, and a rating
each [sec:propagate_ci_to_corr]. Printed formulas that cannot be correct are corrected here:

* PCC. With both vectors centred (x, m), :math:`\nabla r = m/(|x||m|) - r\,x/|x|^2` [eq:pcc_grad].
  The radius is :math:`|\nabla r||b|` [eq:pcc_bias]; biases may have any signs, so b itself is not
  centred. Half-width: the delta method [eq:pcc_hw]. Both are first-order.
* SRCC. Ranks are steps, so there is no gradient. Write sgn for the order of a pair; centred average
  ranks are :math:`R_i = \tfrac12\sum_j sgn(v_i - v_j)`, so for any scores v

  .. math:: \rho = \frac{N}{D\,|m|}, \quad N = \tfrac12\sum_{i<j} sgn(v_i-v_j)(m_i-m_j), \quad
            D^2 = \sum_i R_i^2 = \tfrac1{12}\Big(Q^3 - Q - \sum_i (t_i^2 - 1)\Big),

  m the centred ranks of the ratings, t_i how many systems share the rank of i. A pair farther apart
  than :math:`b_i + b_j` keeps its order. Every other pair independently takes the order that makes
  N largest (or smallest), and t_i is at most 1 + the number of such pairs of i. That is the radius:
  no bias within b can move ρ farther, ties included. Trying only ±b, as printed, misses most swaps.
  Half-width: the c quantile of the change under Gaussian jitter [eq:srcc_hw].

That is ``convention="derived"``. ``"paper"`` has the radii and the SRCC's half-width as printed, to
be compared with its tables: b centred in [eq:pcc_bias], ±b alone in [eq:srcc_bias], and in
[eq:srcc_hw] the c* = (1 + c)/2 quantile, which is that of a one-sided change. (The gradient has
both vectors centred here too: the printed expression is not a gradient.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_mapss.bounds.bootstrap import quantile
from torch_mapss.bounds.effective import normal_quantile
from torch_mapss.bounds.settings import POOLED_CONVENTIONS, check_confidence
from torch_mapss.core import checks, devices
from torch_mapss.core.pooling import masked_mean

METHODS = ("pearson", "spearman")
# Jittered ranks of this many numbers are held at once.
_BLOCK = 2**22


class CorrelationBounds(NamedTuple):
    """A correlation of scores with ratings, or the mean of several, and its error bounds."""

    value: Tensor  # (...) the correlation
    radius: Tensor  # (...) from the radii of the scores; of a mean [eq:scenario_bias]
    half_width: Tensor  # (...) at the confidence of the scores'; [eq:scenario_halfwidth_pcc]
    total: Tensor  # (...) radius + half-width
    # (...) int64: systems with both a score and a rating; of a mean, correlations that are defined.
    counted: Tensor


# --------------------------------------------------------------------------------------------
# Correlations
# --------------------------------------------------------------------------------------------


@torch.no_grad()
def pearson(scores: Tensor, ratings: Tensor) -> Tensor:
    """PCC of scores and ratings over systems [eq:ps_pcc_i].

    Args:
        scores: (..., Q), one per system; NaN where missing.
        ratings: (..., Q), likewise.

    Returns:
        (...) in [-1, 1], over the systems that have both. NaN, with a UserWarning, where it does
        not exist: if scores or ratings are all the same, or fewer than two systems have both.

    Raises:
        TypeError: not floating point.
        ValueError: shapes that do not fit, or infinite values.
    """
    arguments = _paired(scores, ratings)
    return torch.where(_defined(*arguments), _pearson(*arguments), torch.nan)


@torch.no_grad()
def spearman(scores: Tensor, ratings: Tensor) -> Tensor:
    """SRCC of scores and ratings [eq:srcc_ps]: the PCC of their ranks, ties at average ranks.

    Arguments, result and errors as :func:`pearson`.
    """
    arguments = _paired(scores, ratings)
    return torch.where(_defined(*arguments), _spearman(*arguments), torch.nan)


def _ranks(values: Tensor, present: Tensor) -> Tensor:
    """Average ranks among the systems that are present.

    Only exactly equal scores are tied, as in scipy.stats.spearmanr: saturated scores and ratings on
    a scale are exactly equal. The radius says whether scores that nearly coincide could change
    places.
    """
    from scipy.stats import rankdata

    ranks = rankdata(torch.where(present, values, torch.inf).cpu().numpy(), axis=-1)
    return torch.from_numpy(ranks).to(values.device)


def _centred(values: Tensor, present: Tensor) -> Tensor:
    mean = masked_mean(values, present).unsqueeze(-1)
    return torch.where(present, values - mean, 0.0)


def _pearson(x: Tensor, m: Tensor, present: Tensor) -> Tensor:
    """PCC over the last axis; 0 where a vector does not vary."""
    x, m = _centred(x, present), _centred(m, present)
    scale = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(m, dim=-1)
    varies = scale > 0.0
    return torch.where(varies, (x * m).sum(-1) / torch.where(varies, scale, 1.0), 0.0).clamp(
        -1.0, 1.0
    )


def _spearman(x: Tensor, m: Tensor, present: Tensor) -> Tensor:
    """SRCC over the last axis; 0 where a vector does not vary."""
    return _pearson(_ranks(x, present), _ranks(m, present), present)


def _paired(scores: Tensor, ratings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and ratings in float64, and a mask of the systems that have both."""
    checks.check_floating(scores, "scores")
    checks.check_floating(ratings, "ratings")
    if scores.shape != ratings.shape or scores.ndim < 1 or scores.shape[-1] < 1:
        raise ValueError(
            f"scores and ratings must have one shape (..., Q), systems last, got "
            f"{tuple(scores.shape)} and {tuple(ratings.shape)}. Use NaN for a system without one."
        )
    if bool(torch.isinf(scores).any() | torch.isinf(ratings).any()):
        raise ValueError(
            "scores and ratings must not be infinite. Correlate log scores with a floor, or mark "
            "the system absent with NaN."
        )
    scores, ratings = devices.wide(scores), devices.wide(ratings)
    return scores, ratings, ~(torch.isnan(scores) | torch.isnan(ratings))


def _varies(values: Tensor, present: Tensor) -> Tensor:
    largest = torch.where(present, values, -torch.inf).amax(-1)
    return largest > torch.where(present, values, torch.inf).amin(-1)


def _defined(x: Tensor, m: Tensor, present: Tensor) -> Tensor:
    """(...) bool, whether a correlation exists; warns about those that do not."""
    score, rating = _varies(x, present), _varies(m, present)
    missing = int((~(score & rating)).sum())
    if missing:
        checks.warn_user(
            f"{missing} of {score.numel()} correlations are undefined and NaN: "
            f"{int((~rating).sum())} have ratings that are all the same, "
            f"{int((~score).sum())} scores that are all the same (or fewer than two systems with "
            "both). A correlation needs both to vary; leave these trials out."
        )
    return score & rating


# --------------------------------------------------------------------------------------------
# Their error
# --------------------------------------------------------------------------------------------


@torch.no_grad()
def correlation_bounds(
    scores: Tensor,
    radii: Tensor,
    half_widths: Tensor,
    ratings: Tensor,
    confidence: float = 0.95,
    method: str = "pearson",
    *,
    convention: str = "derived",
    draws: int = 10_000,
    seed: int = 0,
) -> CorrelationBounds:
    """PCC or SRCC of one trial and source with ratings, its radius and half-width.

    The SRCC radius holds for every bias within the radii. The PCC radius and half-width are
    first-order in them; the SRCC half-width takes the errors of systems as independent Gaussians.
    Neither exceeds ``1 + |r|``, the distance to the far end of [-1, 1]: scores that hardly differ
    between systems (a saturated PM) have a meaningless PCC, and the bound shows it.

    Args:
        scores: (..., Q) utterance scores of Q systems; NaN where missing.
        radii: (..., Q) their radii.
        half_widths: (..., Q) their half-widths at ``confidence``.
        ratings: (..., Q) listener ratings; NaN where missing.
        confidence: confidence of the half-widths passed and returned, in (0, 1).
        method: ``"pearson"`` or ``"spearman"``.
        convention: ``"derived"``, or ``"paper"`` as printed: see the notes above. Its radii are
            shorter than what biases within b can do, and nothing caps them.
        draws: number of draws of the jitter (SRCC). More are steadier but slower; the paper takes
            10⁴.
        seed: seed of the jitter; all trials share the same draws.

    Returns:
        :class:`CorrelationBounds` of (...) float64 tensors; NaN where undefined.

    Raises:
        TypeError: not floating point.
        ValueError: shapes that do not fit, negative or missing bounds of a system that has a score
            and a rating, or settings out of range.
    """
    check_confidence(confidence)
    checks.check_choice(method, "method", METHODS)
    checks.check_choice(convention, "convention", POOLED_CONVENTIONS)
    printed = convention == "paper"
    draws, seed = checks.check_whole(draws, "draws", 1), checks.check_seed(seed)
    x, m, present = _paired(scores, ratings)
    b, h = (_bounds_of(v, n, present) for v, n in ((radii, "radii"), (half_widths, "half_widths")))
    defined = _defined(x, m, present)
    if method == "pearson":
        value, gradient = _pearson(x, m, present), pearson_gradient(x, m, present)
        size = _centred(b, present) if printed else b
        radius = torch.linalg.vector_norm(gradient, dim=-1) * torch.linalg.vector_norm(size, dim=-1)
        width = torch.linalg.vector_norm(gradient * h, dim=-1)
    else:
        value = _spearman(x, m, present)
        radius = spearman_radius(x, m, b, present)
        if printed:  # [eq:srcc_bias]: the larger change if all scores rise, or all fall, by their b
            raised, lowered = _spearman(x + b, m, present), _spearman(x - b, m, present)
            radius = torch.maximum((raised - value).abs(), (lowered - value).abs())
        scale = h / normal_quantile(confidence)
        level = (1.0 + confidence) / 2.0 if printed else confidence
        width = _jittered_width(x, m, scale, present, level, draws, seed)
    if not printed:
        farthest = 1.0 + value.abs()  # to -1 or 1, whatever the first order says
        radius, width = torch.minimum(radius, farthest), torch.minimum(width, farthest)
    results = value, radius, width
    value, radius, width = (torch.where(defined, result, torch.nan) for result in results)
    return CorrelationBounds(value, radius, width, radius + width, present.sum(-1))


def _bounds_of(values: Tensor, name: str, present: Tensor) -> Tensor:
    """``values`` in float64, 0 at absent systems."""
    checks.check_floating(values, name)
    if values.shape != present.shape:
        raise ValueError(
            f"{name} must have the shape of scores, {tuple(present.shape)}, got "
            f"{tuple(values.shape)}. There is one for each system."
        )
    values = devices.wide(values)
    if bool((present & ~((values >= 0.0) & torch.isfinite(values))).any()):
        raise ValueError(
            f"{name} must be finite and at least 0 for every system with a score and a rating. "
            "Set its score to NaN to leave a system out."
        )
    return torch.where(present, values, 0.0)


def pearson_gradient(x: Tensor, m: Tensor, present: Tensor) -> Tensor:
    """∂r/∂x [eq:pcc_grad] with both vectors centred; 0 at absent systems."""
    r = _pearson(x, m, present).unsqueeze(-1)
    x, m = _centred(x, present), _centred(m, present)
    norms = (torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (x, m))
    norm_x, norm_m = (torch.where(n > 0.0, n, 1.0) for n in norms)
    return m / (norm_x * norm_m) - r * x / norm_x.square()


def spearman_radius(x: Tensor, m: Tensor, b: Tensor, present: Tensor) -> Tensor:
    """Largest change of SRCC for any change of scores within b (..., Q); see the module."""
    pair = present.unsqueeze(-1) & present.unsqueeze(-2)
    pair = pair & ~torch.eye(x.shape[-1], dtype=torch.bool, device=x.device)
    apart = x.unsqueeze(-1) - x.unsqueeze(-2)
    reach = b.unsqueeze(-1) + b.unsqueeze(-2)
    free = pair & (apart.abs() <= reach) & (reach > 0.0)
    fixed = pair & ~free
    rating = _centred(_ranks(m, present), present)
    weight = rating.unsqueeze(-1) - rating.unsqueeze(-2)
    # Every pair appears twice, with the same product: a quarter of the sum over both.
    settled = torch.where(fixed, apart.sign() * weight, 0.0).sum((-2, -1)) / 4.0
    swing = torch.where(free, weight.abs(), 0.0).sum((-2, -1)) / 4.0
    tied = (fixed & (apart == 0.0)).sum(-1)
    smallest_norm, largest_norm = (_rank_norm(t, present) for t in (tied + free.sum(-1), tied))
    scale = torch.linalg.vector_norm(rating, dim=-1)
    highest = _largest_ratio(settled + swing, smallest_norm * scale, largest_norm * scale)
    lowest = -_largest_ratio(swing - settled, smallest_norm * scale, largest_norm * scale)
    value = _spearman(x, m, present)
    return torch.maximum(highest - value, value - lowest).clamp(min=0.0)


def _rank_norm(others: Tensor, present: Tensor) -> Tensor:
    """D (...) for t_i - 1 = ``others`` (..., Q) systems at the rank of i."""
    q = present.sum(-1).double()
    ties = torch.where(present, ((others + 1) ** 2 - 1).double(), 0.0).sum(-1)
    return ((q**3 - q - ties) / 12.0).clamp(min=0.0).sqrt()


def _largest_ratio(numerator: Tensor, smallest: Tensor, largest: Tensor) -> Tensor:
    """The largest numerator/D over D in [smallest, largest], within [-1, 1]."""
    divisor = torch.where(numerator > 0.0, smallest, largest)
    ratio = numerator / torch.where(divisor > 0.0, divisor, 1.0)
    unknown = numerator.sign()
    return torch.where(divisor > 0.0, ratio, unknown).clamp(-1.0, 1.0)


def _jittered_width(
    x: Tensor, m: Tensor, scale: Tensor, present: Tensor, level: float, draws: int, seed: int
) -> Tensor:
    """[eq:srcc_hw]: the quantile at ``level`` of the absolute change."""
    generator = torch.Generator("cpu").manual_seed(seed)
    shape = draws, x.shape[-1]
    normal = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    normal = normal.to(x.device).reshape(draws, *[1] * (x.ndim - 1), x.shape[-1])
    value, rating = _spearman(x, m, present), _ranks(m, present)
    changes = []
    for jitter in normal.split(max(1, _BLOCK // max(x.numel(), 1))):
        jittered_ranks = _ranks(x + jitter * scale, present.expand(len(jitter), *present.shape))
        changes.append((_pearson(jittered_ranks, rating, present) - value).abs())
    return quantile(torch.cat(changes), level)


# --------------------------------------------------------------------------------------------
# Trials and sources -> scenario
# --------------------------------------------------------------------------------------------


@torch.no_grad()
def scenario_bounds(
    values: Tensor, radii: Tensor, half_widths: Tensor, correlation: Tensor | float = 0.0
) -> CorrelationBounds:
    """Mean over trials and sources, and its bounds [eq:scenario_bias], [eq:scenario_halfwidth_pcc].

    Radii average; half-widths add in squares between trials, and within a trial with the
    correlation ρ_l of the errors of its sources.

    Args:
        values: (..., L, N) correlations of L trials with N sources; NaN where undefined or where a
            trial has fewer sources: skipped and not counted.
        radii, half_widths: (..., L, N), e.g. of :func:`correlation_bounds`.
        correlation: ρ_l in [-1, 1], a number or (L,); :func:`torch_mapss.bounds.source_correlation`
            estimates it. 0 treats the sources as independent, 1 gives the widest bound.

    Returns:
        :class:`CorrelationBounds` of (...) tensors; NaN where nothing is defined.

    Raises:
        TypeError: not floating point.
        ValueError: shapes that do not fit, negative bounds, or ρ_l outside [-1, 1].
    """
    for name, tensor in (("values", values), ("radii", radii), ("half_widths", half_widths)):
        checks.check_floating(tensor, name)
    if not values.shape == radii.shape == half_widths.shape or values.ndim < 2:
        raise ValueError(
            "values, radii and half_widths must have one shape (..., L, N), trials and sources "
            f"last, got {tuple(values.shape)}, {tuple(radii.shape)}, {tuple(half_widths.shape)}."
        )
    if bool((radii < 0.0).any() | (half_widths < 0.0).any()):
        raise ValueError("radii and half_widths must be at least 0. Mark what is missing with NaN.")
    values, radii, half_widths = (devices.wide(x) for x in (values, radii, half_widths))
    if isinstance(correlation, Tensor):
        correlation = devices.wide(correlation)
    rho = torch.as_tensor(correlation, dtype=torch.float64, device=values.device)
    if not bool((rho.abs() <= 1.0).all()):
        raise ValueError(f"correlation must lie in [-1, 1], got {correlation}.")
    present = ~(torch.isnan(values) | torch.isnan(radii) | torch.isnan(half_widths))
    count = present.sum((-2, -1))
    value, radius = (torch.where(present, v, 0.0).sum((-2, -1)) / count for v in (values, radii))
    h = torch.where(present, half_widths, 0.0)
    squares = h.square().sum(-1)
    pairs = h.sum(-1).square() - squares  # 2 Σ_{i<j} h_i h_j
    variance = (squares + rho * pairs).clamp(min=0.0).sum(-1)
    width = variance.sqrt() / count
    return CorrelationBounds(value, radius, width, radius + width, count)
