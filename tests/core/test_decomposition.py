"""Clearance and fidelity: against an independent oracle, by their laws, and their gradients."""

from __future__ import annotations

import numpy as np
import oracle_decomposition as oracle
import pytest
import torch
from clouds import assert_derivative, clouds, random_direction
from reads import counted
from scipy.optimize import nnls
from torch import Tensor

from torch_mapss import functional as F
from torch_mapss.bounds import utterance_decomposition_bounds
from torch_mapss.core.decomposition import (
    decomposed,
    decomposition_scores,
    nonnegative_least_squares,
    output_graphs,
)
from torch_mapss.core.frame_batches import run
from torch_mapss.core.points import Points
from torch_mapss.core.settings import MapSettings

MEASURES = {"clearance": F.clearance, "fidelity": F.fidelity}
each_measure = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)


def scene(*lead: int, sources: int = 2, distortions: int = 7, features: int = 6, seed: int = 0):
    """Outputs with leakage and noise, references, distortions and sums of the others."""
    sizes = {"sources": sources, "distortions": distortions, "features": features}
    _, references, distorted = clouds(*lead, **sizes, seed=seed)
    g = torch.Generator().manual_seed(seed + 100)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, generator=g, dtype=torch.float64)

    leakage = 0.3 * torch.rand(*lead, sources, sources, generator=g, dtype=torch.float64)
    outputs = references + leakage @ references + 0.15 * normal(sources, features)
    others = references.sum(-2, keepdim=True) - references + 0.1 * normal(sources, features)
    return outputs, references, distorted, others


def scored(outputs, references, distortions, *, active=None, mask=None, others=None, **settings):
    attributed = tuple(range(outputs.shape[1]))
    points = Points(outputs, references, distortions, attributed, active, mask, others)
    return run(points, MapSettings(**settings), decomposition_scores)


@pytest.mark.parametrize("time", [1, 4])
@pytest.mark.parametrize("sources", [2, 3, 5, 8])
@pytest.mark.parametrize(("masked", "summed"), [(False, False), (False, True), (True, True)])
def test_equals_the_oracle(sources, time, masked, summed):
    frames, members = 3, 5
    y, r, d, others = scene(frames, sources=sources, distortions=members, seed=sources)
    y[0, 0] = r[0, 1]  # an output that is another source
    y[1, 1] = r[1, 1]
    g = torch.Generator().manual_seed(time)
    active = torch.rand(frames, sources, generator=g) > 0.25 if masked else None
    mask = torch.rand(frames, sources, members, generator=g) > 0.2 if masked else None
    others = others if summed else None
    alpha = 0.5 if masked else 1.0
    scores = scored(y, r, d, active=active, mask=mask, others=others, time=time, alpha=alpha)
    for f, i in np.ndindex(frames, sources):
        options = {"active": active, "mask": mask, "others": others}
        frame = {k: v if v is None else v[f].numpy() for k, v in options.items()}
        points = y[f, i].numpy(), r[f].numpy(), d[f].numpy()
        expected = oracle.pair(*points, i, alpha=alpha, time=time, **frame)
        for name, value in zip(("clearance", "fidelity", "distortion_ratio"), expected):
            assert bool(scores[f"{name}_defined"][f, i]) == (not np.isnan(value))
            assert float(scores[name][f, i]) == pytest.approx(np.nan_to_num(value), abs=1e-9)


@pytest.mark.parametrize("time", [1, 2, 4])
def test_distances_are_those_of_the_diffusion_map(time):
    y, r, d, others = (x[0] for x in scene(1, sources=3, seed=3))
    for i in range(3):
        points = torch.cat([y[i : i + 1], r, others[i : i + 1], d.flatten(0, 1)])
        psi = F.diffusion_map(points, energy=1.0, time=time).coordinates
        foreign = [1 + j for j in range(3) if j != i] + [4]
        length = (psi[foreign] - psi[1 + i]).norm(dim=-1)
        expected = ((psi[0] - psi[foreign]).norm(dim=-1) / length).min().clamp(max=1.0)
        u, e = (psi[foreign] - psi[1 + i]).numpy(), (psi[0] - psi[1 + i]).numpy()
        residual = nnls(u.T, e)[1] / float(length.min())
        c, f = (measure(y, r, d, others=others, time=time)[i] for measure in MEASURES.values())
        assert float(c) == pytest.approx(float(expected), abs=1e-9)
        assert float(f) == pytest.approx(max(0.0, 1.0 - residual), abs=1e-9)


@pytest.mark.parametrize("columns", [1, 2, 5, 8])
def test_least_squares_are_those_of_scipy(columns):
    g = torch.Generator().manual_seed(columns)
    u = torch.randn(200, columns, 10, generator=g, dtype=torch.float64)
    u[:50] += 3.0 * torch.randn(50, 1, 10, generator=g, dtype=torch.float64)  # nearly parallel
    if columns > 1:
        u[50:60, 1] = 2.0 * u[50:60, 0]  # exactly
    e = torch.randn(200, 10, generator=g, dtype=torch.float64)
    e[100:150] = (u[100:150] * torch.rand(50, columns, 1, generator=g)).sum(1)  # in the cone
    present = torch.rand(200, columns, generator=g) > 0.1
    c = nonnegative_least_squares(u, e, present)
    assert (c >= 0).all()
    assert (c[~present] == 0).all()
    distances = (e - (c.unsqueeze(-1) * u).sum(1)).norm(dim=-1)
    for k in range(200):
        a = u[k][present[k]].numpy().T
        expected = nnls(a, e[k].numpy())[1] if a.size else float(e[k].norm())
        assert float(distances[k]) == pytest.approx(expected, abs=1e-9)


def test_reference_has_one_and_one_and_another_source_has_zero():
    _, r, d, others = scene(4, sources=3)
    for y, clearance in ((r, 1.0), (r.roll(1, 1), 0.0)):
        scores = scored(y, r, d, others=others)
        torch.testing.assert_close(scores["clearance"], torch.full_like(r[..., 0], clearance))
        assert (scores["distortion_ratio"] < 1e-9).all()
        assert (scores["fidelity_defined"] == (clearance > 0)).all()
        assert (scores["fidelity"] == clearance).all()


@each_measure
def test_order_position_and_scale_and_other_outputs_do_not_matter(measure):
    y, r, d, others = scene(2, sources=4)
    expected = measure(y, r, d, others=others)
    order = [2, 0, 3, 1]
    turned = measure(*(x[:, order] for x in (y, r, d)), others=others[:, order])
    torch.testing.assert_close(turned, expected[:, order], rtol=0, atol=1e-12)
    moved = measure(*(3.0 * x + 5.0 for x in (y, r, d)), others=3.0 * others + 5.0)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-10)
    alone = measure(y[:, [2, 0]], r, d, others=others, attributed=(2, 0))
    torch.testing.assert_close(alone, expected[:, [2, 0]], rtol=0, atol=1e-13)


@each_measure
def test_inactive_sources_and_masked_members_leave(measure):
    y, r, d, others = scene(2, sources=4)
    active = torch.tensor([True, True, False, True])
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[:, 2] = False
    left, members = [0, 1, 3], [0, 1, 3, 4, 5, 6]
    scores = measure(y, r, d, active=active, mask=mask, others=others)
    smaller = measure(y[:, left], r[:, left], d[:, left][:, :, members], others=others[:, left])
    torch.testing.assert_close(scores[:, left], smaller, rtol=0, atol=1e-12)
    single = measure(*(x.float() for x in (y, r, d)))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), measure(y, r, d), rtol=0, atol=1e-4)
    assert measure(y[:0], r[:0], d[:0]).shape == (0, 4)


def test_in_a_pause_the_own_source_stays_and_clearance_alone_is_defined():
    y, r, d, others = scene(3, sources=3)
    resting = torch.tensor([[False, True, True], [False, True, False], [False, False, False]])
    scores = scored(y, r, d, active=resting, others=others)
    everyone = scored(y, r, d, others=others)
    assert scores["clearance_defined"][:, 0].tolist() == [True, True, False]
    torch.testing.assert_close(scores["clearance"][0, 0], everyone["clearance"][0, 0])
    pair = scored(y[:, [0, 1]], r[:, [0, 1]], d[:, [0, 1]])
    torch.testing.assert_close(scores["clearance"][1, 0], pair["clearance"][1, 0])
    assert scores["clearance_defined"][1].tolist() == [True, False, True]  # 1 plays alone
    for name in ("fidelity", "distortion_ratio"):
        assert not scores[f"{name}_defined"][:, 0].any()
        assert (scores[name][:, 0] == 0).all()
    assert not scores["clearance_defined"][2].any()


@pytest.mark.parametrize("sources", [2, 3, 4])
def test_gradients_in_pauses_against_differences(sources):
    points = scene(2, sources=sources, distortions=4, features=5, seed=sources)
    points[0][:, 0] += 0.5 * (points[1][:, 1] - points[1][:, 0])  # leakage, so below the cap
    active = torch.ones(2, sources, dtype=torch.bool)
    active[:, 0] = False
    active[1, 2:] = False
    loss = weighted(active=active)
    for seed in range(2):
        assert_derivative(loss, points, random_direction(points, seed))
    outputs = points[0].clone().requires_grad_()
    loss(outputs, *points[1:]).backward()
    assert (outputs.grad[:, 0] != 0).any(-1).all()


def test_resting_sources_must_be_finite_only_for_their_own_output():
    y, r, d, _ = scene(2, sources=3)
    r[:, 2] = torch.nan
    active = torch.tensor([True, True, False])
    kept = F.clearance(y[:, :2], r, d, active=active, attributed=(0, 1))
    assert torch.isfinite(kept).all()
    with pytest.raises(ValueError, match="reference of source 2"):
        F.clearance(y, r, d, active=active)


@pytest.mark.parametrize("sources", [2, 3])
def test_graphs_without_a_foreign_point_are_left_out_where_values_may_be_read(sources):
    """While one source plays alone nothing can leak into its own output."""
    y, r, d, others = scene(4, sources=sources)
    active = torch.ones(4, sources, dtype=torch.bool)
    active[1, 1:] = active[2, :-1] = False
    scores_by_reading, gradients, counts = [], [], []
    for may_sync in (True, False):
        leaf = y.clone().requires_grad_()
        points = Points(leaf, r, d, tuple(range(sources)), active, others=others)
        scores, _ = decomposition_scores(points, MapSettings(), may_sync)
        (scores["clearance"].sum() + scores["distortion_ratio"].sum()).backward()
        scores_by_reading.append(scores)
        gradients.append(leaf.grad)
        counts.append(len(output_graphs(points, may_sync)[0].kernel))
    assert counts == [4 * sources - 2, 4 * sources]
    for name, values in scores_by_reading[0].items():
        torch.testing.assert_close(values, scores_by_reading[1][name], rtol=0, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-10)
    assert not scores_by_reading[0]["clearance_defined"][1, 0]
    broken = y.clone()
    broken[1, 0] = torch.nan  # an output that has no score there
    points = Points(broken, r, d, tuple(range(sources)), active, others=others)
    assert decomposition_scores(points, MapSettings(), True)[0]["clearance"].isfinite().all()


def test_the_sum_enters_only_where_two_others_are_active():
    y, r, d, others = scene(2, sources=3)
    active = torch.tensor([True, True, False])
    without = F.clearance(y, r, d, active=active)
    with_sum = F.clearance(y, r, d, active=active, others=others)
    torch.testing.assert_close(with_sum[:, :2], without[:, :2], rtol=0, atol=1e-12)
    assert (with_sum[:, 2] != without[:, 2]).any()  # which rests while both others are active
    assert (F.clearance(y, r, d, others=others) != F.clearance(y, r, d)).any()
    alone = F.clearance(others[:, :1], r, d, attributed=(0,), others=others)  # both others at once
    assert alone.abs().max() < 1e-9
    two = [x[:, :2] for x in (y, r, d)]
    assert (F.fidelity(*two, others=others[:, :2]) == F.fidelity(*two)).all()


def test_undefined_where_two_references_are_equal_or_there_is_no_bandwidth():
    y, r, d, _ = scene(3)
    r[1, 1] = r[1, 0]
    y[2], r[2], d[2] = 0.0, 0.0, 0.0
    scores = scored(y.requires_grad_(), r, d)
    assert scores["clearance_defined"].all(-1).tolist() == [True, False, False]
    values = scores["clearance"] + scores["fidelity"] + scores["distortion_ratio"]
    assert (values[1:] == 0).all()
    values.sum().backward()
    assert torch.isfinite(y.grad).all()
    assert (y.grad[1:] == 0).all()


def test_without_values_being_read():
    """As on an accelerator: broken frames are asked for again, and nothing is read off it."""
    y, r, d, others = scene(2, sources=3)
    points = Points(y, r, d, (0, 1, 2), None, None, others)
    expected, _ = decomposition_scores(points, MapSettings(), True)
    scores, broken = decomposition_scores(points, MapSettings(), False)
    assert not bool(broken)
    assert all(torch.equal(scores[name], expected[name]) for name in scores)
    y[1, 2] = torch.nan
    scores, broken = decomposition_scores(points, MapSettings(), False)
    assert bool(broken)
    assert torch.isfinite(scores["clearance"]).all()
    y, r, d, others = (x.float().requires_grad_() for x in scene(4, sources=3))
    active = torch.rand(4, 3) > 0.2
    mask = torch.rand(4, 3, 7) > 0.2
    with counted(far=True) as waits:
        masked_points = Points(y, r, d, (0, 1, 2), active, mask, others)
        scores, _ = decomposition_scores(masked_points, MapSettings(time=2), False)
        (scores["clearance"] + scores["distortion_ratio"]).sum().backward()
    assert not waits.reads, waits.lines
    assert not waits.uploads


def test_bad_input_is_named():
    y, r, d, others = scene(2, sources=3)
    infinite, missing = others.clone(), y.clone()
    infinite[1, 0] = torch.inf
    missing[1, 2, 0] = torch.nan
    for outputs, options, error, words in (
        *((y, {"time": time}, ValueError, "time") for time in (0.5, 1.5, 0, -1)),
        (y, {"others": others[:, :2]}, ValueError, "others"),
        (y, {"others": others.long()}, TypeError, "others"),
        (y, {"others": infinite}, ValueError, "others"),
        (missing, {}, ValueError, "output of source 2"),
    ):
        for measure in MEASURES.values():
            with pytest.raises(error, match=words):
                measure(outputs, r, d, **options)


def weighted(**options):
    """A scalar of clearance and of the uncapped ratio that tells outputs apart."""

    def loss(y: Tensor, r: Tensor, d: Tensor, others: Tensor | None = None) -> Tensor:
        scores = scored(y, r, d, others=others, **options)
        values = scores["clearance"] + 0.7 * scores["distortion_ratio"] + 0.3 * scores["fidelity"]
        return (values * torch.arange(1.0, 1.0 + values.shape[-1], dtype=values.dtype)).sum()

    return loss


@pytest.mark.parametrize("sources", [2, 3, 5, 8])
@pytest.mark.parametrize("options", [{}, {"time": 2, "alpha": 0.5}])
def test_gradients_against_differences(sources, options):
    members = 5 if sources < 5 else 2
    points = scene(2, sources=sources, distortions=members, features=5, seed=sources)
    for seed in range(2):
        assert_derivative(weighted(**options), points, random_direction(points, seed))
        assert_derivative(weighted(**options), points[:3], random_direction(points[:3], seed))
    mask = torch.rand(2, sources, members, generator=torch.Generator().manual_seed(0)) > 0.3
    mask[..., 0] = True
    active = torch.ones(2, sources, dtype=torch.bool)
    active[0, 2:3] = active[1, 3:4] = False
    loss = weighted(active=active, mask=mask, **options)
    assert_derivative(loss, points, random_direction(points, 0))


@each_measure
def test_gradcheck(measure):
    points = [x.requires_grad_() for x in scene(sources=3, distortions=2, features=3, seed=1)]
    function = lambda *x: measure(*x[:3], others=x[3], time=2)  # noqa: E731
    assert torch.autograd.gradcheck(function, points, rtol=1e-5, atol=1e-7)


def move(kind: str, y: Tensor, r: Tensor, d: Tensor) -> None:
    """Points to where a gradient is hard to have."""
    if kind == "coincident":
        d[:, :, 1:] = d[:, :, :1]
        y[:, 0] = d[:, 0, 0]
    elif kind == "simplex":  # every pair equally far apart: all eigenvalues of the map are tied
        n = d.shape[1] * (d.shape[2] + 2)
        corners = torch.eye(n, dtype=d.dtype)
        for x, rows in zip((y, r, d), corners.split([y.shape[1], r.shape[1], n - 2 * r.shape[1]])):
            x[:] = torch.nn.functional.pad(rows, (0, x.shape[-1] - n)).view(x.shape[1:])
    else:
        places = {"own": r, "other": r.roll(1, 1), "mean": r.mean(1, keepdim=True)}
        y[:] = places.get(kind, 40.0)


@pytest.mark.parametrize("sources", [2, 3])
@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("kind", ["own", "other", "mean", "far", "coincident", "simplex"])
def test_gradients_are_finite_at_special_places(kind, rests, sources):
    y, r, d, others = scene(2, sources=sources, distortions=4, features=sources * 6)
    move(kind, y, r, d)
    leaves = [x.requires_grad_() for x in (y, r, d, others)]
    active = torch.ones(2, sources, dtype=torch.bool)
    active[:, 0] = not rests
    value = weighted(active=active)(*leaves)
    gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    assert torch.isfinite(value)
    assert all(torch.isfinite(g).all() for g in gradients if g is not None)


def test_no_gradient_at_the_reference_and_beyond_the_caps():
    _, r, d, _ = scene(1)
    y = r.clone().requires_grad_()
    weighted()(y, r, d).backward()
    assert (y.grad == 0).all()  # C and F are 1, e_dist is 0
    y = (r + 30.0).requires_grad_()
    scores = scored(y, r, d)
    (scores["clearance"] + scores["fidelity"]).sum().backward()
    assert (scores["fidelity"] == 0).all()
    capped = (scores["clearance"] == 1).all()
    assert not capped or (y.grad == 0).all()
    assert (scores["distortion_ratio"] > 1).all()


def test_half_widths_are_records_that_grow_with_confidence():
    y, r, d, others = scene(2, sources=3, distortions=5)
    mask = torch.ones(2, 3, 5, dtype=torch.bool)
    mask[0, 1, 2] = False
    half_widths = F.decomposition_bounds(y, r, d, mask=mask, others=others, confidence=0.9)
    for bounds in half_widths:
        assert (bounds.radius == 0).all()
        assert torch.equal(bounds.total, bounds.tail)
        assert ((bounds.tail >= 0) & (bounds.tail <= 1)).all()
    wider = F.decomposition_bounds(y, r, d, mask=mask, others=others, confidence=0.99)
    assert (wider.clearance.tail >= half_widths.clearance.tail).all()


def test_half_width_of_an_utterance_does_not_shrink_with_its_length():
    """All frames are compared with the same distortions."""
    y, r, d, others = scene(3, sources=3, distortions=5)
    once = utterance_decomposition_bounds(y, r, d, others=others)
    longer = [x.repeat(4, *[1] * (x.ndim - 1)) for x in (y, r, d, others)]
    for short, long in zip(once, utterance_decomposition_bounds(*longer[:3], others=longer[3])):
        assert short.tail.shape == (3,)
        torch.testing.assert_close(long.tail, short.tail)
        assert (short.tail > 0).any()
    single = utterance_decomposition_bounds(y[:1], r[:1], d[:1], others=others[:1])
    frame = F.decomposition_bounds(y[0], r[0], d[0], others=others[0])
    for of_utterance, of_frame in zip(single, frame):
        torch.testing.assert_close(of_utterance.tail, of_frame.tail)
    resting = torch.tensor([True, False, False]).expand(3, 3)
    undefined = utterance_decomposition_bounds(y, r, d, active=resting)
    assert undefined.clearance.tail.isnan().tolist() == [True, False, False]
    assert undefined.fidelity.tail.isnan().all()
    with pytest.raises(ValueError, match="needs frames"):
        utterance_decomposition_bounds(y[0], r[0], d[0])


def test_half_width_of_an_utterance_by_hand():
    """Pooled scores of frames whose kernels lack one member, a jackknife of each source."""
    y, r, d, _ = scene(3, distortions=4)
    bounds = utterance_decomposition_bounds(y, r, d, attributed=None, confidence=0.8)
    for name, half_widths in zip(("clearance", "fidelity"), bounds):
        for output in range(2):
            expected = 0.0
            for source in range(2):
                pooled = []
                for member in range(4):
                    frames = []
                    for f in range(3):
                        points = Points(y[f : f + 1], r[f : f + 1], d[f : f + 1], (0, 1))
                        graphs, _ = output_graphs(points, True)
                        keep = graphs.present.clone()
                        keep[:, 3 + 4 * source + member] = False
                        scores = decomposed(graphs, keep.unsqueeze(1), 1.0, 1)
                        frames.append(float(scores[name][output, 0]))
                    squared = np.square(1.0 - np.array(frames)).mean()
                    mean = np.mean(frames) if name == "clearance" else 1.0 - np.sqrt(squared)
                    pooled.append(mean)
                expected += np.sqrt(3 / 4 * np.square(pooled - np.mean(pooled)).sum())
            expected *= 1.2815515655446004  # normal quantile of 0.9
            assert float(half_widths.tail[output]) == pytest.approx(expected, abs=1e-9)


def test_half_width_against_members_taken_out_of_the_kernel():
    """One output, one frame: the kernel of all points, less a row and a column at a time."""
    y, r, d, _ = (x[0].numpy() for x in scene(1, distortions=6, seed=5))
    points = np.concatenate([y[:1], r, d.reshape(-1, d.shape[-1])])
    squared = ((points[:, None] - points) ** 2).sum(-1)
    full = np.exp(-squared / np.median(squared[np.triu_indices(len(points), 1)]))

    def scores(left):
        remaining = [i for i in range(len(points)) if i != left]
        kernel = full[np.ix_(remaining, remaining)]
        density = kernel.sum(1)
        kernel = kernel / np.outer(density, density)
        degree = kernel.sum(1)
        psi = kernel / degree[:, None] / np.sqrt(degree / degree.sum())
        e, u = psi[0] - psi[1], psi[2] - psi[1]
        length = np.linalg.norm(u)
        residual = np.linalg.norm(e - max(0.0, e @ u / (u @ u)) * u)
        return min(1.0, np.linalg.norm(e - u) / length), max(0.0, 1.0 - residual / length)

    values = np.array([scores(3 + k) for k in range(12)]).reshape(2, 6, 2)
    variances = (5 / 6) * ((values - values.mean(1, keepdims=True)) ** 2).sum(1)
    tensors = map(torch.from_numpy, (y[:1], r, d))
    half_widths = F.decomposition_bounds(*tensors, attributed=(0,), confidence=0.95)
    for bounds, expected in zip(half_widths, 1.959963984540054 * np.sqrt(variances).sum(0)):
        assert float(bounds.tail) == pytest.approx(expected, abs=1e-9)
