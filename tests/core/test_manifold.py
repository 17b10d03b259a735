"""Diffusion maps against the independent oracle, closed forms and their laws."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch

from torch_mapss import functional as F
from torch_mapss.core.kernel import gaussian_kernel, middle_of_pairs
from torch_mapss.core.settings import MapSettings
from torch_mapss.core.spectrum import retained_dimension


def cloud(n, m, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    near = torch.randn(n, m, generator=generator, dtype=torch.float64)
    centre = torch.randn(2, m, generator=generator, dtype=torch.float64)
    return (0.5 * near + centre[torch.arange(n) % 2]).to(dtype)


@pytest.mark.parametrize("convention", ["paper", "reference"])
@pytest.mark.parametrize(("n", "m"), [(8, 3), (28, 8), (60, 1024)])
@pytest.mark.parametrize(("alpha", "time"), [(1.0, 1), (0.5, 2), (0.0, 0.5)])
def test_equals_the_oracle(convention, n, m, alpha, time):
    points = cloud(n, m, seed=n)
    actual = F.diffusion_map(points, alpha=alpha, time=time, convention=convention)
    expected = oracle.diffusion_map(points.numpy(), alpha=alpha, time=time, convention=convention)
    assert int(actual.dimension) == expected.d
    assert np.allclose(actual.eigenvalues.numpy(), expected.eigenvalues, rtol=0, atol=1e-12)
    assert np.allclose(actual.stationary.numpy(), expected.stationary, rtol=1e-10, atol=0)
    d = expected.d
    retained = actual.retained.numpy()
    assert (retained[:, d:] == 0.0).all()
    signs = np.sign((retained[:, :d] * expected.retained).sum(0))
    assert np.allclose(signs * retained[:, :d], expected.retained, rtol=0, atol=1e-9)


@pytest.mark.parametrize("time", [1, 2, 3])
def test_euclidean_distances_are_diffusion_distances(time):
    """[eq:diff_euclid_dist_equal_short], in the full space."""
    points = cloud(24, 5, seed=3)
    actual = F.diffusion_map(points, time=time)
    squared = (actual.coordinates.unsqueeze(0) - actual.coordinates.unsqueeze(1)).square().sum(-1)
    by_oracle = oracle.diffusion_map(points.numpy(), time=time)
    expected = oracle.diffusion_distances(by_oracle.transition, by_oracle.stationary, time)
    assert np.allclose(squared.numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("convention", ["paper", "reference"])
def test_mask_equals_leaving_points_out(convention):
    points = cloud(20, 6, seed=7)
    mask = torch.ones(20, dtype=torch.bool)
    mask[[2, 3, 11, 19]] = False
    spoiled = points.clone()
    spoiled[~mask] = torch.nan  # what is absent may hold anything
    actual = F.diffusion_map(spoiled, mask=mask, convention=convention)
    expected = F.diffusion_map(points[mask], convention=convention)
    assert int(actual.dimension) == int(expected.dimension)
    torch.testing.assert_close(actual.eigenvalues[:15], expected.eigenvalues)
    assert (actual.eigenvalues[15:] == 0.0).all()
    assert (actual.retained[~mask] == 0.0).all()
    inner = actual.retained[mask] @ actual.retained[mask].mT
    torch.testing.assert_close(inner, expected.retained @ expected.retained.mT)
    assert (actual.stationary[~mask] == 0.0).all()


def test_a_disconnected_graph_keeps_one_non_trivial_coordinate_at_one():
    points = cloud(20, 5, seed=11)
    points[:5] += 1e4  # the second eigenvalue is 1 to rounding: tied with the trivial one
    actual = F.diffusion_map(points, energy=0.5)
    assert abs(float(actual.eigenvalues[0]) - 1.0) < 1e-12
    earlier = actual.retained[:, 0]
    assert earlier[:5].std() < 1e-9
    assert earlier[5:].std() < 1e-9
    assert (earlier[0] - earlier[-1]).abs() > 1.0


def dimension(eigenvalues, count, **settings):
    return int(retained_dimension(eigenvalues, count, MapSettings(**settings)))


def test_a_group_tied_at_the_cut_is_retained_entire():
    eigenvalues = torch.tensor([0.5, 0.3, 0.3 - 1e-12, 0.3 - 2e-12, 0.1], dtype=torch.float64)
    count = torch.tensor(5)
    assert dimension(eigenvalues, count, energy=0.5) == 4
    assert dimension(eigenvalues, count, energy=0.5, convention="reference") == 2
    assert dimension(eigenvalues, count, energy=0.3) == 1
    assert dimension(eigenvalues, count, energy=1.0) == 5


def test_a_group_that_the_largest_dimension_cuts_is_dropped_whole():
    eigenvalues = torch.tensor([0.9, 0.5, 0.5, 0.5, 0.1, 0.0], dtype=torch.float64)
    count = torch.tensor(6)
    for largest, *expected in ((1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 4, 4), (9, 5, 5)):
        for convention, d in zip(("paper", "reference"), expected):
            settings = {"energy": 1.0, "convention": convention, "max_dimension": largest}
            assert dimension(eigenvalues, count, **settings) == d
    assert dimension(eigenvalues, count, energy=0.3, max_dimension=5) == 1
    leading = torch.tensor([0.9, 0.9, 0.9, 0.1], dtype=torch.float64)
    assert dimension(leading, torch.tensor(4), energy=1.0, max_dimension=2) == 3


@pytest.mark.parametrize("largest_dimension", [1, 5, 20])
def test_the_largest_dimension_keeps_the_first_coordinates(largest_dimension):
    points = cloud(28, 40, seed=3)
    full, capped = F.diffusion_map(points), F.diffusion_map(points, max_dimension=largest_dimension)
    assert full.dimension > 20
    assert int(capped.dimension) == largest_dimension
    earlier = full.coordinates.clone()
    earlier[:, largest_dimension:] = 0.0
    torch.testing.assert_close(capped.retained, earlier, rtol=0, atol=0)
    for wrong, error in ((0, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="max_dimension"):
            F.diffusion_map(points, max_dimension=wrong)


def test_median_takes_both_middle_values_of_an_even_number_of_pairs():
    points = torch.tensor([[0.0], [1.0], [3.0], [7.0]], dtype=torch.float64)
    squared = (points - points.mT).square()
    # pairs: 1, 4, 9, 16, 36, 49
    assert middle_of_pairs(squared[None], None, True) == (9.0, 16.0)
    assert middle_of_pairs(squared[None], None, False) == (9.0, 9.0)
    valid = torch.tensor([[True, True, True, False]])
    assert middle_of_pairs(squared[None], valid, True) == (4.0, 4.0)


def test_pairs_tied_but_for_rounding_share_the_slope_of_the_median():
    """An output equal to its reference but for rounding: both move the bandwidth alike."""
    points = torch.tensor([[[0.0], [1e-15], [2.0], [5.0]]], dtype=torch.float64).requires_grad_()
    gaussian_kernel(points.detach().clone(), [points], None, True)[0].sum().backward()
    torch.testing.assert_close(points.grad[0, 0], points.grad[0, 1], rtol=1e-9, atol=0)


def test_close_clumps_far_apart_keep_their_digits():
    """Inner products alone would lose the distances inside a clump that holds most points."""
    generator = torch.Generator().manual_seed(0)
    points = 1e-6 * torch.randn(20, 3, generator=generator, dtype=torch.float64)
    points[:3] += 1.0
    actual = F.diffusion_map(points)
    expected = oracle.diffusion_map(points.numpy())
    assert np.allclose(actual.eigenvalues.numpy(), expected.eigenvalues, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((torch.zeros(5),), {}, ValueError, r"\(\.\.\., N, M\)"),
        ((torch.zeros(1, 4),), {}, ValueError, "N >= 2"),
        ((torch.zeros(4, 3, dtype=torch.int64),), {}, TypeError, "floating-point"),
        ((np.zeros((4, 3)),), {}, TypeError, "torch.Tensor"),
        ((torch.rand(4, 3),), {"alpha": 1.5}, ValueError, r"alpha must lie in \[0, 1\]"),
        ((torch.rand(4, 3),), {"alpha": float("nan")}, ValueError, "alpha"),
        ((torch.rand(4, 3),), {"energy": 0.0}, ValueError, r"\(0, 1\]"),
        ((torch.rand(4, 3),), {"energy": 1.1}, ValueError, r"\(0, 1\]"),
        ((torch.rand(4, 3),), {"time": 0}, ValueError, "positive"),
        ((torch.rand(4, 3),), {"convention": "papers"}, ValueError, "convention"),
        ((torch.rand(4, 3),), {"mask": torch.ones(4)}, TypeError, "bool"),
        ((torch.rand(4, 3),), {"mask": torch.ones(5, dtype=torch.bool)}, ValueError, "mask"),
    ],
)
def test_bad_input_is_refused(arguments, options, error, words):
    with pytest.raises(error, match=words):
        F.diffusion_map(*arguments, **options)


def test_non_finite_points_are_named():
    points = torch.rand(3, 5, 2)
    points[1, 4, 0] = torch.inf
    with pytest.raises(ValueError, match=r"point 4 holds .* frame 1"):
        F.diffusion_map(points)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_gradients_beyond_the_type_of_the_points_stay_finite(dtype):
    points = cloud(12, 3, seed=17).to(dtype).requires_grad_()
    inner = F.diffusion_map(points).retained
    inner.square().sum().mul(1e45).backward()
    assert torch.isfinite(points.grad).all()
    assert points.grad.abs().max() == torch.finfo(dtype).max
