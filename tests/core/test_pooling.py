"""Pooling against plain loops: range, gradients, memory."""

from __future__ import annotations

import math

import numpy as np
import oracle_bounds
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_mapss import functional as F
from torch_mapss.bounds import pool_separation_bounds
from torch_mapss.core.pooling import pool_log_match_compressed, pool_power_db


@pytest.mark.parametrize("count", [1, 19, 20, 21, 39, 40, 123])
def test_pesq_pooling_equals_a_loop(count):
    rng = np.random.default_rng(count)
    frames = rng.uniform(size=150)
    active = np.zeros(150, dtype=bool)
    active[rng.permutation(150)[:count]] = True
    actual = F.pool_separation(torch.from_numpy(frames), torch.from_numpy(active))
    assert abs(float(actual) - oracle_bounds.pool_separation(frames[active])) < 1e-12
    frames = rng.uniform(size=(2, 3, 40))  # a batch with other windows
    actual = F.pool_separation(torch.from_numpy(frames), window=7, hop=3, p=2)
    for index in np.ndindex(2, 3):
        expected = oracle_bounds.pool_separation(frames[index], 7, 3, 2)
        assert abs(float(actual[index]) - expected) < 1e-12


def test_means_and_that_nothing_active_is_nan_and_takes_no_gradient():
    frames = torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64)
    active = torch.tensor([True, True, False])
    assert abs(float(F.pool_match(frames, active)) - 0.3) < 1e-12
    assert abs(float(F.pool_match(frames.log(), active, log=True)) - math.log(0.08) / 2) < 1e-12
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


@pytest.mark.parametrize(
    ("pool", "frames", "options", "error", "words"),
    [
        (F.pool_separation, torch.rand(30), {"window": 0}, ValueError, "window"),
        (F.pool_separation, torch.rand(30), {"hop": 0}, ValueError, "hop"),
        *((F.pool_separation, torch.rand(30), {"p": p}, ValueError, "p") for p in (0.5, math.inf)),
        (F.pool_separation, torch.rand(30), {"p": math.nan}, ValueError, "p must be finite"),
        (F.pool_match, torch.ones(4, dtype=torch.int64), {}, TypeError, "floating"),
        (F.pool_match, torch.rand(4), {"active": torch.ones(5) > 0}, ValueError, "must have shape"),
    ],
)
def test_bad_input_is_refused(pool, frames, options, error, words):
    with pytest.raises(error, match=words):
        pool(frames, **options)


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


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor made within holds."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return result


@pytest.mark.parametrize("masked", [False, True])
def test_memory_is_linear_in_frames(masked):
    """An hour at 50 frames a second: windows x frames would be 26 GB."""
    count = 180_000
    frames = torch.rand(count, dtype=torch.float64, requires_grad=True)
    active = torch.rand(count) > 0.3 if masked else None
    with Largest() as made:
        pooled = F.pool_separation(frames, active)
        pooled.backward()
        for convention in ("paper", "derived"):
            pool_separation_bounds(*[frames.detach()] * 3, active, convention=convention)
    assert made.numbers <= 2 * count
    counted = frames.detach() if active is None else frames.detach()[active]
    assert abs(float(pooled.detach()) - oracle_bounds.pool_separation(counted.numpy())) < 1e-12


def test_fidelity_is_one_minus_the_rms_loss():
    frames = torch.tensor([[1.0, 0.5, 0.9, 0.0], [1.0] * 4, [0.3] * 4], dtype=torch.float64)
    defined = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    leaf = frames.clone().requires_grad_()
    pooled = F.pool_fidelity(leaf, defined=defined)
    assert abs(float(pooled[0].detach()) - (1.0 - math.sqrt(0.125))) < 1e-12
    assert float(pooled[1].detach()) == 1.0
    assert pooled[2].isnan()  # undefined in three of four
    (g,) = torch.autograd.grad(pooled[:2].sum(), leaf)
    assert g.isfinite().all()
    assert (g[~defined] == 0.0).all()
    assert (g[1] == 0.0).all()
    two = torch.tensor([True, True, False, False])
    torch.testing.assert_close(F.pool_fidelity(frames[0], two), pooled[0].detach())
    assert F.pool_fidelity(frames[0], two, defined[2]).isfinite()  # in one of two that count
    assert F.pool_fidelity(frames[0], active=torch.zeros(4, dtype=torch.bool)).isnan()


def test_compressed_log_pm_bounds_the_effect_of_a_frame():
    frames = torch.tensor([0.0, -1.0, -14_000.0], dtype=torch.float64, requires_grad=True)
    pooled = pool_log_match_compressed(frames)
    assert abs(float(pooled.detach()) + (math.log(2.0) + math.log(14_001.0)) / 3) < 1e-12
    active = torch.tensor([True, True, False])
    (g,) = torch.autograd.grad(pool_log_match_compressed(frames, active), frames)
    torch.testing.assert_close(g, torch.tensor([0.5, 0.25, 0.0], dtype=torch.float64))


def test_power_is_averaged_before_its_level():
    levels = torch.tensor([[0.0, -20.0, math.nan], [-400.0, -400.0, 0.0]], dtype=torch.float64)
    active = torch.tensor([True, True, False])
    expected = [10.0 * math.log10(1.01 / 2.0), -400.0]
    assert pool_power_db(levels, active).tolist() == pytest.approx(expected)
    assert pool_power_db(levels, ~active | active)[0].isnan()
    assert pool_power_db(torch.full((3,), -math.inf)).item() == -math.inf


def test_no_frames_at_all_give_nan():
    frames = torch.zeros(2, 0)
    pools = (F.pool_match, F.pool_separation, pool_log_match_compressed, pool_power_db)
    for pool in pools:
        pooled = pool(frames)
        assert pooled.shape == (2,)
        assert pooled.isnan().all()
