"""An independent oracle of the bounds: float64 NumPy/SciPy, one frame, plain loops.

Written from the paper's [sec:bounds], [app:conf_bound_pi] and [sec:propagate_ci_to_corr] (labels in
square brackets are its equations) on top of ``oracle``. Conventions: ``"paper"`` as printed,
``"reference"`` as the released implementation, ``"derived"`` the same argument with units, unions
and constants put right.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from oracle import EPSILON, DiffusionMap, Frame, cluster_statistics, distance, embed_frame

Array = NDArray[np.float64]

FLOOR = 0.05  # ε_r of the floored eigenvalue λ̃min
EFFECTIVE = 0.7  # n_eff / n, the paper's empirical constant


@dataclass
class Bounds:
    """Per output, NaN where its source is not scored in this frame."""

    radius: Array
    tail: Array

    @property
    def total(self) -> Array:
        """[eq:ps_final_bound], [eq:pm_final_bound]."""
        return self.radius + self.tail


Widths = Callable[[Frame, int, float, str], tuple[float, float]]


def _bounds(
    widths: Widths,
    *points: ArrayLike,
    confidence: float = 0.95,
    convention: str = "paper",
    **options: Any,
) -> Bounds:
    """Radius and tail of every output; ``options`` as in ``oracle.embed_frame``.

    "derived" changes the bounds only, its graph is the paper's. "reference" is 0 where nothing is
    discarded.
    """
    radius, tail = np.full((2, len(np.asarray(points[0]))), np.nan)
    frame = embed_frame(*points, convention=_graph(convention), **options)
    for o in frame.output_row if frame else ():
        radius[o] = tail[o] = 0.0
        if convention != "reference" or frame.map.d < len(frame.map.eigenvalues):
            radius[o], tail[o] = widths(frame, o, 1.0 - confidence, convention)
    return Bounds(radius, tail)


def _graph(convention: str) -> str:
    return "reference" if convention == "reference" else "paper"


@dataclass
class Schur:
    """Second moments of a cluster, in blocks of retained (d) and discarded (m) coordinates.

    What the discarded coordinates add to a squared distance; the ridge is not in the blocks.
    """

    sigma_d: Array  # (d, d)
    sigma_m: Array  # (m, m)
    cross: Array  # (d, m)
    convention: str

    def a(self, delta: Array) -> float:
        """The retained part of (N-1,), a of [eq:sq_mahal_to_schur]."""
        delta_d = delta[: len(self.sigma_d)]
        return float(delta_d @ np.linalg.solve(_ridged(self.sigma_d), delta_d))

    def b(self, delta: Array) -> float:
        """The discarded part, b = rᵀS⁻¹r of [eq:sq_mahal_to_schur], with [eq:schur]."""
        d = len(self.sigma_d)
        solved = np.linalg.solve(_ridged(self.sigma_d), np.column_stack([delta[:d], self.cross]))
        r = delta[d:] - self.cross.T @ solved[:, 0]
        s = _ridged(self.sigma_m - self.cross.T @ solved[:, 1:])
        if self.convention == "reference":
            s = s + 1e-9 * np.eye(len(s))
        return float(r @ np.linalg.solve(s, r))


def _ridged(sigma: Array) -> Array:
    return sigma + EPSILON * np.eye(len(sigma))


@dataclass
class Side:
    """An output against one cluster."""

    distance: float  # A or B, in the retained space
    discarded: float  # b = rᵀS⁻¹r
    sigma: Array  # Σ^(d), without ridge
    n: int  # points of the cluster, N_p + 1


def separation_sides(frame: Frame, output: int, convention: str) -> tuple[Side, Side]:
    """The own cluster and the closest foreign one; j* is that of the retained space."""
    psi, d, sides = frame.map.coordinates, frame.map.d, {}
    for j in frame.sources:
        rows = frame.cluster_rows(j)
        mean, sigma = cluster_statistics(psi[rows])
        schur = Schur(sigma[:d, :d], sigma[d:, d:], sigma[:d, d:], convention)
        delta = psi[frame.output_row[output]] - mean
        length = distance(max(schur.a(delta), 0.0), _graph(convention))
        sides[j] = Side(length, schur.b(delta), schur.sigma_d, len(rows))
    custom = frame.attributed[output]
    foreign = min((j for j in sides if j != custom), key=lambda j: sides[j].distance)
    return sides[custom], sides[foreign]


def _separation_widths(
    frame: Frame, output: int, delta: float, convention: str
) -> tuple[float, float]:
    """[eq:truncation_error_ps] with |δ| <= sqrt(b) of [eq:delta_ij], and [eq:aftermizath].

    The tail is the gradient norm of PS [eq:finite_sample_error_ps] times the errors of A and B.
    """
    custom, foreign = separation_sides(frame, output, convention)
    a, b = custom.distance, foreign.distance
    radius = (b * math.sqrt(custom.discarded) + a * math.sqrt(foreign.discarded)) / (a + b) ** 2
    lipschitz = math.hypot(a, b) / (a + b) ** 2
    events = 4 if convention == "derived" else 2  # mean and covariance, of one or either cluster
    n = (
        max(int(EFFECTIVE * custom.n), 3) if convention == "reference" else None
    )  # the own cluster's
    errors = [side_error(side, delta / events, convention, n=n) for side in (custom, foreign)]
    if convention == "paper":
        return radius, lipschitz * math.sqrt(sum(errors))
    tail = lipschitz * math.hypot(*errors)
    return radius, min(tail, 1.0) if convention == "reference" else tail


def side_error(
    side: Side, delta: float, convention: str, constant: float = 1.0, n: float | None = None
) -> float:
    """ε of [eq:temp_A]: Δ_μ of [eq:ps_mu], Δ_Σ of [eq:ps_cov], over n effective points.

    "reference" has Σ + εI throughout and sqrt(r/n) in Δ_Σ. "derived" is ``|A - Â|``, from the
    perturbation of A²: 2 A Δ_μ / sqrt(λ̃min) + A² Δ_Σ / λ̃min.
    """
    sigma = _ridged(side.sigma) if convention == "reference" else side.sigma
    bottom, *_, top = map(float, np.linalg.eigvalsh(sigma)[[0, -1]])
    floored = max(bottom, FLOOR * top) if convention == "reference" else bottom + FLOOR * top
    n = EFFECTIVE * side.n if n is None else n
    trace, log = float(np.trace(sigma)), math.log(2.0 / delta)
    r = trace / top
    earlier = r / n if convention == "paper" else math.sqrt(r / n)
    delta_mu, relative = math.sqrt(2.0 * top * log / n), constant * (earlier + (r + log) / n)
    a = side.distance
    if convention != "derived":
        return 2.0 * math.sqrt(a) * delta_mu * math.sqrt(top / floored) + a * relative
    delta_mu += math.sqrt(trace / n)
    squared = 2.0 * a * delta_mu / math.sqrt(floored) + a**2 * top * relative / floored
    return min(math.sqrt(squared), squared / a) if a > 0.0 else math.sqrt(squared)


@dataclass
class GammaFit:
    """A cluster's squared distances about its reference, and the output's."""

    g: Array  # (P,) retained, plain squared distances
    gaps: Array  # (P,) δ_{G,p} [eq:diff_sq_mahal]
    a: float
    gap_a: float  # δ_{G,a} [eq:diff_sq_mahal_out]


def gamma_fit(frame: Frame, output: int, convention: str) -> GammaFit:
    """Of the deviations from the reference [eq:cov_pm].

    "reference" takes Σ_d and Σ_m about the mean of the deviations and only C_dm about the
    reference; the result is then no Schur complement, and rᵀS⁻¹r may be of any sign.
    """
    psi, d, source = frame.map.coordinates, frame.map.d, frame.attributed[output]
    centre = psi[frame.reference_row[source]]
    deviations = psi[frame.distortion_rows[source]] - centre
    moment = deviations.T @ deviations / (len(deviations) - 1)
    diagonal = cluster_statistics(deviations)[1] if convention == "reference" else moment
    schur = Schur(diagonal[:d, :d], diagonal[d:, d:], moment[:d, d:], convention)
    rows = [*deviations, psi[frame.output_row[output]] - centre]
    (*g, a), (*gaps, gap_a) = map(schur.a, rows), map(schur.b, rows)
    return GammaFit(np.array(g), np.array(gaps), a, gap_a)


def _moments(g: Array, convention: str) -> tuple[float, float]:
    """Mean and unbiased variance [eq:stats_pm]; "reference" adds 1e-12 to the variance."""
    extra = 1e-12 if convention == "reference" else 0.0
    return float(np.mean(g)), float(np.var(g, ddof=1)) + extra


def _corner_maximum(
    centre: Sequence[float], half: Sequence[float], floors: Sequence[float]
) -> float:
    """Largest change of Q over the eight corners of a box of (k, θ, a) [eq:pm_corner_radius]."""
    signs = np.array([(0, 0, 0), *itertools.product((-1, 1), repeat=3)])
    k, theta, a = np.maximum(np.array(centre) + signs * np.array(half), floors).T
    k[0], theta[0], a[0] = centre
    q = scipy.special.gammaincc(k, a / theta)
    return float(np.abs(q - q[0]).max())


def _match_widths(frame: Frame, output: int, delta: float, convention: str) -> tuple[float, float]:
    """[eq:ps_bias] over the box of [eq:pm_k_bias], [eq:pm_theta_bias], and [eq:pm_prob_tail].

    C_1 = C_2 = 1; "derived" takes the box of the radius up to the full-space k and θ themselves.
    The tail bounds the moments by Bernstein, then k and θ to first order.
    """
    fit = gamma_fit(frame, output, convention)
    n, a, reference = len(fit.g), fit.a, convention == "reference"
    mean, variance = _moments(fit.g, convention)
    sigma, guard = math.sqrt(variance), 1e-9 if reference else 0.0
    k, theta = mean**2 / variance, variance / mean
    whole_mean, whole_variance = _moments(fit.g + fit.gaps, convention)
    if convention == "derived":  # no constants: the full-space parameters are there to be computed
        half = [abs(whole_mean**2 / whole_variance - k), abs(whole_variance / whole_mean - theta)]
    else:
        factor = float(max(fit.gaps)) * n / (n - 1)
        half = [factor * (whole_mean + mean) / variance]
        half += [factor * (whole_variance + variance) / (mean**2 + guard)]
    floors = (1e-6, 1e-6, 1e-8) if reference else (1e-12, 1e-12, 0.0)
    radius = _corner_maximum((k, theta, a), [*half, fit.gap_a], floors)

    log = math.log(2.0 / (delta / 3.0))
    largest = float(max(fit.g)) + 1e-12 if reference else float(max(fit.g + fit.gaps))
    delta_a = largest * math.sqrt((2.0 if reference else 1.0) * log / n)
    delta_mu = math.sqrt(2.0 * variance * log / n) + 3.0 * largest * log / n
    delta_sigma = math.sqrt(2.0 * largest**2 * log / n) + 3.0 * largest**2 * log / n
    if convention == "derived":  # the bound is one of σ², by R²; |σ - σ̂| follows
        of_variance = math.sqrt(2.0 * largest**4 * log / n) + 3.0 * largest**2 * log / n
        delta_sigma = min(math.sqrt(of_variance), of_variance / sigma)
    of_k = 2.0 * mean / (variance + guard), 2.0 * mean**2 / (sigma**3 + guard)
    of_theta = variance / (mean**2 + guard), 2.0 * sigma / (mean + guard)
    half = [by[0] * delta_mu + by[1] * delta_sigma for by in (of_k, of_theta)]
    caps = 0.5 * k, 0.5 * theta, 0.5 * a + (1e-12 if reference else 0.0)
    floors = (0.0, 0.0, 1e-8) if reference else floors
    return radius, _corner_maximum((k, theta, a), np.minimum([*half, delta_a], caps), floors)


separation_bounds = functools.partial(_bounds, _separation_widths)  # [app:ps_measure]
match_bounds = functools.partial(_bounds, _match_widths)  # [app:pm_measure]


def truncation_errors(embedded: DiffusionMap) -> Array:
    """E(x_i), (N,): the norm of the discarded coordinates [app:conf_bound_pi]; "paper" maps."""
    return np.linalg.norm(embedded.coordinates[:, embedded.d :], axis=1)


def truncation_expectation(embedded: DiffusionMap, time: float = 1) -> float:
    """(Σ_{l>d} λ^2t)^½: the root mean square of E under π, hence at least its mean (Jensen)."""
    return float(np.linalg.norm(embedded.eigenvalues[embedded.d :] ** time))


def truncation_bound(
    embedded: DiffusionMap, confidence: float = 0.95, time: float = 1, constant: float = 1.0
) -> float:
    """C λ_{d+1}^t K (m + sqrt(m ln(1/δ))), K of [eq:sub_gaussian]; 0 where nothing is discarded."""
    m = len(embedded.eigenvalues) - embedded.d
    if m == 0:
        return 0.0
    k = float(np.min(embedded.stationary)) ** -0.5 / math.sqrt(math.log(2.0))
    log = math.log(1.0 / (1.0 - confidence))
    following = float(embedded.eigenvalues[embedded.d]) ** time
    return constant * following * k * (m + math.sqrt(m * log))


def autocorrelation(cluster: Array, lag: int) -> float:
    """ρ̂_l: Pearson correlation of points l apart, averaged over the coordinates of (n, d)."""
    early, late = (x - x.mean(0) for x in (cluster[:-lag], cluster[lag:]))
    scale = np.linalg.norm(early, axis=0) * np.linalg.norm(late, axis=0)
    return float(np.mean((early * late).sum(0) / np.where(scale > 0.0, scale, np.inf)))


def bartlett_sample_size(cluster: Array) -> float:
    """n / (1 + 2 Σ_{l<=L} ρ̂_l), L the first lag that is insignificant [sec:bounds]."""
    n, total = len(cluster), 0.0
    for lag in range(1, n - 1):
        rho = autocorrelation(cluster, lag)
        total += rho
        if abs(rho) < normal_quantile(0.95) / math.sqrt(n - lag):
            break
    return n / (1.0 + 2.0 * total)


# Frames -> utterance [sec:propagate_ci_to_corr]; b: radii, p: half-widths, both (F_i,)


def normal_quantile(confidence: float) -> float:
    """z_{c*}, c* = (1 + c) / 2."""
    return float(scipy.stats.norm.ppf((1.0 + confidence) / 2.0))


def average_halfwidth(p: Array, gap: int = 4) -> float:
    """[eq:avg_pool_h] with σ = p / z, in which z cancels."""
    return math.sqrt((gap + 1) / len(p) * float(np.mean(p**2)))


def windows(count: int, window: int = 20, hop: int = 10) -> list[range]:
    """The windows of [app:agg]: the last full one included, one short one if none is full."""
    if count < window:
        return [range(count)]
    return [range(begin, begin + window) for begin in range(0, count - window + 1, hop)]


def _level(values: Array, window: int, hop: int, p: float) -> float:
    """RMS over windows of the p-mean: the l_i of [app:agg]."""
    means = [np.mean(np.abs(values[w]) ** p) for w in windows(len(values), window, hop)]
    return math.sqrt(np.mean(np.array(means) ** (2.0 / p)))


def _score(level: float) -> float:
    return 0.999 + 4.0 / (1.0 + math.exp(-1.3669 * level + 3.8224))


def pool_separation(ps: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """[eq:pesq_pooling_ps]."""
    return _score(_level(ps, window, hop, p))


def pesq_slope(ps: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """∂s/∂u at the pooled u, by the chain rule on s."""
    e = math.exp(-1.3669 * _level(ps, window, hop, p) + 3.8224)
    return 4.0 * 1.3669 * e / (1.0 + e) ** 2


def pesq_radius(ps: Array, b: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """[eq:pesq_pool_b] as printed: divided by sqrt(M)."""
    overlap = math.ceil(window / hop) / math.sqrt(len(windows(len(b), window, hop)))
    return pesq_slope(ps, window, hop, p) * overlap * math.sqrt(float(np.mean(b**2)))


def pesq_radius_secant(ps: Array, b: Array, window: int = 20, hop: int = 10, p: float = 6) -> float:
    """The change of s over the largest change of its argument: no first-order step."""
    u, shift = _level(ps, window, hop, p), _level(b, window, hop, p)
    return max(_score(u + shift) - _score(u), _score(u) - _score(max(u - shift, 0.0)))


def pesq_halfwidth_gradient(
    ps: Array, p_half: Array, window: int = 20, hop: int = 10, p: float = 6, gap: int = 4
) -> float:
    """The delta method with differences of the pooled score, inflated for frames gap apart."""
    steps = 1e-5 * np.eye(len(ps))
    ends = ([pool_separation(ps + s * h, window, hop, p) for h in steps] for s in (1, -1))
    terms = np.abs(np.subtract(*ends) / 2e-5 * p_half)
    return min(math.sqrt((gap + 1) * float(terms @ terms)), float(terms.sum()))


# Utterances -> correlation with ratings; v, ratings, b, h: (Q,), one entry per system


def pcc(v: Array, ratings: Array) -> float:
    """[eq:ps_pcc_i]."""
    return float(np.corrcoef(v, ratings)[0, 1])


def srcc(v: Array, ratings: Array) -> float:
    """[eq:srcc_ps], ties at average ranks; 0 where every value is the same."""
    x, m = scipy.stats.rankdata(v), scipy.stats.rankdata(ratings)
    return pcc(x, m) if np.ptp(x) > 0.0 and np.ptp(m) > 0.0 else 0.0


def pcc_gradient(v: Array, ratings: Array) -> Array:
    """[eq:pcc_grad], with both vectors centred."""
    x, m = v - np.mean(v), ratings - np.mean(ratings)
    norm_x, norm_m = np.sqrt(x @ x), np.sqrt(m @ m)
    return m / (norm_x * norm_m) - pcc(v, ratings) * x / norm_x**2


def pcc_radius(v: Array, ratings: Array, b: Array) -> float:
    """[eq:pcc_bias], with the norm of b itself."""
    return float(np.linalg.norm(pcc_gradient(v, ratings)) * np.linalg.norm(b))


def pcc_halfwidth(v: Array, ratings: Array, h: Array) -> float:
    """[eq:pcc_hw]; z cancels."""
    return float(np.linalg.norm(pcc_gradient(v, ratings) * h))


def srcc_radius_orders(v: Array, ratings: Array, b: Array) -> float:
    """The largest change of SRCC over every order that some v' with |v' - v| <= b can have.

    An order is possible if values can be picked greedily upwards: each at least its own lower end
    and at least its predecessor's value, and none above its own upper end. Any valid radius is at
    least this.
    """
    base, worst = srcc(v, ratings), 0.0
    for order in map(list, itertools.permutations(range(len(v)))):
        if (np.maximum.accumulate((v - b)[order]) <= (v + b)[order]).all():
            worst = max(worst, abs(srcc(np.argsort(order), ratings) - base))
    return worst


def srcc_halfwidth(v: Array, ratings: Array, jitters: Array, confidence: float = 0.95) -> float:
    """[eq:srcc_hw] for given draws (n, Q) of η, with the c quantile of the absolute change."""
    base = srcc(v, ratings)
    return float(np.quantile([abs(srcc(v + eta, ratings) - base) for eta in jitters], confidence))


def scenario_radius(b: Sequence[Sequence[float]]) -> float:
    """[eq:scenario_bias]: the mean over trials and their sources."""
    return float(np.mean(np.concatenate(b)))


def scenario_halfwidth(h: Sequence[Sequence[float]], correlation: Sequence[float]) -> float:
    """[eq:scenario_halfwidth_pcc]: h per trial and source, ρ_l per trial; z cancels."""
    pairs = [
        x * y * (1.0 if i == j else rho)
        for trial, rho in zip(h, correlation, strict=True)
        for (i, x), (j, y) in itertools.product(enumerate(trial), repeat=2)
    ]
    return math.sqrt(sum(pairs)) / sum(map(len, h))
