"""Bounds of PS and PM, against the oracle, the reference implementation and what they promise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
import oracle_bounds
import pytest
import torch
from clouds import clouds, golden, released
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_mapss import functional as F
from torch_mapss.bounds import (
    bootstrap,
    correlation_bounds,
    effective,
    frames,
    match,
    schur,
    separation,
    source_correlation,
)
from torch_mapss.bounds.settings import named_settings
from torch_mapss.core.diffusion_map import embed
from torch_mapss.core.gamma import gammaincc
from torch_mapss.core.mahalanobis import ridge_factor
from torch_mapss.core.match import gamma_parameters, moments
from torch_mapss.core.points import Points, presence, split_points
from torch_mapss.core.separation import cluster_statistics
from torch_mapss.core.settings import MapSettings

CONVENTIONS = ("paper", "reference", "derived")
GOLDEN = golden(64)
MEASURES = {
    "ps": (frames.separation_bounds, oracle_bounds.separation_bounds),
    "pm": (frames.match_bounds, oracle_bounds.match_bounds),
}


def _frame(case: str) -> tuple[Tensor, ...]:
    points = released.embeddings(released.CASES[case])
    return tuple(torch.from_numpy(x).double() for x in points)


def _points(points: Sequence[Tensor]) -> Points:
    return Points(*points, tuple(range(points[0].shape[-2])))


def _maps(points: Sequence[Tensor], energy: float = 0.99):
    return embed(_points(points), MapSettings(energy=energy), complete=True)


@pytest.mark.parametrize("case", released.CASES)
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("measure", MEASURES)
def test_agrees_with_the_oracle(case: str, convention: str, measure: str) -> None:
    ours, theirs = MEASURES[measure]
    points = released.embeddings(released.CASES[case])
    expected = theirs(*points, confidence=0.9, convention=convention)
    bounds = ours(*_frame(case), confidence=0.9, convention=convention)
    for name in ("radius", "tail", "total"):
        value_by_oracle = getattr(expected, name)
        np.testing.assert_allclose(getattr(bounds, name), value_by_oracle, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("case", released.CASES)
def test_agrees_with_the_reference_implementation(case: str) -> None:
    for measure, (ours, _) in MEASURES.items():
        bounds = ours(*_frame(case), convention="reference")._asdict()
        for name in ("radius", "tail"):
            stored = GOLDEN[f"{case}/{measure}_{name}"]
            np.testing.assert_allclose(bounds[name], stored, rtol=1e-6, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("measure", MEASURES)
def test_batch_with_absent_points_agrees_with_the_oracle(convention: str, measure: str) -> None:
    ours, theirs = MEASURES[measure]
    outputs, references, distortions = clouds(2, 3, sources=3, distortions=14, seed=1)
    active = torch.ones(2, 3, 3, dtype=torch.bool)
    active[0, 1, 2] = active[1, 0, 0] = False
    active[1, 2, :2] = False  # one source alone: undefined
    mask = torch.ones(2, 3, 3, 14, dtype=torch.bool)
    mask[0, 0, 1, 3:6] = mask[1, 1, :, 10:] = False
    attributed = (2, 0)
    points = outputs[..., attributed, :], references, distortions
    options = {"attributed": attributed, "energy": 0.9, "convention": convention}
    bounds = ours(*points, active=active, mask=mask, **options)
    for frame in np.ndindex(2, 3):
        *arrays, on, present = (x[frame].numpy() for x in (*points, active, mask))
        expected = theirs(*arrays, active=on, mask=present, **options)
        for name in ("radius", "tail"):
            value_by_oracle = np.nan_to_num(getattr(expected, name))  # undefined is 0 here
            got = getattr(bounds, name)[frame].numpy()
            np.testing.assert_allclose(got, value_by_oracle, rtol=1e-7, atol=1e-13)


def test_constants_enter_as_in_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    points = released.embeddings(released.CASES["trio"])
    monkeypatch.setattr(oracle_bounds, "FLOOR", 0.2)
    monkeypatch.setattr(oracle_bounds, "EFFECTIVE", 0.5)
    settings = {"floor": 0.2, "n_eff": 0.5}
    for convention in CONVENTIONS:
        expected = oracle_bounds.separation_bounds(*points, convention=convention)
        bounds = frames.separation_bounds(*_frame("trio"), convention=convention, **settings)
        np.testing.assert_allclose(bounds.tail.numpy(), expected.tail, rtol=1e-8)
    frame = oracle.embed_frame(*points)
    assert frame is not None
    own_side, foreign = oracle_bounds.separation_sides(frame, 0, "paper")
    for convention, events in (("paper", 2), ("derived", 4)):
        errors = [
            oracle_bounds.side_error(side, 0.05 / events, convention, constant=3.0)
            for side in (own_side, foreign)
        ]
        joined = math.sqrt(sum(errors)) if convention == "paper" else math.hypot(*errors)
        a, b = own_side.distance, foreign.distance
        bounds = frames.separation_bounds(*_frame("trio"), convention=convention, c=3.0, **settings)
        assert bounds.tail[0].item() == pytest.approx(math.hypot(a, b) / (a + b) ** 2 * joined)


@pytest.mark.parametrize("case", ["pair", "trio_wide", "pair_repeats"])
def test_bartlett_agrees_with_the_oracle(case: str) -> None:
    frame = oracle.embed_frame(*released.embeddings(released.CASES[case]))
    assert frame is not None
    frames = [x[None] for x in _frame(case)]
    maps, record = _maps(frames), _points(frames)
    _, clusters = split_points(maps.coordinates, record)
    _, present = presence(record)
    lags = effective.lag_correlations(clusters, present, maps.dimension)[0]
    total = effective.bartlett_sum(clusters, present, maps.dimension)[0]
    for j in frame.sources:
        cluster = frame.map.retained[frame.cluster_rows(j)]
        n = len(cluster)
        for lag in (1, 2, 5, n - 3):
            expected = oracle_bounds.autocorrelation(cluster, lag)
            assert lags[j, lag - 1].item() == pytest.approx(expected, abs=1e-9)
        size = n / (1.0 + 2.0 * total[j].item())
        assert size == pytest.approx(oracle_bounds.bartlett_sample_size(cluster), rel=1e-9)


@pytest.mark.parametrize("energy", [0.7, 0.9, 0.99])
def test_schur_identity(energy: float) -> None:
    """Retained + discarded = the ridge distance over all coordinates, every point and cluster."""
    points = clouds(6, sources=3, distortions=20, features=16, seed=5)
    record, maps = _points(points), _maps(points, energy)
    coordinates = maps.all_coordinates
    _, clusters = split_points(coordinates, record)
    _, present = presence(record)
    mean, deviations, divisor = cluster_statistics(clusters, present)
    delta = coordinates.unsqueeze(1) - mean.unsqueeze(2)  # every point to every cluster
    retained = schur.is_retained(maps, delta.shape[-1])
    scatter = deviations.mT @ deviations
    inner, discarded = schur.schur_parts(ridge_factor(scatter, divisor), delta, retained)
    covariance = scatter / divisor[..., None, None]
    ridged = covariance + 1e-6 * torch.eye(delta.shape[-1], dtype=torch.float64)
    direct = (delta * torch.linalg.solve(ridged, delta.mT).mT).sum(-1)
    torch.testing.assert_close(inner + discarded, direct, rtol=1e-9, atol=0.0)
    assert float(discarded.amin()) >= 0.0
    d = int(maps.dimension[0])
    head = delta[0, ..., :d]
    alone = torch.linalg.solve(ridged[0, :, :d, :d], head.mT).mT
    torch.testing.assert_close(inner[0], (head * alone).sum(-1), rtol=1e-9, atol=0.0)


def _full_scores(points: Sequence[Tensor], energy: float) -> tuple[Tensor, ...]:
    """PS and PM over all coordinates (j* as it is), and over the retained ones."""
    record, maps = _points(points), _maps(points, energy)
    distance, discarded, _ = separation.separation_sides(maps, record, MapSettings())
    a, b = (distance.square() + discarded).sqrt().unbind(-1)
    fit = match.match_fit(maps, record, MapSettings())
    mean, variance = moments(fit.g + fit.gaps, fit.present, fit.members)
    k, theta = gamma_parameters(mean, variance)
    return b / (a + b), gammaincc(k, (fit.a + fit.gap_a) / theta)


@pytest.mark.parametrize("energy", [0.8, 0.95, 0.99])
def test_full_space_scores_lie_within_the_guaranteed_radii(energy: float) -> None:
    points = clouds(60, sources=2, distortions=24, features=16, seed=6)
    ps, pm = _full_scores(points, energy)
    truncated = F.perceptual_separation(*points, energy=energy)
    radius = frames.separation_bounds(*points, energy=energy).radius
    assert bool(((ps - truncated).abs() <= radius + 1e-12).all())
    assert float((ps - truncated).abs().max()) > 1e-4  # truncation does something here
    truncated = F.perceptual_match(*points, energy=energy)
    radius = frames.match_bounds(*points, energy=energy, convention="derived").radius
    assert bool(((pm - truncated).abs() <= radius + 1e-12).all())
    assert float((pm - truncated).abs().max()) > 1e-3


def test_nothing_discarded_has_no_radius() -> None:
    points = clouds(3, distortions=10, seed=7)
    for ours, _ in MEASURES.values():
        for convention in CONVENTIONS:
            bounds = ours(*points, energy=1.0, convention=convention)
            assert float(bounds.radius.abs().max()) < 1e-12
            assert bool((bounds.tail > 0.0).any()) == (convention != "reference")


def test_two_corners_are_the_maximum_of_all_eight() -> None:
    generator = torch.Generator().manual_seed(8)
    uniform = torch.rand(7, 4000, generator=generator, dtype=torch.float64)
    k, theta = 10.0 ** (4.0 * uniform[0] - 1.0), 10.0 ** (uniform[1] - 0.5)
    point = k, theta, k * theta * (0.3 + 1.5 * uniform[2])
    half = tuple(u * 1.2 * x for u, x in zip(uniform[3:6], point))
    floors = (1e-6, 1e-6, 1e-8)
    (largest_change,) = match.corner_maxima(point, [(half, floors)])

    def change(shares: Sequence[Any]) -> Tensor:
        moved = (x + s * h for x, s, h in zip(point, shares, half))
        k, theta, a = (x.clamp(min=f) for x, f in zip(moved, floors))
        return (gammaincc(k, a / theta) - gammaincc(point[0], point[2] / point[1])).abs()

    worst = torch.stack([change(s) for s in itertools.product((-1.0, 1.0), repeat=3)]).amax(0)
    torch.testing.assert_close(largest_change, worst, rtol=0.0, atol=1e-14)  # sums in other blocks
    assert bool((change(2.0 * uniform[4:7] - 1.0) <= largest_change + 1e-14).all())


@pytest.mark.parametrize("time", [1.0, 3.0])
def test_truncation_of_the_maps(time: float) -> None:
    points = torch.cat([x.flatten(1, -2) for x in clouds(4, seed=9)], 1)
    mask = torch.ones(4, points.shape[1], dtype=torch.bool)
    mask[2, 5:9] = False
    m = F.diffusion_map(points, energy=0.8, time=time, mask=mask)
    bounds = frames.truncation_bounds(m, 0.9, c=1.5)
    sure = frames.truncation_bounds(m, 0.9, convention="derived")
    for frame in range(4):
        single = oracle.diffusion_map(points[frame][mask[frame]].numpy(), energy=0.8, time=time)
        expected = oracle_bounds.truncation_expectation(single, time)
        assert bounds.expectation[frame].item() == pytest.approx(expected, rel=1e-9)
        expected = oracle_bounds.truncation_bound(single, 0.9, time, 1.5)
        assert bounds.bound[frame].item() == pytest.approx(expected, rel=1e-9)
        errors = oracle_bounds.truncation_errors(single)
        mass_within = float(single.stationary @ (errors <= sure.bound[frame].item()))
        assert mass_within >= 0.9
        assert sure.bound[frame] < bounds.bound[frame]
    complete_map = F.diffusion_map(points, energy=1.0)
    assert frames.truncation_bounds(complete_map).bound.abs().max() == 0.0


def test_truncation_is_that_of_the_time_of_the_map() -> None:
    points = torch.cat([x.flatten(1, -2) for x in clouds(1, seed=9)], 1)[0]
    discarded = []
    for time in (1.0, 3.0):
        m = F.diffusion_map(points, energy=0.8, time=time)
        left = m.coordinates[:, int(m.dimension) :].square().sum(-1)  # E² of every point
        expected = float((m.stationary * left).sum().sqrt())
        assert float(frames.truncation_bounds(m).expectation) == pytest.approx(expected, rel=1e-9)
        discarded.append(expected)
    assert discarded[1] < 0.1 * discarded[0]


def test_another_default_device_changes_no_bound() -> None:
    points = clouds(6, distortions=8)
    scores, ratings = torch.rand(12), torch.rand(12)
    widths = torch.full((12,), 0.05)

    def values() -> list[Tensor]:
        together = source_correlation(*points, draws=5)
        correlation = correlation_bounds(scores, widths, widths, ratings, method="spearman")
        return [*together, *correlation]

    expected = values()
    try:
        torch.set_default_device("meta")
        values_elsewhere = values()
    finally:
        torch.set_default_device(None)
    for value, same in zip(values_elsewhere, expected, strict=True):
        torch.testing.assert_close(value, same, equal_nan=True)


def test_a_misspelt_option_is_named() -> None:
    with pytest.raises(TypeError, match="no option 'drawn'; did you mean 'draws'"):
        named_settings(0.95, "paper", {"drawn": 3})
    with pytest.raises(ValueError, match="draws"):
        named_settings(0.95, "paper", {"draws": 0})
    assert named_settings(0.9, "derived", {"cap": 1.0}).cap == 1.0


@pytest.mark.parametrize("tail", ["concentration", "bootstrap"])
@pytest.mark.parametrize("measure", MEASURES)
def test_tails_widen_with_the_confidence(measure: str, tail: str) -> None:
    ours, _ = MEASURES[measure]
    points = clouds(5, distortions=16, spread=0.8, seed=10)
    for convention in CONVENTIONS:
        options = {"convention": convention, "tail": tail, "draws": 50}
        narrow, wide = (ours(*points, confidence=c, **options) for c in (0.5, 0.99))
        torch.testing.assert_close(wide.radius, narrow.radius, rtol=0, atol=0)
        assert bool((wide.tail >= narrow.tail).all())
        if measure == "ps":
            assert bool((wide.tail > 1.05 * narrow.tail).all())
        elif tail == "bootstrap":  # half-widths of PM's box are capped as a rule
            assert bool((wide.tail > 1.5 * narrow.tail).any())
        torch.testing.assert_close(wide.total, wide.radius + wide.tail)


@pytest.mark.parametrize("measure", MEASURES)
def test_bootstrap_against_copies_of_the_points(measure: str) -> None:
    """Counts as weights give the score of an actually resampled cluster on the same map."""
    ours, _ = MEASURES[measure]
    points = clouds(2, sources=3, distortions=9, seed=11)
    maps, record = _maps(points), _points(points)
    present = torch.ones(2, 3, 9, dtype=torch.bool)
    counts = bootstrap.resampled_counts(present, 6, seed=5)
    boot = {"ps": bootstrap.bootstrap_separation, "pm": bootstrap.bootstrap_match}
    score, draws = boot[measure](maps, record, MapSettings(), 6, 5)
    direct = {"ps": F.perceptual_separation, "pm": F.perceptual_match}[measure](*points)
    torch.testing.assert_close(score, direct, rtol=1e-9, atol=1e-12)
    psi = maps.coordinates.numpy()
    for r, f in itertools.product(range(6), range(2)):
        expected = _resampled_score(psi[f], counts[r, 0].numpy(), measure)
        np.testing.assert_allclose(draws[r, f].numpy(), expected, rtol=1e-7, atol=1e-10)
    tail = ours(*points, tail="bootstrap", draws=6, seed=5, confidence=0.8).tail
    changes = np.abs(draws.numpy() - score.numpy())
    np.testing.assert_allclose(tail.numpy(), np.quantile(changes, 0.8, axis=0), rtol=1e-9)


def _resampled_score(psi: np.ndarray, counts: np.ndarray, measure: str) -> list[float]:
    """PS or PM of three outputs with every distortion copied as often as it was drawn."""
    outputs, references, distortions = psi[:3], psi[3:6], psi[6:].reshape(3, 9, -1)
    copies = [np.repeat(x, c.astype(int), axis=0) for x, c in zip(distortions, counts)]
    result = []
    for i in range(3):
        if measure == "pm":
            g, a = oracle.match_distances(copies[i] - references[i], outputs[i] - references[i])
            result.append(oracle.match_score(a, *oracle.gamma_moments(g))[0])
            continue
        to = []
        for j in range(3):
            mean, covariance = oracle.cluster_statistics(np.vstack([references[j], copies[j]]))
            to.append(math.sqrt(oracle.squared_mahalanobis(outputs[i] - mean, covariance)))
        foreign = min(to[j] for j in range(3) if j != i)
        result.append(foreign / (to[i] + foreign))
    return result


def test_bootstrap_draws_only_present_members() -> None:
    present = torch.rand(4, 2, 12, generator=torch.Generator().manual_seed(0)) > 0.4
    counts = bootstrap.resampled_counts(present, 300, seed=1)
    assert bool((counts[:, ~present] == 0).all())
    torch.testing.assert_close(counts.sum(-1), present.sum(-1).expand(300, 4, 2).double())
    assert counts[:, present].mean().item() == pytest.approx(1.0, abs=1e-12)
    variance = counts[:, present].var().item()  # binomial: 1 - 1/n
    assert variance == pytest.approx(0.87, abs=0.05)
    everything = torch.ones(4, 2, 12, dtype=torch.bool)
    redrawn = bootstrap.resampled_counts(everything[:1], 300, seed=1)
    torch.testing.assert_close(bootstrap.resampled_counts(everything, 300, 1), redrawn)
    padded = bootstrap.resampled_counts(torch.nn.functional.pad(present, (0, 5)), 300, seed=1)
    torch.testing.assert_close(padded[..., :12], counts, rtol=0, atol=0)
    assert not padded[..., 12:].any()


def test_same_seed_same_numbers_whatever_the_global_state_and_the_batch() -> None:
    points = clouds(4, distortions=10, seed=12)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    tail_of_batch = frames.separation_bounds(*points, tail="bootstrap", draws=20, seed=3).tail
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    single = frames.separation_bounds(*(x[2] for x in points), tail="bootstrap", draws=20, seed=3)
    torch.testing.assert_close(single.tail, tail_of_batch[2], rtol=1e-9, atol=1e-12)
    tail_of_other_seed = frames.separation_bounds(*points, tail="bootstrap", draws=20, seed=4).tail
    assert not torch.equal(tail_of_other_seed, tail_of_batch)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("tail", ["concentration", "bootstrap"])
def test_scores_by_rule_and_collapsed_clusters_have_vacuous_tails(
    convention: str, tail: str
) -> None:
    outputs, nothing = torch.eye(2, 4), torch.zeros(2, 6, 4)
    options = {"convention": convention, "tail": tail, "draws": 10}
    for (ours, _), vacuous in zip(MEASURES.values(), (0.5, 1.0)):
        bounds = ours(outputs, nothing[:, 0], nothing, **options)
        assert (bounds.radius.tolist(), bounds.tail.tolist()) == ([0.0, 0.0], [vacuous] * 2)
    if convention == "paper":
        outputs, references, distortions = clouds(seed=15)
        distortions[0] = references[0]  # the cluster has collapsed onto its reference
        bounds = frames.match_bounds(outputs, references, distortions, **options)
        assert bounds.tail[0] == 1.0 >= bounds.tail[1]
        bounds = frames.separation_bounds(outputs, references, distortions, **options)
        assert bool(torch.isfinite(bounds.total).all())


def test_no_gradient_and_the_dtype_of_the_scores() -> None:
    points = [x.float().requires_grad_() for x in clouds(2, seed=16)]
    for ours, _ in MEASURES.values():
        bounds = ours(*points)
        assert bounds.total.dtype == torch.float32
        assert not bounds.total.requires_grad
        assert torch.is_grad_enabled()
        for convention, tail in itertools.product(CONVENTIONS, ("concentration", "bootstrap")):
            options = {"convention": convention, "tail": tail, "draws": 3}
            none = ours(*(x[:0] for x in points), **options)
            assert none.radius.shape == none.tail.shape == none.total.shape == (0, 2)


def test_nan_frames_raise_and_inactive_ones_do_not() -> None:
    outputs, references, distortions = clouds(3, sources=3, seed=17)
    distortions[1, 2, 4] = math.nan
    for ours, _ in MEASURES.values():
        with pytest.raises(ValueError, match=r"distortion 4 of source 2 .* frame 1"):
            ours(outputs, references, distortions)
        active = torch.ones(3, 3, dtype=torch.bool)
        active[1, 2] = False
        bounds = ours(outputs, references, distortions, active=active)
        assert bool(torch.isfinite(bounds.total).all())
        assert bounds.total[1, 2] == 0.0


def test_a_tight_cluster_has_a_fit_in_the_reference_convention() -> None:
    rng = np.random.default_rng(0)
    references = np.zeros((2, 6))
    references[1, 0] = 4.0
    distortions = references[:, None] + rng.normal(size=(2, 20, 6))
    distortions[0] = references[0] + 3e-5 * rng.normal(size=(20, 6))
    outputs = references + 3e-5 * rng.normal(size=(2, 6))
    outputs[1] += 0.5
    points = [torch.from_numpy(x) for x in (outputs, references, distortions)]
    bounds = frames.match_bounds(*points, convention="reference")
    # The released implementation (mapss-measures 1.1.2) on the same float64 coordinates.
    assert bounds.radius[0].item() == pytest.approx(0.0018884, abs=1e-6)
    assert bounds.tail[0].item() == pytest.approx(0.1154016, abs=1e-6)


@pytest.mark.parametrize("convention", ["paper", "derived"])
def test_the_tail_of_a_cluster_of_one_point_is_not_rounding(convention: str) -> None:
    outputs, references, distortions = clouds(seed=40)
    distortions[0] = references[0]
    points = outputs, references, distortions
    turned = [x.flip(-1) for x in points]
    bounds, bounds_turned = (
        frames.separation_bounds(*x, convention=convention) for x in (points, turned)
    )
    torch.testing.assert_close(bounds.tail, bounds_turned.tail, rtol=1e-6, atol=0.0)


class _Count(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("measure", "limit"),
    [(F.perceptual_match, 1010), (frames.match_bounds, 1200), (frames.separation_bounds, 520)],
)
def test_a_chunk_takes_few_operations(measure: Any, limit: int) -> None:
    """A fifth above what they take: on an accelerator every operation is a launch."""
    points = clouds(3, distortions=10, seed=4)
    with torch.no_grad(), _Count() as count:
        measure(*points)
    assert 0.5 * limit < count.calls <= limit


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        *[({"confidence": x}, ValueError) for x in (0.0, 1.0, 95, math.nan)],
        ({"convention": "printed"}, ValueError),
        ({"tail": "jackknife"}, ValueError),
        ({"draws": 0}, ValueError),
        ({"energy": 0.0}, ValueError),
        ({"seed": 2**70}, ValueError),
        ({"n_eff": 0.0}, ValueError),
        ({"n_eff": "ljung"}, ValueError),
        *[({name: -1.0}, ValueError) for name in ("c", "c1", "c2", "cap", "floor")],
        ({"confidence": "0.9"}, TypeError),
        ({"confidence": (0, 1)}, TypeError),
        ({"draws": 10.5}, TypeError),
        ({"time": torch.ones(2)}, TypeError),
        ({"alpha": None}, TypeError),
        ({"sigma": 1.0}, TypeError),
    ],
)
def test_settings_are_checked(setting: dict[str, Any], error: type[Exception]) -> None:
    (name,) = setting
    alone = {"c": "ps", "n_eff": "ps", "floor": "ps", "c1": "pm", "c2": "pm", "cap": "pm"}
    for measure, (ours, _) in MEASURES.items():
        if alone.get(name, measure) == measure:
            with pytest.raises(error, match=name):
                ours(*clouds(), **setting)
    if name in ("c", "confidence"):
        with pytest.raises(error, match=name):
            frames.truncation_bounds(F.diffusion_map(clouds()[2][0]), **setting)
