"""The oracles themselves: against the reference implementation's numbers and closed forms."""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import numpy as np
import oracle
import oracle_bounds
import pytest
import scipy.stats
from clouds import golden, released

GOLDEN = {bits: golden(bits) for bits in (32, 64)}


def _frame(seed: int = 0, sources: int = 2, distortions: int = 9, features: int = 6):
    return released.embeddings(
        released.Case(seed, sources, distortions, features, 1.0, 0.4, 0.5, 0.1)
    )


# ------------------------------------------------------------------ the reference implementation


@functools.cache
def _scores(case: str) -> tuple[oracle.Separation, oracle.Match]:
    frame = released.embeddings(released.CASES[case])
    separation = oracle.separation(*frame, convention="reference")
    return separation, oracle.match(*frame, convention="reference")


@functools.cache
def _bounds(case: str) -> tuple[oracle_bounds.Bounds, oracle_bounds.Bounds]:
    frame = released.embeddings(released.CASES[case])
    separation = oracle_bounds.separation_bounds(*frame, convention="reference")
    return separation, oracle_bounds.match_bounds(*frame, convention="reference")


@pytest.mark.parametrize("case", released.CASES)
def test_manifold_is_that_of_the_reference_implementation(case: str) -> None:
    points, _ = released.labelled(released.CASES[case])
    m = oracle.diffusion_map(points, convention="reference")
    stored = GOLDEN[64]
    assert m.d == stored[f"{case}/d"]
    np.testing.assert_allclose(m.eigenvalues, stored[f"{case}/eigenvalues"], atol=1e-12)
    for columns, name in ((m.retained, "kept"), (m.coordinates, "full")):
        distances = np.linalg.norm(columns - columns[0], axis=1)
        np.testing.assert_allclose(distances, stored[f"{case}/{name}_distances"], atol=1e-10)


@pytest.mark.parametrize("case", released.CASES)
@pytest.mark.parametrize(("bits", "tolerance"), [(64, 1e-8), (32, 1e-4)])
def test_scores_are_those_of_the_reference_implementation(
    case: str, bits: int, tolerance: float
) -> None:
    s, m = _scores(case)
    assert s.d == m.d == GOLDEN[bits][f"{case}/d"]
    np.testing.assert_allclose(s.ps, GOLDEN[bits][f"{case}/ps"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(m.pm, GOLDEN[bits][f"{case}/pm"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", released.CASES)
@pytest.mark.parametrize(("bits", "rtol", "atol"), [(64, 1e-6, 1e-14), (32, 0.0, 1e-3)])
def test_bounds_are_those_of_the_reference_implementation(
    case: str, bits: int, rtol: float, atol: float
) -> None:
    s, m = _bounds(case)
    for name, values in {
        "ps_radius": s.radius,
        "ps_tail": s.tail,
        "pm_radius": m.radius,
        "pm_tail": m.tail,
    }.items():
        np.testing.assert_allclose(
            values, GOLDEN[bits][f"{case}/{name}"], rtol=rtol, atol=atol, err_msg=name
        )


# ----------------------------------------------------------------------------------- the manifold


@pytest.mark.parametrize("time", [1, 2, 3])
def test_euclidean_distance_is_the_diffusion_distance(time: int) -> None:
    """[eq:diff_euclid_dist_equal_short] against explicit powers of P."""
    points = np.concatenate([x.reshape(-1, 6) for x in _frame(1)])
    m = oracle.diffusion_map(points, time=time)
    direct = oracle.diffusion_distances(m.transition, m.stationary, time)
    np.testing.assert_allclose(oracle.squared_distances(m.coordinates), direct, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_spectrum_is_that_of_the_transition_matrix(alpha: float) -> None:
    points = np.concatenate([x.reshape(-1, 6) for x in _frame(2)])
    m = oracle.diffusion_map(points, alpha=alpha)
    np.testing.assert_allclose(m.stationary @ m.transition, m.stationary, atol=1e-14)
    direct = np.sort(np.linalg.eigvals(m.transition).real)[::-1]
    np.testing.assert_allclose(np.concatenate([[1.0], m.eigenvalues]), direct, atol=1e-12)
    u = m.coordinates / m.eigenvalues  # [eq:eigenfunctions], orthonormal under π
    np.testing.assert_allclose(m.transition @ u, u * m.eigenvalues, atol=1e-9)
    gram = u.T @ np.diag(m.stationary) @ u
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-9)


@pytest.mark.parametrize(("convention", "off"), [("paper", -1.0), ("reference", -0.5)])
def test_equidistant_points(convention: str, off: float) -> None:
    """A simplex: K = 1 on the diagonal, e^-1 (or e^-½) off it, so all non-trivial λ are equal."""
    n, k = 8, math.exp(off)
    m = oracle.diffusion_map(np.eye(n), energy=0.5, convention=convention)
    np.testing.assert_allclose(m.eigenvalues, (1 - k) / (1 + (n - 1) * k), atol=1e-14)
    np.testing.assert_allclose(m.stationary, 1 / n, atol=1e-15)
    assert m.d == (n - 1 if convention == "paper" else 4)  # tied at the cut, or 4/7 >= ½


# --------------------------------------------------------------------------------------- the scores


def _mirrored(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """References (2, M) and distortions (2, P, M) of two clusters, mirrored in the first axis."""
    rng = np.random.default_rng(seed)
    mirror = np.array([-1.0, 1.0, 1.0, 1.0])
    centre = np.array([1.5, 0.0, 0.0, 0.0])
    cluster = centre + 0.4 * rng.standard_normal((10, 4))
    return np.stack([centre, mirror * centre]), np.stack([cluster, mirror * cluster])


def test_separation_of_mirrored_clusters() -> None:
    references, distortions = _mirrored()
    mirror = np.array([-1.0, 1.0, 1.0, 1.0])
    between = np.array([[0.0, 0.3, -0.2, 0.1]])
    s = oracle.separation(between, references, distortions, attributed=[1])
    np.testing.assert_allclose(s.ps, 0.5, atol=1e-9)  # on the mirror: A = B
    near = references[0] + np.array([-0.2, 0.3, 0.0, 0.1])
    s = oracle.separation(np.stack([near, mirror * near]), references, distortions)
    assert s.ps[0] == pytest.approx(s.ps[1], abs=1e-9)
    assert s.ps[0] > 0.8
    crossed = oracle.separation(np.stack([mirror * near, near]), references, distortions)
    np.testing.assert_allclose(crossed.ps, 1 - s.ps, atol=1e-9)  # A and B change places
    assert list(crossed.closest) == [1, 0]


def test_match_distances_in_one_dimension() -> None:
    """Σ = Σψ²/(P-1): g_p = ψ_p²/(Σ + ε), whatever the mean of the deviations."""
    deviations = np.array([[1.0], [2.0], [3.0]])
    g, a = oracle.match_distances(deviations, np.array([0.5]))
    sigma = (1 + 4 + 9) / 2 + 1e-6
    np.testing.assert_allclose(g, np.array([1, 4, 9]) / sigma, rtol=1e-15)
    assert a == pytest.approx(0.25 / sigma, rel=1e-15)
    assert oracle.gamma_moments(np.array([1.0, 2.0, 6.0])) == pytest.approx((9 / 7, 7 / 3))


@pytest.mark.parametrize(
    ("k", "x"), [(0.01, 700.0), (0.3, 900.0), (5, 4000.0), (40, 2000.0), (3e3, 9e3), (2, 1.0)]
)
def test_log_of_the_gamma_tail(k: float, x: float) -> None:
    exact = float(mpmath.log(mpmath.gammainc(k, x, mpmath.inf, regularized=True)))
    assert oracle.log_gammaincc(k, x) == pytest.approx(exact, rel=1e-13)


# --------------------------------------------------------------------------------------- the bounds


def test_schur_parts_add_up_to_the_full_space_distance() -> None:
    """a + b = the ridge distance over all coordinates, [eq:sq_mahal_to_schur]."""
    frame = oracle.embed_frame(*_frame(6), energy=0.7)
    assert frame is not None
    d = frame.map.d
    assert 0 < d < len(frame.map.eigenvalues)
    psi = frame.map.coordinates
    x = psi[frame.output_row[0]]
    mean, schur = oracle_bounds.separation_schur(psi[frame.cluster_rows(1)], d, "paper")
    covariance = np.cov(psi[frame.cluster_rows(1)].T)
    delta = x - mean
    full = oracle.squared_mahalanobis(delta, covariance)
    assert schur.a(delta[:d]) + schur.b(delta[:d], delta[d:]) == pytest.approx(full, rel=1e-9)

    centre = psi[frame.reference_row[0]]
    deviations = psi[frame.distortion_rows[0]] - centre
    schur = oracle_bounds.match_schur(deviations, d, "paper")
    g, a = oracle.match_distances(deviations, x - centre)
    parts = schur.a((x - centre)[:d]) + schur.b((x - centre)[:d], (x - centre)[d:])
    assert parts == pytest.approx(a, rel=1e-9)
    assert schur.a(deviations[2, :d]) + schur.b(deviations[2, :d], deviations[2, d:]) == (
        pytest.approx(g[2], rel=1e-9)
    )


def test_separation_radius_covers_to_first_order() -> None:
    """With everything kept the radius is 0; with little dropped it covers the change of PS."""
    frame = _frame(7, distortions=12)
    whole = oracle.separation(*frame, energy=1.0)
    assert oracle_bounds.separation_bounds(*frame, energy=1.0).radius == pytest.approx(0.0, abs=0)
    cut = oracle.separation(*frame, energy=0.97)
    bound = oracle_bounds.separation_bounds(*frame, energy=0.97)
    assert cut.d < whole.d
    assert (np.abs(cut.ps - whole.ps) <= bound.radius).all()
    np.testing.assert_array_equal(bound.total, bound.radius + bound.tail)


def test_truncation_of_the_embedding() -> None:
    points = np.concatenate([x.reshape(-1, 6) for x in _frame(8)])
    m = oracle.diffusion_map(points, energy=0.8)
    errors = oracle_bounds.truncation_errors(m)
    expected = oracle_bounds.truncation_expectation(m)
    assert math.sqrt(float(m.stationary @ errors**2)) == pytest.approx(expected, rel=1e-12)
    assert float(m.stationary @ errors) < expected  # Jensen, strictly
    assert oracle_bounds.truncation_bound(m) > errors.max()
    complete = oracle.diffusion_map(points, energy=1.0)
    assert oracle_bounds.truncation_bound(complete) == 0.0


def test_effective_sample_size() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((400, 30))
    assert oracle_bounds.bartlett_sample_size(noise) == pytest.approx(400, rel=0.05)
    smooth = np.zeros((400, 30))  # x_n = 0.5 x_(n-1) + noise: ρ_l = 2^-l
    for n in range(1, 400):
        smooth[n] = 0.5 * smooth[n - 1] + noise[n]
    assert oracle_bounds.autocorrelation(smooth, 2) == pytest.approx(0.25, abs=0.03)
    assert oracle_bounds.bartlett_sample_size(smooth) == pytest.approx(400 / 3, rel=0.15)


# ------------------------------------------------------------------------ utterance and correlation


def test_pooling_and_its_radius() -> None:
    assert oracle_bounds.windows(45) == [range(0, 20), range(10, 30), range(20, 40)]
    assert oracle_bounds.windows(7) == [range(7)]
    assert oracle_bounds.pool_separation(np.zeros(30)) == pytest.approx(1.0846, abs=1e-4)
    assert oracle_bounds.pool_separation(np.ones(30)) == pytest.approx(1.3151, abs=1e-4)
    rng = np.random.default_rng(1)
    ps, b = rng.uniform(0.2, 0.8, 57), rng.uniform(0, 0.01, 57)
    base = oracle_bounds.pool_separation(ps)
    radius = oracle_bounds.pesq_radius(ps, b)
    assert 0.5 * radius < oracle_bounds.pool_separation(ps + b) - base < 1.02 * radius
    constant = oracle_bounds.pool_separation(np.full(57, 0.51)) - oracle_bounds.pool_separation(
        np.full(57, 0.5)
    )  # here the bound is tight: a constant bias of constant scores
    tight = oracle_bounds.pesq_radius(np.full(57, 0.5), np.full(57, 0.01))
    assert constant == pytest.approx(tight, rel=0.01)
    assert oracle_bounds.pesq_radius(ps, b, printed=True) < radius
    flat = np.full(25, 0.6)  # u = 0.6 exactly: the slope by differences of s
    step = oracle_bounds.pool_separation(flat + 1e-6) - oracle_bounds.pool_separation(flat - 1e-6)
    assert oracle_bounds.pesq_slope(flat) == pytest.approx(step / 2e-6, rel=1e-7)


def test_correlations_are_scipys() -> None:
    rng = np.random.default_rng(2)
    v, ratings = rng.integers(0, 5, 12).astype(float), rng.integers(0, 5, 12).astype(float)
    assert oracle_bounds.pcc(v, ratings) == pytest.approx(scipy.stats.pearsonr(v, ratings)[0])
    assert oracle_bounds.srcc(v, ratings) == pytest.approx(scipy.stats.spearmanr(v, ratings)[0])


def test_pcc_gradient_and_radius() -> None:
    rng = np.random.default_rng(3)
    v, ratings, b = rng.uniform(size=6), rng.uniform(1, 5, 6), rng.uniform(0, 1e-4, 6)
    gradient = oracle_bounds.pcc_gradient(v, ratings)
    for q in range(6):
        up, down = v.copy(), v.copy()
        up[q] += 1e-6
        down[q] -= 1e-6
        slope = (oracle_bounds.pcc(up, ratings) - oracle_bounds.pcc(down, ratings)) / 2e-6
        assert gradient[q] == pytest.approx(slope, abs=1e-8)
    radius = oracle_bounds.pcc_radius(v, ratings, b)
    base = oracle_bounds.pcc(v, ratings)
    for signs in itertools.product((-1, 1), repeat=6):
        assert abs(oracle_bounds.pcc(v + np.array(signs) * b, ratings) - base) <= radius * 1.01
    h = np.full(6, 0.1)
    norm = float(np.linalg.norm(gradient))
    assert oracle_bounds.pcc_halfwidth(v, ratings, h) == pytest.approx(0.1 * norm)


def test_srcc_radius() -> None:
    v = np.array([0.1, 0.2, 0.3, 0.9])
    ratings = np.array([1.0, 2.0, 3.0, 4.0])
    small = np.full(4, 0.04)
    assert oracle_bounds.srcc_radius_orders(v, ratings, small) == 0.0
    swap = np.array([0.06, 0.06, 0.0, 0.0])  # only the first two can change places: ρ = 1 - 12/60
    assert oracle_bounds.srcc_radius_orders(v, ratings, swap) == pytest.approx(0.2)
    assert oracle_bounds.srcc_radius_signs(v, ratings, swap) == pytest.approx(0.2)
    rng = np.random.default_rng(4)
    w, b = rng.uniform(size=5), rng.uniform(0, 0.3, 5)
    mos = rng.uniform(1, 5, 5)
    orders = oracle_bounds.srcc_radius_orders(w, mos, b)
    assert orders >= oracle_bounds.srcc_radius_signs(w, mos, b) - 1e-12
    base = oracle_bounds.srcc(w, mos)
    for _ in range(300):
        moved = w + rng.uniform(-b, b)
        assert abs(oracle_bounds.srcc(moved, mos) - base) <= orders + 1e-12


def test_srcc_halfwidth_and_scenario() -> None:
    v = np.array([0.1, 0.2, 0.3, 0.9])
    ratings = np.array([1.0, 2.0, 3.0, 4.0])
    still, swapped = np.zeros(4), np.array([0.15, 0.0, 0.0, 0.0])
    jitters = np.array([still] * 94 + [swapped] * 6)
    assert oracle_bounds.srcc_halfwidth(v, ratings, jitters, 0.9) == 0.0
    assert oracle_bounds.srcc_halfwidth(v, ratings, jitters, 0.95) == pytest.approx(0.2)
    assert oracle_bounds.scenario_radius([[0.1, 0.2], [0.6]]) == pytest.approx(0.3)
    # Fully correlated sources add up, independent trials add in squares.
    assert oracle_bounds.scenario_halfwidth([[0.3, 0.1], [0.3]], [1.0, 0.0]) == (
        pytest.approx(0.5 / 3)
    )
