"""Pooling against plain loops, its range and its gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torch_mapss import functional as F
from torch_mapss.core.pooling import pesq_slope


def pesq(frames, window=20, hop=10, p=6):
    """[app:agg] by loops, with the last window kept."""
    n = len(frames)
    if n < window:
        spans = [frames]
    else:
        spans = [frames[m * hop : m * hop + window] for m in range((n - window) // hop + 1)]
    levels = [np.mean(np.abs(span) ** p) ** (1 / p) for span in spans]
    level = math.sqrt(np.mean(np.square(levels)))
    return 0.999 + 4.0 / (1.0 + math.exp(-1.3669 * level + 3.8224))


@pytest.mark.parametrize("count", [1, 5, 19, 20, 21, 30, 39, 40, 123])
def test_pesq_pooling_equals_a_loop(count):
    rng = np.random.default_rng(count)
    frames = rng.uniform(size=150)
    active = np.zeros(150, dtype=bool)
    active[rng.permutation(150)[:count]] = True
    found = F.pool_separation(torch.from_numpy(frames), torch.from_numpy(active))
    assert abs(float(found) - pesq(frames[active])) < 1e-12


def test_pesq_pooling_of_a_batch_with_other_windows():
    rng = np.random.default_rng(0)
    frames = rng.uniform(size=(2, 3, 40))
    found = F.pool_separation(torch.from_numpy(frames), window=7, hop=3, p=2)
    for b in range(2):
        for s in range(3):
            assert abs(float(found[b, s]) - pesq(frames[b, s], 7, 3, 2)) < 1e-12


def test_pesq_pooling_spans_its_range():
    low, high = F.pool_separation(torch.tensor([[0.0] * 30, [1.0] * 30], dtype=torch.float64))
    assert abs(float(low) - 1.0856) < 1e-3
    assert abs(float(high) - 1.3148) < 1e-3


def test_means():
    frames = torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64)
    active = torch.tensor([True, True, False])
    assert abs(float(F.pool_match(frames, active)) - 0.3) < 1e-12
    assert abs(float(F.pool_match(frames.log(), active, log=True)) - math.log(0.08) / 2) < 1e-12


def test_nothing_active_is_nan_and_takes_no_gradient():
    frames = torch.rand(2, 30, dtype=torch.float64, requires_grad=True)
    active = torch.ones(2, 30, dtype=torch.bool)
    active[1] = False
    for pool in (F.pool_match, F.pool_separation):
        pooled = pool(frames, active)
        assert torch.isfinite(pooled[0])
        assert torch.isnan(pooled[1])
        (g,) = torch.autograd.grad(pooled[0], frames)
        assert torch.isfinite(g).all()
        assert (g[1] == 0.0).all()


def test_gradients_of_pooling():
    frames = torch.rand(2, 50, dtype=torch.float64, requires_grad=True)
    active = torch.rand(2, 50) > 0.3
    assert torch.autograd.gradcheck(lambda x: F.pool_separation(x, active), [frames])
    zeros = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(F.pool_separation(zeros), zeros)
    assert torch.isfinite(g).all()


def test_slope_of_the_logistic_map():
    level = torch.linspace(0, 1, 5, dtype=torch.float64, requires_grad=True)
    score = 0.999 + 4.0 / (1.0 + torch.exp(-1.3669 * level + 3.8224))
    (g,) = torch.autograd.grad(score.sum(), level)
    torch.testing.assert_close(pesq_slope(level.detach()), g)


@pytest.mark.parametrize("options", [{"window": 0}, {"hop": 0}, {"p": 0.5}])
def test_bad_windows_are_refused(options):
    with pytest.raises(ValueError, match="at least 1"):
        F.pool_separation(torch.rand(30), **options)


def test_bad_frames_are_refused():
    with pytest.raises(TypeError, match="floating"):
        F.pool_match(torch.ones(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="active must have shape"):
        F.pool_match(torch.rand(4), torch.ones(5, dtype=torch.bool))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_frame_without_a_score_is_not_the_lowest_one(bad):
    frames = torch.full((2, 60), 0.5)
    frames[0, 7] = bad
    pooled = F.pool_separation(frames)
    assert pooled[0].isnan()
    active = torch.ones(2, 60, dtype=torch.bool)
    active[0, 7] = False
    torch.testing.assert_close(F.pool_separation(frames, active), pooled[1].expand(2))


@pytest.mark.parametrize("p", [60, 1000])
def test_powers_do_not_underflow(p):
    frames = torch.full((40,), 0.1)
    expected = F.pool_separation(frames.double(), p=1)
    torch.testing.assert_close(F.pool_separation(frames, p=p).double(), expected)
    for bad in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="p must be finite"):
            F.pool_separation(frames, p=bad)
