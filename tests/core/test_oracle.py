"""The oracles themselves: against the reference implementation's numbers and closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import oracle
import oracle_bounds
import pytest
from clouds import golden, released
from scipy.signal import lfilter

GOLDEN = golden(64)


def _frame(seed: int = 0, sources: int = 2, distortions: int = 9, features: int = 6):
    case = released.Case(seed, sources, distortions, features, 1.0, 0.4, 0.5, 0.1)
    return released.embeddings(case)


@pytest.mark.parametrize("case", released.CASES)
def test_manifold_is_that_of_the_reference_implementation(case: str) -> None:
    points, _ = released.labelled(released.CASES[case])
    m = oracle.diffusion_map(points, convention="reference")
    assert m.d == GOLDEN[f"{case}/d"]
    np.testing.assert_allclose(m.eigenvalues, GOLDEN[f"{case}/eigenvalues"], atol=1e-12)
    for columns, name in ((m.retained, "kept"), (m.coordinates, "full")):
        distances = np.linalg.norm(columns - columns[0], axis=1)
        np.testing.assert_allclose(distances, GOLDEN[f"{case}/{name}_distances"], atol=1e-10)


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


def test_effective_sample_size() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((400, 30))
    assert oracle_bounds.bartlett_sample_size(noise) == pytest.approx(400, rel=0.05)
    smooth = lfilter([1.0], [1.0, -0.5], noise, axis=0)  # x_n = 0.5 x_(n-1) + noise: ρ_l = 2^-l
    assert oracle_bounds.autocorrelation(smooth, 2) == pytest.approx(0.25, abs=0.03)
    assert oracle_bounds.bartlett_sample_size(smooth) == pytest.approx(400 / 3, rel=0.15)


def test_pooling_and_its_slope() -> None:
    assert oracle_bounds.windows(45) == [range(0, 20), range(10, 30), range(20, 40)]
    assert oracle_bounds.windows(7) == [range(7)]
    assert oracle_bounds.pool_separation(np.zeros(30)) == pytest.approx(1.0846, abs=1e-4)
    assert oracle_bounds.pool_separation(np.ones(30)) == pytest.approx(1.3151, abs=1e-4)
    flat = np.full(25, 0.6)  # u = 0.6 exactly: the slope by differences of s
    step = oracle_bounds.pool_separation(flat + 1e-6) - oracle_bounds.pool_separation(flat - 1e-6)
    assert oracle_bounds.pesq_slope(flat) == pytest.approx(step / 2e-6, rel=1e-7)


def test_pcc_gradient_and_radius() -> None:
    rng = np.random.default_rng(3)
    v, ratings, b = rng.uniform(size=6), rng.uniform(1, 5, 6), rng.uniform(0, 1e-4, 6)
    gradient = oracle_bounds.pcc_gradient(v, ratings)
    for q, step in enumerate(1e-6 * np.eye(6)):
        up, down = (oracle_bounds.pcc(v + s * step, ratings) for s in (1, -1))
        assert gradient[q] == pytest.approx((up - down) / 2e-6, abs=1e-8)
    radius = oracle_bounds.pcc_radius(v, ratings, b)
    base = oracle_bounds.pcc(v, ratings)
    for signs in itertools.product((-1, 1), repeat=6):
        assert abs(oracle_bounds.pcc(v + np.array(signs) * b, ratings) - base) <= radius * 1.01
    h = np.full(6, 0.1)
    norm = float(np.linalg.norm(gradient))
    assert oracle_bounds.pcc_halfwidth(v, ratings, h) == pytest.approx(0.1 * norm)


def test_errors_of_srcc_and_of_a_scenario() -> None:
    v = np.array([0.1, 0.2, 0.3, 0.9])
    ratings = np.array([1.0, 2.0, 3.0, 4.0])
    assert oracle_bounds.srcc_radius_orders(v, ratings, np.full(4, 0.04)) == 0.0
    swap = np.array([0.06, 0.06, 0.0, 0.0])  # only the first two can change places: ρ = 1 - 12/60
    assert oracle_bounds.srcc_radius_orders(v, ratings, swap) == pytest.approx(0.2)
    still, swapped = np.zeros(4), np.array([0.15, 0.0, 0.0, 0.0])
    jitters = np.array([still] * 94 + [swapped] * 6)
    assert oracle_bounds.srcc_halfwidth(v, ratings, jitters, 0.9) == 0.0
    assert oracle_bounds.srcc_halfwidth(v, ratings, jitters, 0.95) == pytest.approx(0.2)
    assert oracle_bounds.scenario_radius([[0.1, 0.2], [0.6]]) == pytest.approx(0.3)
    # Fully correlated sources add up, independent trials add in squares.
    actual = oracle_bounds.scenario_halfwidth([[0.3, 0.1], [0.3]], [1.0, 0.0])
    assert actual == pytest.approx(0.5 / 3)
