"""From frame bounds to utterances, and from utterances to correlations with listeners."""

from __future__ import annotations

import math

import numpy as np
import oracle_bounds
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from torch_mapss import functional as F
from torch_mapss.bounds import correlation, utterance
from torch_mapss.bounds.effective import normal_quantile


def _uniform(*shape: int, seed: int = 0, top: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return top * torch.rand(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("frames", [1, 3, 19, 20, 45, 57])
def test_mean_pooling_agrees_with_the_oracle(frames: int) -> None:
    b, p = _uniform(frames, seed=1), _uniform(frames, seed=2)
    bounds = utterance.pool_match_bounds(b, p)
    assert bounds.radius.item() == pytest.approx(b.mean().item(), rel=1e-12)
    expected = oracle_bounds.average_halfwidth(p.numpy())
    assert bounds.tail.item() == pytest.approx(expected, rel=1e-12)
    assert bounds.total.item() == pytest.approx(bounds.radius.item() + bounds.tail.item())
    derived = utterance.pool_match_bounds(b, p, convention="derived", gap=2)
    expected = min(oracle_bounds.average_halfwidth(p.numpy(), gap=2), p.mean().item())
    assert derived.tail.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("frames", "window", "hop", "p"),
    [(7, 20, 10, 6), (20, 20, 10, 6), (57, 20, 10, 6), (31, 8, 3, 2)],
)
def test_pesq_pooling_agrees_with_the_oracle(frames: int, window: int, hop: int, p: float) -> None:
    ps, b, half = _uniform(frames, seed=3), _uniform(frames, seed=4, top=0.1), _uniform(frames)
    plain = ps.numpy(), b.numpy(), half.numpy()
    bounds = utterance.pool_separation_bounds(ps, b, half, None, window, hop, p)
    expected = oracle_bounds.pesq_radius(plain[0], plain[1], window, hop, p)
    assert bounds.radius.item() == pytest.approx(expected, rel=1e-12)
    expected = oracle_bounds.pesq_radius(plain[0], plain[2], window, hop, p)  # the same formula
    assert bounds.tail.item() == pytest.approx(expected, rel=1e-12)
    arguments = ps, b, half, None, window, hop, p
    bounds = utterance.pool_separation_bounds(*arguments, convention="derived")
    expected = oracle_bounds.pesq_radius_secant(plain[0], plain[1], window, hop, p)
    assert bounds.radius.item() == pytest.approx(expected, rel=1e-12)
    expected = oracle_bounds.pesq_halfwidth_gradient(plain[0], plain[2], window, hop, p)
    assert bounds.tail.item() == pytest.approx(expected, rel=1e-7)


def test_inactive_frames_were_never_there() -> None:
    ps, b, half = (_uniform(3, 50, seed=s) for s in range(3))
    active = _uniform(3, 50, seed=9) > 0.4
    active[2] = False
    ps[~active] = b[~active] = half[~active] = math.nan
    for convention in ("paper", "derived"):
        mean = utterance.pool_match_bounds(b, half, active, convention=convention)
        pesq = utterance.pool_separation_bounds(ps, b, half, active, convention=convention)
        for row in range(2):
            present = [x[row, active[row]] for x in (ps, b, half)]
            alone = utterance.pool_match_bounds(*present[1:], convention=convention)
            torch.testing.assert_close(mean.total[row], alone.total)
            alone = utterance.pool_separation_bounds(*present, convention=convention)
            torch.testing.assert_close(pesq.radius[row], alone.radius)
            torch.testing.assert_close(pesq.tail[row], alone.tail)
        assert bool(torch.isnan(torch.stack([*mean, *pesq])[:, 2]).all())


def test_the_derived_radius_covers_every_bias_and_the_printed_one_does_not() -> None:
    ps, b = 0.4 + _uniform(80, seed=5, top=0.3), torch.full((80,), 0.1, dtype=torch.float64)
    base = F.pool_separation(ps)
    moved = F.pool_separation(ps + b) - base
    zero = torch.zeros_like(b)
    derived = utterance.pool_separation_bounds(ps, b, zero, convention="derived").radius
    printed = utterance.pool_separation_bounds(ps, b, zero).radius
    assert printed < moved <= derived
    assert derived < 1.05 * moved
    for seed in range(50):
        bias = (2.0 * _uniform(80, seed=100 + seed) - 1.0) * b
        assert abs(F.pool_separation(ps + bias) - base) <= derived


def test_block_inflation_covers_dependence_over_four_frames() -> None:
    """Errors shared by five frames each, the worst case of independence beyond g = 4."""
    generator = torch.Generator().manual_seed(6)
    blocks = torch.randn(20_000, 12, generator=generator, dtype=torch.float64)
    frames = blocks.repeat_interleave(5, -1)
    p = torch.full((60,), normal_quantile(0.95), dtype=torch.float64)  # σ = 1
    width = utterance.pool_match_bounds(torch.zeros_like(p), p).tail
    covered = (frames.mean(-1).abs() <= width).double().mean()
    assert 0.94 < covered < 0.96
    single = utterance.pool_match_bounds(torch.zeros_like(p), p, gap=0).tail
    assert (frames.mean(-1).abs() <= single).double().mean() < 0.7


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda b: utterance.pool_match_bounds(b, -b), "tail must be at least 0"),
        (lambda b: utterance.pool_match_bounds(b, b * math.nan), "index \\(0,\\)"),
        (lambda b: utterance.pool_match_bounds(b, b[:5]), r"radius \(30,\), tail \(5,\)"),
        (lambda b: utterance.pool_match_bounds(b, b, gap=-1), "gap"),
        (lambda b: utterance.pool_match_bounds(b, b, convention="reference"), "'derived'"),
        (lambda b: utterance.pool_separation_bounds(b, b, b, None, 0), "window"),
        (lambda b: utterance.pool_separation_bounds(b[:0], b[:0], b[:0]), "at least 1"),
        (lambda b: utterance.pool_separation_bounds(b * math.nan, b, b), "frames must be"),
    ],
)
def test_utterance_input_out_of_range(call, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call(_uniform(30) + 0.1)


ROWS = st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0.0, 1.5))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(ROWS, min_size=2, max_size=6),
    st.just(0.0) | st.floats(1e-6, 1.0),  # squares of anything smaller vanish in the oracle
)
def test_correlations_and_bounds_agree_with_the_oracle(rows, extra: float) -> None:
    v, ratings, b = (np.array(column, dtype=float) for column in zip(*rows))
    v = v + extra * np.linspace(0.0, 1.0, len(v)) ** 2
    if np.ptp(v) == 0.0 or np.ptp(ratings) == 0.0:
        return
    given_ = tuple(torch.from_numpy(x) for x in (v, b, b, ratings))
    bounds = correlation.correlation_bounds(*given_)
    assert bounds.value.item() == pytest.approx(oracle_bounds.pcc(v, ratings), abs=1e-12)
    farthest = 1.0 + abs(bounds.value.item())
    expected = min(oracle_bounds.pcc_radius(v, ratings, b), farthest)
    # Scores that nearly coincide enlarge rounding by as much as they enlarge their errors.
    rounding = 1e-14 * (1.0 + b.max() / np.ptp(v))
    assert bounds.radius.item() == pytest.approx(expected, rel=1e-8, abs=rounding)
    expected = min(oracle_bounds.pcc_halfwidth(v, ratings, b), farthest)
    assert bounds.half_width.item() == pytest.approx(expected, rel=1e-8)
    bounds = correlation.correlation_bounds(*given_, method="spearman", draws=10)
    assert bounds.value.item() == pytest.approx(oracle_bounds.srcc(v, ratings), abs=1e-12)
    worst = oracle_bounds.srcc_radius_orders(v, ratings, (1.0 - 1e-9) * b)  # no tie by rounding
    if len(set(v)) == len(v):  # that oracle breaks ties of v even where nothing can move
        assert bounds.radius.item() >= worst - 1e-12
    assert bounds.radius.item() <= 1.0 + abs(bounds.value.item()) + 1e-12


def test_spearman_radius_covers_every_bias_also_where_it_makes_ties() -> None:
    generator = torch.Generator().manual_seed(7)
    loose = []
    for seed in range(30):
        v, m = _uniform(5, seed=seed), _uniform(5, seed=seed + 1000).mul(4.0).round()
        b = _uniform(5, seed=seed + 2000, top=0.15)
        if float(m.max()) == float(m.min()):
            continue
        bounds = correlation.correlation_bounds(v, b, 0.0 * b, m, method="spearman", draws=1)
        signs = 2.0 * torch.rand(400, 5, generator=generator, dtype=torch.float64) - 1.0
        moved = v + signs * b
        tied = torch.round(moved * 8.0) / 8.0  # ties, where they are within reach
        moved = torch.cat([moved, torch.where((tied - v).abs() <= b, tied, moved)])
        values = correlation.spearman(moved, m.expand_as(moved))
        assert float((values - bounds.value).abs().max()) <= bounds.radius + 1e-12
        orders = oracle_bounds.srcc_radius_orders(v.numpy(), m.numpy(), b.numpy())
        loose.append(bounds.radius.item() - orders)
    assert min(loose) >= -1e-12
    assert np.median(loose) < 0.1  # and it is not much more than the largest over all orders


def test_signs_alone_miss_swaps() -> None:
    """[eq:srcc_bias] as printed tries +b and -b: equal radii then never change an order."""
    v, m = torch.tensor([0.1, 0.2, 0.3, 0.9]).double(), torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    b = torch.full((4,), 0.06, dtype=torch.float64)
    for sign in (-1.0, 1.0):
        assert correlation.spearman(v + sign * b, m).item() == pytest.approx(1.0)
    bounds = correlation.correlation_bounds(v, b, b, m, method="spearman", draws=1)
    # 0.1|0.2 and 0.2|0.3 may swap: ranks 2 1 3 or 1 3 2 give 0.8; both at once bound it by 0.6.
    assert bounds.radius.item() == pytest.approx(0.4, rel=1e-12)
    still = correlation.correlation_bounds(v, 0.8 * b, b, m, method="spearman", draws=1)
    assert still.radius.item() == 0.0


def test_jitter_agrees_with_the_oracle_on_the_same_draws() -> None:
    v, m, h = _uniform(6, seed=10), _uniform(6, seed=11), _uniform(6, seed=12, top=0.4)
    h[2] = 0.0
    options = {"confidence": 0.9, "method": "spearman", "draws": 2000, "seed": 4}
    bounds = correlation.correlation_bounds(v, 0.0 * h, h, m, **options)
    generator = torch.Generator().manual_seed(4)
    normal = torch.randn(2000, 6, generator=generator, dtype=torch.float64)
    jitters = (normal * h / oracle_bounds.normal_quantile(0.9)).numpy()
    expected = oracle_bounds.srcc_halfwidth(v.numpy(), m.numpy(), jitters, 0.9)
    assert bounds.half_width.item() == pytest.approx(expected, abs=1e-12)


def test_jitter_is_seeded_and_the_same_in_a_batch() -> None:
    v, m, h = (_uniform(4, 5, seed=s) for s in (13, 14, 15))
    v[1, 3] = math.nan
    before, jittered = torch.get_rng_state(), {"method": "spearman", "draws": 3000}
    batch = correlation.correlation_bounds(v, h, h, m, seed=2, **jittered)
    assert torch.equal(torch.get_rng_state(), before)
    for row in range(4):
        arguments = (x[row] for x in (v, h, h, m))
        single = correlation.correlation_bounds(*arguments, seed=2, **jittered)
        torch.testing.assert_close(single[:3], tuple(x[row] for x in batch[:3]))
    reseeded = correlation.correlation_bounds(v, h, h, m, seed=3, **jittered)
    torch.testing.assert_close(reseeded.half_width, batch.half_width, atol=0.06, rtol=0)
    assert batch.counted.tolist() == [5, 4, 5, 5]


@pytest.mark.parametrize("method", correlation.METHODS)
def test_absent_systems_were_never_there(method: str) -> None:
    v, b, h, m = (_uniform(7, seed=s) for s in range(20, 24))
    v[1] = b[1] = m[4] = math.nan
    left = [0, 2, 3, 5, 6]
    bounds = correlation.correlation_bounds(v, b, h, m, method=method, draws=1)
    alone = correlation.correlation_bounds(*(x[left] for x in (v, b, h, m)), method=method, draws=1)
    assert bounds.counted == 5
    torch.testing.assert_close(bounds[:2], alone[:2])
    function = {"pearson": correlation.pearson, "spearman": correlation.spearman}[method]
    torch.testing.assert_close(function(v, m), bounds.value)


@pytest.mark.parametrize("method", correlation.METHODS)
def test_correlation_with_constant_ratings_is_undefined(method: str) -> None:
    v, h = _uniform(2, 5), _uniform(2, 5, seed=1)
    m = torch.stack([torch.full((5,), 0.1, dtype=torch.float64), _uniform(5, seed=2)])
    with pytest.warns(UserWarning, match="1 of 2 .* 1 have ratings that are all the same"):
        bounds = correlation.correlation_bounds(v, h, h, m, method=method, draws=5)
    for field in bounds[:4]:
        assert math.isnan(field[0])
        assert math.isfinite(field[1])
    single_system = torch.tensor([1.0, math.nan, math.nan])
    with pytest.warns(UserWarning, match="fewer than two systems"):
        assert math.isnan(correlation.spearman(single_system, single_system))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"method": "kendall"}, "'spearman'"),
        ({"draws": 0}, "draws"),
        ({"radii": -_uniform(5) - 0.1}, "radii must be finite"),
        ({"half_widths": _uniform(4)}, "half_widths must have the shape"),
        ({"ratings": _uniform(4)}, r"\(5,\) and \(4,\)"),
        ({"scores": _uniform(5) / 0.0}, "infinite"),
    ],
)
def test_correlation_input_out_of_range(change: dict[str, object], match: str) -> None:
    arguments = {name: _uniform(5) for name in ("scores", "radii", "half_widths", "ratings")}
    with pytest.raises(ValueError, match=match):
        correlation.correlation_bounds(**(arguments | change))


def test_scenario_agrees_with_the_oracle() -> None:
    values, b, h = (_uniform(4, 3, seed=s) for s in range(30, 33))
    rho = _uniform(4, seed=33)
    values[1, 2] = h[3, 1] = math.nan
    bounds = correlation.scenario_bounds(values, b, h, rho)
    present = ~(values.isnan() | h.isnan())
    of_h, of_b = (
        [row[row_present].tolist() for row, row_present in zip(x, present)] for x in (h, b)
    )
    expected = oracle_bounds.scenario_halfwidth(of_h, rho.tolist())
    assert bounds.half_width.item() == pytest.approx(expected, rel=1e-12)
    assert bounds.radius.item() == pytest.approx(oracle_bounds.scenario_radius(of_b), rel=1e-12)
    assert bounds.value.item() == pytest.approx(values[present].mean().item(), rel=1e-12)
    assert bounds.counted == 10
    gone = correlation.scenario_bounds(values * math.nan, b, h)
    assert math.isnan(gone.total)
    with pytest.raises(ValueError, match=r"\[-1, 1\]"):
        correlation.scenario_bounds(values, b, h, 1.5)
    with pytest.raises(ValueError, match="trials and sources"):
        correlation.scenario_bounds(values, b[:2], h)


def test_the_printed_errors_of_a_correlation_agree_with_their_formulas() -> None:
    """[eq:pcc_bias], [eq:srcc_bias], [eq:srcc_hw] as the paper prints them, in NumPy alone."""
    x, m = _uniform(7, seed=1).numpy(), _uniform(7, seed=2).numpy()
    b, h = _uniform(7, seed=3, top=0.2).numpy(), _uniform(7, seed=4, top=0.3).numpy()
    tensors = [torch.from_numpy(v) for v in (x, b, h, m)]
    bounds = correlation.correlation_bounds(*tensors, method="pearson", convention="paper")
    xc, mc, bc = (v - v.mean() for v in (x, m, b))
    r = stats.pearsonr(x, m)[0]
    gradient = mc / np.linalg.norm(xc) / np.linalg.norm(mc) - r * xc / (xc @ xc)
    radius = np.linalg.norm(gradient) * np.linalg.norm(bc)
    assert bounds.radius.item() == pytest.approx(radius, rel=1e-12)
    assert bounds.half_width.item() == pytest.approx(np.linalg.norm(gradient * h), rel=1e-12)
    bounds = correlation.correlation_bounds(*tensors, method="spearman", convention="paper")
    rho = stats.spearmanr(x, m)[0]
    moved = [abs(stats.spearmanr(x + sign * b, m)[0] - rho) for sign in (1, -1)]
    assert bounds.radius.item() == pytest.approx(max(moved), abs=1e-12)
    rng = np.random.default_rng(0)
    jittered = x + rng.normal(size=(10_000, 7)) * h / stats.norm.ppf(0.975)
    ranks, of_m = stats.rankdata(jittered, axis=1) - 4, stats.rankdata(m) - 4  # their mean
    change = np.abs(ranks @ of_m / (of_m @ of_m) - rho)  # without ties all have one variance
    assert bounds.half_width.item() == pytest.approx(np.quantile(change, 0.975), rel=0.05)
    with pytest.raises(ValueError, match="convention"):
        correlation.correlation_bounds(*tensors, convention="printed")


def test_ties_are_those_of_scipy() -> None:
    """Scores that are equal number for number share a rank; others, however close, do not."""
    m = torch.tensor([1.0, 2.0, 2.0, 3.0, 5.0]).double()
    for x in ([0.1, 0.1, 0.3, 0.3, 0.9], [0.1, 0.1 + 1e-16, 0.3, 0.3 + 1e-15, 0.0]):
        coefficient = correlation.spearman(torch.tensor(x).double(), m)
        expected = stats.spearmanr(torch.tensor(x).double().numpy(), m.numpy()).statistic
        assert float(coefficient) == pytest.approx(expected, abs=1e-12)
