"""Gradients of the core: against differences and plain autograd, at degenerate points too."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from clouds import assert_derivative, clouds, random_direction
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_mapss import functional as F
from torch_mapss.core import frame_batches

MEASURES = {
    "ps": F.perceptual_separation,
    "pm": F.perceptual_match,
    "log_pm": functools.partial(F.perceptual_match, log=True),
}


def weighted(measure, **options):
    """A scalar of the scores that tells outputs apart."""

    def loss(*embeddings: Tensor) -> Tensor:
        score = measure(*embeddings, **options)
        return (score * torch.arange(1.0, 1.0 + score.shape[-1], dtype=score.dtype)).sum()

    return loss


def F_sum(measure):
    return lambda *embeddings: measure(*embeddings).sum()


def pulled(loss, arguments):
    leaves = [a.detach().clone().requires_grad_() for a in arguments]
    return torch.autograd.grad(loss(*leaves), leaves)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("convention", ["paper", "reference"])
@pytest.mark.parametrize("time", [1.0, 0.7])
@pytest.mark.parametrize(("sources", "count"), [(2, 12), (3, 6)])
def test_generic_points(name, convention, time, sources, count):
    embeddings = clouds(2, sources=sources, distortions=count, features=5, seed=sources)
    loss = weighted(MEASURES[name], time=time, convention=convention)
    for seed in range(3):
        assert_derivative(loss, embeddings, random_direction(embeddings, seed))


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("masked", [False, True])
def test_outputs_alone_as_in_training(name, masked):
    """Where nothing else wants a gradient a shorter backward runs: it must give the same."""
    embeddings = clouds(2, distortions=8, features=4, seed=5)
    mask = torch.rand(2, 2, 8, generator=torch.Generator().manual_seed(2)) > 0.2
    loss = weighted(MEASURES[name], mask=mask if masked else None)
    (expected, _, _) = pulled(loss, embeddings)
    leaf = embeddings[0].clone().requires_grad_()
    (actual,) = torch.autograd.grad(loss(leaf, *embeddings[1:]), leaf)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MEASURES)
def test_masked_points_get_no_gradient(name):
    embeddings = clouds(2, sources=3, distortions=8, features=5, seed=3)
    mask = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(0)) > 0.3
    active = torch.tensor([[True, True, True], [True, False, True]])
    loss = weighted(MEASURES[name], mask=mask, active=active)
    assert_derivative(loss, embeddings, random_direction(embeddings, 1))
    outputs, references, distortions = pulled(loss, embeddings)
    assert outputs[1, 1].abs().max() == 0.0
    assert references[1, 1].abs().max() == 0.0
    assert distortions[~mask].abs().max() == 0.0
    if name != "pm":  # which saturates at 0 in some frames
        assert distortions[mask & active.unsqueeze(-1)].abs().min() > 0.0


@pytest.mark.parametrize("read", [lambda retained: retained @ retained.mT, torch.square])
@pytest.mark.parametrize("time", [1.0, 0.5, 1.5])
def test_map_through_inner_products_and_squares_of_single_coordinates(read, time):
    """Squares: the sign of an eigenvector is a choice. Single ones: the spectrum is simple."""
    points = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.randn(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        actual = read(F.diffusion_map(x, energy=0.9, time=time).retained)
        return (actual * weight[:, : actual.shape[-1]]).sum()

    assert_derivative(loss, [points], random_direction([points], 2))


def tied(points):
    """Four of ten distortions of each source equal their reference."""
    outputs, references, distortions = points
    same = references.unsqueeze(-2).expand(-1, 4, -1)
    return outputs, references, torch.cat([same, distortions[:, 4:]], 1)


def turned(source):
    """Three sources, each the one before turned by 120 degrees in two planes of feature space."""
    c, s = math.cos(2.0 * math.pi / 3.0), math.sin(2.0 * math.pi / 3.0)
    plane = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    rotation = torch.block_diag(plane, plane, torch.eye(1, dtype=torch.float64))
    return torch.stack([source, source @ rotation.T, source @ rotation.T @ rotation.T])


def symmetric_sources(seed=0):
    generator = torch.Generator().manual_seed(seed)
    cluster = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    cluster = 0.5 * cluster + torch.tensor([1.0, 0.5, -1.0, 0.3, 0.0], dtype=torch.float64)
    full = turned(cluster)
    return full[:, 0], full[:, 1], full[:, 2:]


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("seed", range(3))
def test_repeated_eigenvalues(name, seed):
    """Distortions that equal their reference, and doublets, along directions that leave them so."""
    loss, points = weighted(MEASURES[name]), tied(clouds(distortions=10, features=5, seed=11))
    assert_derivative(loss, points, tied(random_direction(points, seed)))
    assert_derivative(loss, symmetric_sources(), symmetric_sources(100 + seed))


def test_output_equal_to_its_reference():
    _, references, distortions = clouds(distortions=10, features=5, seed=13)
    embeddings = references.clone(), references, distortions
    for g in pulled(F_sum(F.perceptual_match), embeddings):
        assert g.abs().max() <= 1e-8
    for g in pulled(F_sum(F.perceptual_separation), embeddings):
        assert torch.isfinite(g).all()
    together = random_direction(embeddings, 0)
    together[0] = together[1].clone()  # keep the output on its reference
    assert_derivative(weighted(F.perceptual_separation), embeddings, together)


def hard_frames(count, seed):
    """Frames drawn to be hard: see the lines below for each kind."""
    outputs, references, distortions = clouds(count, distortions=6, features=4, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    kind = torch.randint(0, 8, (count,), generator=generator)
    jitter = 1e-8 * torch.randn(distortions.shape, generator=generator, dtype=torch.float64)
    centre = references.unsqueeze(-2)
    distortions[kind == 0, :, :3] = centre[kind == 0].expand(-1, -1, 3, -1)  # duplicates
    distortions[kind == 1] = (centre + jitter)[kind == 1]  # near-duplicates
    distortions[kind == 2, 0] = centre[kind == 2, 0]  # a cluster collapsed to a point
    outputs[kind == 3] = references[kind == 3]  # perfect outputs
    outputs[kind == 4, 0] = references[kind == 4, 1]  # the other source
    distortions[kind == 5] = centre[kind == 5]  # both clusters collapsed
    for x in (references, distortions):  # identical sources
        x[kind == 6, 1] = x[kind == 6, 0]
    collinear = torch.linspace(-1, 1, 6, dtype=torch.float64)[:, None]
    distortions[kind == 7] = (centre + collinear * centre)[kind == 7]
    power = 12.0 * torch.rand(count, generator=generator, dtype=torch.float64) - 6.0
    scale = 10.0 ** power[:, None, None]
    return outputs * scale, references * scale, distortions * scale.unsqueeze(-1)


@pytest.mark.slow
def test_gradients_are_finite_in_ten_thousand_hard_frames():
    embeddings = hard_frames(10_000, 0)
    for name, measure in MEASURES.items():
        score = measure(*embeddings)
        assert torch.isfinite(score).all()
        if name != "log_pm":
            assert ((score >= 0.0) & (score <= 1.0)).all()
        for g in pulled(F_sum(measure), embeddings):
            assert torch.isfinite(g).all(), name


@pytest.mark.parametrize("name", MEASURES)
def test_collapsed_cluster_gives_the_defined_value_without_gradient(name):
    outputs, references, distortions = clouds(distortions=6, features=4, seed=19)
    distortions[0] = references[0]
    assert F.perceptual_match(outputs, references, distortions)[0] == 0.0
    outputs[0] = references[0]
    assert F.perceptual_match(outputs, references, distortions)[0] == 1.0
    earlier = pulled(
        lambda *e: MEASURES[name](*e)[..., 0].sum(), (outputs, references, distortions)
    )
    if name == "ps":
        assert all(torch.isfinite(g).all() for g in earlier)
    else:
        assert all(g.abs().max() == 0.0 for g in earlier)


def test_collapse_is_not_a_question_of_rounding():
    """In larger frames coincident points get coordinates that differ in the last digit."""
    outputs, references, distortions = clouds(40, distortions=60, features=12, seed=31)
    distortions[:, 0] = references[:, 0].unsqueeze(-2)
    outputs[::2, 0] = references[::2, 0]
    for convention in ("paper", "reference"):
        pm = F.perceptual_match(outputs, references, distortions, convention=convention)[:, 0]
        assert (pm[::2] == (1.0 if convention == "paper" else 0.0)).all()
        assert (pm[1::2] == 0.0).all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_zero_bandwidth(scale):
    point = scale * torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    embeddings = [point.expand(*shape, 4).clone() for shape in ((2, 2), (2, 2), (2, 2, 6))]
    embeddings[0][1, 1] += scale  # one output elsewhere: the median stays zero
    assert (F.perceptual_separation(*embeddings) == 0.5).all()
    expected = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(F.perceptual_match(*embeddings), expected)
    for measure in MEASURES.values():
        for g in pulled(F_sum(measure), embeddings):
            assert g.abs().max() == 0.0


def test_far_outputs_still_get_a_gradient_through_log_pm():
    far, near = (clouds(distortions=20, features=6, seed=23, away=away) for away in (50.0, 1.0))
    assert F.perceptual_match(*far).max() < 1e-100
    (g, _, _) = pulled(F_sum(MEASURES["log_pm"]), far)
    assert torch.isfinite(g).all()
    (g, _, _) = pulled(F_sum(MEASURES["log_pm"]), near)
    assert g.abs().amax(-1).min() > 1e-6


def test_recomputed_chunks_give_the_same_gradient(monkeypatch):
    embeddings = clouds(6, distortions=8, features=5, seed=29)
    expected = pulled(F_sum(F.perceptual_separation), embeddings)
    for limit in ("BATCH_BYTES", "GRAPH_BYTES"):
        monkeypatch.setattr(frame_batches, limit, 1)
        actual = pulled(F_sum(F.perceptual_separation), embeddings)
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("time", [0.5, 1.0, 2.0])
def test_all_energy_of_a_kernel_of_low_rank(name, time):
    # Points on a line: most eigenvalues are zero, and with energy 1 they are retained as well.
    embeddings = clouds(distortions=20, features=1, seed=31, spread=0.3)
    points = torch.cat([embeddings[0], embeddings[1], embeddings[2].flatten(0, 1)])
    actual = F.diffusion_map(points, energy=1.0)
    assert (actual.eigenvalues[: int(actual.dimension)] == 0.0).any()
    loss = weighted(MEASURES[name], time=time, energy=1.0)
    for seed in range(3):
        assert_derivative(loss, embeddings, random_direction(embeddings, seed))


def single(outputs, references, distortions):
    """A score that gets its only gradient as a constant."""
    return F.perceptual_separation(outputs, references, distortions)[..., 0].sum()


def lone_map(outputs, references, distortions):
    points = torch.cat([outputs, references, distortions.flatten(-3, -2)], -2)
    return F.diffusion_map(points, convention="reference").retained.sum()


@pytest.mark.parametrize("loss", [single, lone_map, *map(F_sum, MEASURES.values())])
@pytest.mark.parametrize("argument_index", range(3))
@pytest.mark.parametrize("recomputed", [False, True])
def test_second_derivatives_raise_instead_of_being_dropped(
    loss, argument_index, recomputed, monkeypatch
):
    if recomputed:
        monkeypatch.setattr(frame_batches, "GRAPH_BYTES", 1)
    embeddings = [x.requires_grad_(i == argument_index) for i, x in enumerate(clouds(2, seed=32))]
    value = loss(*embeddings)
    (g,) = torch.autograd.grad(value, embeddings[argument_index], create_graph=True)
    with pytest.raises(RuntimeError, match="have first derivatives only"):
        torch.autograd.grad(value + g.square().sum(), embeddings[argument_index])


@pytest.mark.parametrize("exponent", [-165, -155, -140, 140])
def test_embeddings_of_any_size(exponent):
    embeddings = clouds(2, distortions=8, features=4, seed=33)
    scaled = [x * 10.0**exponent for x in embeddings]
    for name, measure in MEASURES.items():
        value = measure(*scaled)
        if exponent < -145:  # squares have no digits left: the bandwidth is zero
            assert name != "ps" or (value == 0.5).all()
        else:
            torch.testing.assert_close(value, measure(*embeddings), rtol=1e-8, atol=1e-10)
        for g in pulled(F_sum(measure), scaled):
            assert torch.isfinite(g).all()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("recomputed", [False, True])
def test_inside_activation_checkpointing(reentrant, recomputed, monkeypatch):
    if recomputed:
        monkeypatch.setattr(frame_batches, "GRAPH_BYTES", 1)
    outputs, references, distortions = clouds(2, seed=34)

    def loss(x):
        ps = F.perceptual_separation(x, references, distortions)
        return (ps - F.perceptual_match(x, references, distortions, log=True)).sum()

    (expected,) = pulled(loss, (outputs,))
    leaf = outputs.clone().requires_grad_()
    checkpoint(loss, leaf, use_reentrant=reentrant).backward()
    torch.testing.assert_close(leaf.grad, expected)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("kind", ["collinear", "duplicates", "few", "flat", "heavy", "shell"])
def test_clusters_that_are_no_cloud(name, kind):
    """Finite with finite gradients; and, but for log PM, unmoved by rounding."""
    outputs, references, distortions = clouds(2, distortions=3 if kind == "few" else 8)
    centre = references.unsqueeze(-2)
    away = distortions - centre
    if kind == "collinear":
        steps = torch.linspace(0.1, 1.0, 8, dtype=torch.float64)[:, None]
        distortions = centre + steps * away[:, :, :1]
    if kind == "duplicates":
        distortions = distortions[:, :, :2].repeat(1, 1, 4, 1)
    if kind == "flat":
        for x in (outputs, references, distortions):
            x[..., 1:] = 0.0
    if kind in ("heavy", "shell"):  # most at the reference and a few far out; all at one distance
        uniform = torch.rand(2, 2, 8, 1, generator=torch.Generator().manual_seed(0)).double()
        size = uniform.pow(20.0) if kind == "heavy" else 1.0 + uniform / 200.0
        distortions = centre + (0.05 * size + 1e-9) * away / away.norm(dim=-1, keepdim=True)
        outputs = references.clone()
    embeddings = outputs, references, distortions
    score = MEASURES[name](*embeddings)
    assert score.isfinite().all()
    for g in pulled(F_sum(MEASURES[name]), embeddings):
        assert g.isfinite().all()
    if name != "log_pm" and kind not in ("heavy", "shell"):
        shaken = [x + 1e-12 * d for x, d in zip(embeddings, random_direction(embeddings, 1))]
        torch.testing.assert_close(MEASURES[name](*shaken), score, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steep_gradients_stay_finite_in_half_precision(dtype):
    points = [x.to(dtype) for x in clouds(2, distortions=2, seed=4)]
    for g in pulled(F_sum(MEASURES["log_pm"]), points):
        assert g.dtype == dtype
        assert g.isfinite().all()
