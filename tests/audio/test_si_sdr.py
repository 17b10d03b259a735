"""SI-SDR by its definition, and the assignment of estimates to references by it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from waveforms import loud_noise

from torch_mapss import audio
from torch_mapss.audio import matching


def test_si_sdr_of_a_known_ratio_and_by_its_definition():
    # An error orthogonal to reference and to constants, of energy set from the ratio.
    t = torch.arange(1000, dtype=torch.float64) / 1000
    s, error = torch.sin(2 * math.pi * 5 * t), torch.sin(2 * math.pi * 9 * t)
    for decibels in (-40.0, 0.0, 20.0, 100.0):
        estimate = 0.3 * (s + 10 ** (-decibels / 20) * error) + 2.0
        assert float(audio.si_sdr(estimate, s - 1)) == pytest.approx(decibels, abs=2e-5)
    s = loud_noise(2, 3, 500, seed=2)
    e = s + 0.3 * loud_noise(2, 3, 500, seed=1) + 0.06
    for index in np.ndindex(2, 3):
        y, x = (wave[index].numpy() - wave[index].numpy().mean() for wave in (e, s))
        target = (y @ x) / (x @ x) * x
        expected = 10 * np.log10(np.sum(target**2) / np.sum((target - y) ** 2))
        assert float(audio.si_sdr(e, s)[index]) == pytest.approx(expected, abs=1e-9)
    s = loud_noise(2, 3, 300, seed=1)
    e = loud_noise(2, 2, 300, seed=2) * 0.5 + s[:, :2]
    e[1, 1] = s[0, 2] = 0
    pairs = [x.expand(2, 2, 3, 300) for x in (e[:, :, None], s[:, None])]
    torch.testing.assert_close(matching.pairwise_si_sdr(e, s), audio.si_sdr(*pairs))


def test_si_sdr_ends():
    x = loud_noise(400, seed=3)
    end = 10 * math.log10(torch.finfo(torch.float64).eps)
    zero = torch.zeros(400, dtype=torch.float64)
    constant = 0.3 * (1 + 1e-15 * loud_noise(400, seed=4).clamp(-2, 2))  # up to rounding
    for e, s in [(zero, x), (x, zero), (zero, zero), (constant, x), (x, constant)]:
        e = e.clone().requires_grad_()
        value = audio.si_sdr(e, s)
        (g,) = torch.autograd.grad(value, e)
        assert value.item() == pytest.approx(end, abs=1e-6)
        assert not g.any()
    assert float(audio.si_sdr(-2 * x, x)) == pytest.approx(-end, abs=0.1)
    assert audio.si_sdr(x.half(), x.half()).dtype == torch.float32


def test_si_sdr_gradient_and_scale():
    e, s = loud_noise(2, 20, seed=1), loud_noise(2, 20, seed=2)
    assert gradcheck(audio.si_sdr, (e.clone().requires_grad_(), s.clone().requires_grad_()))
    for gain in (1e-25, 1e200, -3.0):
        assert torch.allclose(audio.si_sdr(gain * e, s), audio.si_sdr(e, s), rtol=1e-9)


@pytest.mark.parametrize(("estimates", "sources"), [(1, 1), (1, 3), (2, 2), (2, 4), (4, 4)])
def test_matching_equals_trying_all(estimates, sources):
    # Weak mixtures, so that the best total is not the best for each.
    s = loud_noise(2, 3, sources, 40, seed=sources)
    e = loud_noise(2, 3, estimates, sources, seed=7).abs() @ s
    got = audio.match_sources(e, s)
    assert got.shape == (2, 3, estimates)
    assert got.dtype == torch.int64
    orders = list(itertools.permutations(range(sources), estimates))
    for index in np.ndindex(2, 3):
        totals = [float(audio.si_sdr(e[index], s[index][list(order)]).sum()) for order in orders]
        assert tuple(got[index].tolist()) == orders[int(np.argmax(totals))]


def test_matching_with_silence_and_other_levels():
    s = loud_noise(3, 500, seed=1)
    e = torch.stack([-s[1], 1e-6 * s[2], 40 * s[0] + 7])
    assert audio.match_sources(e, s).tolist() == [1, 2, 0]
    e = s[[2, 0, 1]] + 0.1 * loud_noise(3, 500, seed=2)
    e[1] = 0
    assert audio.match_sources(e, s).tolist() == [2, 0, 1]
    s[0] = 0
    assert audio.match_sources(e, s).tolist() == [2, 0, 1]
    silent = audio.match_sources(torch.zeros(3, 500), torch.zeros(3, 500))
    assert sorted(silent.tolist()) == [0, 1, 2]


def test_matching_refuses_mismatched_shapes():
    for shapes in (((3, 9), (2, 9)), ((2, 9), (2, 8)), ((2, 2, 9), (3, 2, 9)), ((9,), (9,))):
        with pytest.raises(ValueError, match="number of sources only"):
            audio.match_sources(*map(torch.ones, shapes))
    with pytest.raises(ValueError, match="references must hold finite"):
        audio.match_sources(torch.ones(1, 2), torch.full((1, 2), torch.inf))
    with pytest.raises(ValueError, match="one shape"):
        audio.si_sdr(torch.ones(2, 9), torch.ones(9))
