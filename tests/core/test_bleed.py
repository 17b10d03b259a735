"""Bleed from powers of frames: against loops over the definition, its ends and its gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from torch_mapss.core.bleed import FLOOR_DB, bleed_level


def scene(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    own_active, other_active = uniform(2, 3, 20) > 0.5, uniform(2, 1, 20) > 0.3
    reference_power = torch.where(own_active, 1.0, 0.01) * uniform(2, 3, 20)
    power = reference_power * (0.5 + 2.0 * uniform(2, 3, 20)) + 0.003 * uniform(2, 3, 20)
    return power, reference_power, own_active, other_active


def oracle(
    power: np.ndarray, reference: np.ndarray, own_active: np.ndarray, other_active: np.ndarray
) -> list:
    """Of the frames of one output."""
    levels = []
    for k in range(len(power)):
        if own_active[k] or not other_active[k] or not own_active.any():
            levels.append(math.nan)
            continue
        added = max(0.0, power[k] - reference[k]) / reference[own_active].mean()
        levels.append(10.0 * math.log10(max(added, 1e-10)))
    return levels


def test_equals_the_oracle():
    power, reference_power, own_active, other_active = scene()
    own_active[0, 1] = False  # a source that never plays
    levels = bleed_level(power, reference_power, own_active, other_active).numpy()
    other_rows = other_active.expand_as(own_active).numpy()
    for row in np.ndindex(2, 3):
        rows = (
            power.numpy()[row],
            reference_power.numpy()[row],
            own_active.numpy()[row],
            other_rows[row],
        )
        np.testing.assert_allclose(levels[row], oracle(*rows), rtol=0, atol=0.02)
    assert np.isnan(levels[0, 1]).all()
    assert (levels == FLOOR_DB).any()


def test_nothing_has_less_than_the_reference_and_taking_more_away_is_no_gain():
    _, reference_power, own_active, other_active = scene()
    for share in (1.0, 1.0 + 1e-6, 0.5, 0.0):
        power = (share * reference_power).requires_grad_()
        levels = bleed_level(power, reference_power, own_active, other_active)
        defined = ~levels.isnan()
        assert defined.any()
        assert (levels[defined] == FLOOR_DB).all()
        (slope,) = torch.autograd.grad(levels[defined].sum(), power, allow_unused=True)
        assert slope is None or (slope == 0).all()


def test_gain_of_both_is_free():
    power, reference_power, *active = scene()
    expected = bleed_level(power, reference_power, *active)
    levels = bleed_level(7.0 * power, 7.0 * reference_power, *active)
    torch.testing.assert_close(levels, expected, equal_nan=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_against_differences(seed):
    power, reference_power, own_active, other_active = scene(seed)
    power = (reference_power + 0.01 + 0.02 * power).requires_grad_()  # bleeds everywhere

    def defined_values(power: Tensor) -> Tensor:
        levels = bleed_level(power, reference_power, own_active, other_active)
        return levels[~levels.isnan()]

    assert len(defined_values(power)) > 5
    assert gradcheck(defined_values, power)


def test_the_ends_are_finite():
    own_active = torch.tensor([True, False, False, False])
    reference_power = torch.tensor([1.0, 0.0, 0.0, 0.0])
    power = torch.tensor([1.0, 0.0, 1e-30, 1e30]).requires_grad_()
    levels = bleed_level(power, reference_power, own_active, torch.tensor(True))
    assert levels[1:].tolist() == [-100.0, -100.0, 100.0]
    levels[1:].sum().backward()
    assert (power.grad == 0).all()
