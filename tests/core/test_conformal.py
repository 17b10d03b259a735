"""PM in the conformal convention: against NumPy, and its laws."""

from __future__ import annotations

import functools
import math

import numpy as np
import oracle
import pytest
import scipy.special
import torch
from clouds import assert_derivative, clouds, random_direction

from torch_mapss import functional as F

KAPPA, SHIFT = 0.1, 0.1
match = functools.partial(F.perceptual_match, convention="conformal")
log_match = functools.partial(match, log=True)


def expected(outputs, references, distortions, attributed=None, active=None, mask=None, **options):
    """Rank form, smooth form and its log of one frame: loops over the definition.

    r is found by taking each point out of S in turn, not by the formula the package uses.
    """
    frame = oracle.embed_frame(
        outputs, references, distortions, attributed, active, mask, **options
    )
    rank, pm, log_pm = np.full((3, len(outputs)), np.nan)
    if frame is None:
        return rank, pm, log_pm
    psi = frame.map.retained
    for o, row in frame.output_row.items():
        source = frame.attributed[o]
        rows = [*frame.distortion_rows[source], row]
        delta = psi[rows] - psi[frame.reference_row[source]]
        n, d = delta.shape
        s = sum(np.outer(x, x) for x in delta) / n
        ridge = KAPPA * np.trace(s) / d * np.eye(d)
        h = np.array([x @ np.linalg.solve(s + ridge, x) for x in delta])
        rank[o] = (1 + sum(h[:-1] >= h[-1] * (1 - 1e-9))) / n
        without = [s - np.outer(x, x) / n for x in delta]
        r = np.array([x @ np.linalg.solve(w + ridge, x) for x, w in zip(delta, without)])
        shift = SHIFT * r[:-1].mean()
        logs = np.log(r[:-1] + shift)
        z = (np.log(np.array([r[-1], 0.0]) + shift) - logs.mean()) / logs.std(ddof=1)
        tail = scipy.special.log_ndtr(-z)
        log_pm[o] = tail[0] - tail[1]
        pm[o] = scipy.special.ndtr(-z[0]) / scipy.special.ndtr(-z[1])
    return rank, pm, log_pm


def compared(embeddings, frame, **options):
    """Assert that ours and the oracle agree on one frame of a batch."""
    picked = {k: v[frame].numpy() for k, v in options.items() if isinstance(v, torch.Tensor)}
    rest = {k: v for k, v in options.items() if not isinstance(v, torch.Tensor)}
    known = expected(*(x[frame].numpy() for x in embeddings), **picked, **rest)
    found = [f(*embeddings, **options)[frame] for f in (F.match_rank, match, log_match)]
    for ours, theirs in zip(found, known):
        np.testing.assert_allclose(ours, np.nan_to_num(theirs), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("sources", "count"), [(2, 12), (3, 7), (2, 2)])
@pytest.mark.parametrize("features", [3, 20])
def test_equals_the_oracle(sources, count, features):
    embeddings = clouds(3, sources=sources, distortions=count, features=features, seed=count)
    for frame in range(3):
        compared(embeddings, frame)


def test_equals_the_oracle_with_masks_settings_and_targets_alone():
    outputs, references, distortions = clouds(3, sources=3, distortions=9, features=6, seed=5)
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(3, 3, 9, generator=generator) > 0.25
    active = torch.tensor([[True, True, True], [True, False, True], [True, False, False]])
    for frame in range(3):
        compared((outputs, references, distortions), frame, mask=mask, active=active)
        some = outputs[:, [2, 0]], references, distortions
        compared(some, frame, attributed=(2, 0), mask=mask, energy=0.9, alpha=0.5, time=2)


def test_relabelling_scaling_and_order_change_nothing():
    outputs, references, distortions = clouds(4, sources=3, distortions=8, features=5, seed=2)
    order, members = [2, 0, 1], torch.randperm(8, generator=torch.Generator().manual_seed(0))
    turned, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    for f in (F.match_rank, log_match):
        plain = f(outputs, references, distortions)
        relabelled = f(*(x[:, order] for x in (outputs, references, distortions)))
        torch.testing.assert_close(relabelled, plain[:, order], rtol=1e-8, atol=1e-10)
        shuffled = f(outputs, references, distortions[:, :, members])
        torch.testing.assert_close(shuffled, plain, rtol=1e-8, atol=1e-10)
        moved = [1e3 * x @ turned + 7.0 for x in (outputs, references, distortions)]
        torch.testing.assert_close(f(*moved), plain, rtol=1e-6, atol=1e-8)


def test_masking_and_batching_change_nothing():
    embeddings = clouds(3, sources=2, distortions=9, features=6, seed=4)
    mask = torch.ones(3, 2, 9, dtype=torch.bool)
    mask[:, 0, 5:] = False
    mask[1, 1, :3] = False
    for f in (F.match_rank, log_match):
        whole = f(*embeddings, mask=mask)
        spoilt = embeddings[2].masked_fill(~mask.unsqueeze(-1), math.nan)
        torch.testing.assert_close(f(*embeddings[:2], spoilt, mask=mask), whole)
        for frame in range(3):
            alone = f(*(x[frame] for x in embeddings), mask=mask[frame])
            torch.testing.assert_close(alone, whole[frame], rtol=1e-8, atol=1e-10)


def test_frames_of_different_dimension_in_one_batch_score_as_alone():
    """d enters the ridge, so that of the widest frame must not reach the others."""
    wide = clouds(1, distortions=10, features=12, seed=1)
    narrow = clouds(1, distortions=10, features=12, seed=2)
    flat = [torch.cat([x[..., :2], torch.zeros_like(x[..., 2:])], -1) for x in narrow]
    both = [torch.cat(pair) for pair in zip(wide, flat)]
    d = [
        F.diffusion_map(torch.cat([x[0], x[1], x[2].flatten(0, 1)])).dimension
        for x in ([w[0] for w in wide], [f[0] for f in flat])
    ]
    assert d[0] != d[1]
    for f in (F.match_rank, log_match):
        alone = torch.cat([f(*wide), f(*flat)])
        torch.testing.assert_close(f(*both), alone, rtol=1e-9, atol=1e-12)


def test_far_outputs_have_the_least_rank_and_bounded_logarithms():
    outputs, references, distortions = clouds(6, distortions=20, features=6, seed=8)
    for reach in (0.1, 1.0, 3.0, 1e3):
        embeddings = references + reach * (outputs - references), references, distortions
        rank, pm, log_pm = F.match_rank(*embeddings), match(*embeddings), log_match(*embeddings)
        torch.testing.assert_close(log_pm.exp(), pm, rtol=1e-9, atol=0.0)
        assert ((pm >= 0) & (pm <= 1)).all()
        steps = rank * 21
        torch.testing.assert_close(steps, steps.round())
        assert ((rank >= 1 / 21 - 1e-12) & (rank <= 1)).all()
    assert rank.max() <= 2 / 21 + 1e-12  # in the map, another lonely point may be as far
    assert log_pm.max() < -5.0
    assert log_pm.min() > -1e4  # r < nd/κ


def test_an_output_equal_to_its_reference_is_at_the_top():
    _, references, distortions = clouds(4, distortions=10, features=6, seed=3)
    outputs = references.clone().requires_grad_()
    score = log_match(outputs, references, distortions)
    torch.testing.assert_close(score, torch.zeros_like(score), rtol=0, atol=1e-12)
    assert (match(outputs, references, distortions) == 1.0).all()
    assert (F.match_rank(outputs, references, distortions) == 1.0).all()
    score.sum().backward()
    assert outputs.grad.isfinite().all()


def test_an_output_equal_to_a_distortion_ties_with_it():
    """By the definition, where equal points have equal coordinates; rounding must not break it."""
    _, references, distortions = clouds(8, distortions=15, features=30, seed=6)
    for member in range(0, 15, 3):
        outputs = distortions[:, :, member].clone()
        rank = F.match_rank(outputs, references, distortions)
        assert (rank >= 2 / 16).all()
        for frame in range(0, 8, 3):
            known, _, _ = expected(*(x[frame].numpy() for x in (outputs, references, distortions)))
            np.testing.assert_allclose(rank[frame], known, rtol=1e-12)


def test_neutral_distortions_do_not_wreck_the_fit():
    """Members that change nothing have r = 0 up to rounding, whose logarithm is anything."""
    outputs, references, distortions = clouds(8, distortions=40, features=8, seed=7, away=2.0)
    plain = log_match(outputs, references, distortions)
    assert plain.mean() < -10.0  # bad outputs
    for count in (1, 3, 8):
        neutral = distortions.clone()
        noise = torch.randn(neutral[:, :, :count].shape, dtype=torch.float64)
        neutral[:, :, :count] = references.unsqueeze(2) + 1e-12 * noise
        found = log_match(outputs, references, neutral)
        assert found.mean() < -3.0
        exact = neutral.clone()
        exact[:, :, :count] = references.unsqueeze(2)
        torch.testing.assert_close(
            found, log_match(outputs, references, exact), rtol=1e-4, atol=1e-6
        )


def collapsed(output_on_reference):
    outputs, references, distortions = clouds(2, distortions=6, features=5, seed=9)
    distortions = distortions.clone()
    distortions[0, 0] = references[0, 0]
    if output_on_reference:
        outputs = outputs.clone()
        outputs[0, 0] = references[0, 0]
    return outputs, references, distortions


def test_collapsed_clusters_follow_the_rule_of_the_other_conventions():
    for same in (True, False):
        embeddings = [x.requires_grad_() for x in collapsed(same)]
        pm, log_pm = match(*embeddings), log_match(*embeddings)
        assert pm[0, 0] == (1.0 if same else 0.0)
        assert log_pm[0, 0].item() == pytest.approx(0.0 if same else -708.4, abs=0.1)
        assert F.match_rank(*embeddings)[0, 0].item() == pytest.approx(1.0 if same else 1 / 7)
        gradients = torch.autograd.grad((pm + log_pm).sum(), embeddings)
        assert all(g.isfinite().all() for g in gradients)


def test_no_map_and_undefined_frames_are_defined_values():
    outputs, references, distortions = (
        torch.zeros(2, 2, 4),
        torch.zeros(2, 2, 4),
        torch.zeros(2, 2, 5, 4),
    )
    outputs[0, 0] = 1.0  # more than half of the pairs coincide: no map
    assert match(outputs, references, distortions).tolist() == [[0.0, 1.0], [1.0, 1.0]]
    rank = F.match_rank(outputs, references, distortions)
    torch.testing.assert_close(rank, torch.tensor([[1 / 6, 1.0], [1.0, 1.0]]))
    embeddings = clouds(2, distortions=6, features=5)
    active = torch.tensor([[True, True], [True, False]])
    for f in (F.match_rank, match, log_match):
        assert f(*embeddings, active=active)[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("measure", [match, log_match])
@pytest.mark.parametrize(("sources", "count", "features"), [(2, 12, 5), (3, 6, 8)])
def test_gradients_equal_differences(measure, sources, count, features):
    embeddings = clouds(2, sources=sources, distortions=count, features=features, seed=sources)
    mask = torch.ones(2, sources, count, dtype=torch.bool)
    mask[0, 0, 1] = mask[1, 1, 3] = False
    for options in ({}, {"mask": mask}):

        def loss(*points, options=options):
            return measure(*points, **options).sum()

        for seed in range(2):
            assert_derivative(loss, embeddings, random_direction(embeddings, seed))


def test_gradients_where_distortions_tie():
    """Members on their reference and twin members: repeated eigenvalues, r = 0, equal r."""
    outputs, references, distortions = clouds(distortions=10, features=5, seed=11)
    distortions = distortions.clone()
    distortions[:, :3] = references.unsqueeze(-2)
    distortions[:, 4] = distortions[:, 3]
    embeddings = outputs, references, distortions
    for seed in range(2):
        direction = random_direction(embeddings, seed)
        direction[2][:, :3] = direction[1].unsqueeze(-2)
        direction[2][:, 4] = direction[2][:, 3]
        assert_derivative(lambda *x: log_match(*x).sum(), embeddings, direction)


def test_masked_points_get_no_gradient_and_second_derivatives_are_refused():
    embeddings = [x.requires_grad_() for x in clouds(2, distortions=8, features=5, seed=3)]
    mask = torch.ones(2, 2, 8, dtype=torch.bool)
    mask[:, :, 6:] = False
    gradients = torch.autograd.grad(
        log_match(*embeddings, mask=mask).sum(), embeddings, create_graph=True
    )
    assert gradients[2][:, :, 6:].abs().max() == 0.0
    assert gradients[2][:, :, :6].abs().min() > 0.0
    with pytest.raises(RuntimeError):
        torch.autograd.grad(gradients[0].sum(), embeddings)


@pytest.mark.parametrize("kind", ["Gaussian", "heavy-tailed", "with ties"])
def test_rank_is_valid_for_exchangeable_points(kind):
    """P(rank <= u) <= u through the whole map; the paper convention fails by far beside it."""
    frames, count, features = 800, 19, 12
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(frames, 2, count + 1, features, generator=generator, dtype=torch.float64)
    if kind == "heavy-tailed":
        points = points * torch.randn(frames, 2, count + 1, 1, generator=generator).abs().pow(-1.0)
    references = torch.zeros(frames, 2, features, dtype=torch.float64)
    references[:, 1, 0] = 3.0
    if kind == "with ties":
        points[:, :, : count // 2] = 0.0  # before they are shuffled: half are neutral
        order = torch.rand(frames, 2, count + 1, generator=generator).argsort(-1)
        points = points.gather(2, order.unsqueeze(-1).expand_as(points))
    points = points + references.unsqueeze(2)
    outputs, distortions = points[:, :, -1], points[:, :, :-1]
    rank = F.match_rank(outputs, references, distortions)[:, 0]
    for u in (0.05, 0.1, 0.25, 0.5):
        error = math.sqrt(u * (1 - u) / frames)
        assert float((rank <= u).double().mean()) <= u + 3 * error
    if kind != "with ties":  # and no smaller than a discrete rank has to be
        assert float((rank <= 0.5).double().mean()) > 0.45
        paper = F.perceptual_match(outputs, references, distortions)[:, 0]
        assert float((paper <= 0.05).double().mean()) > 0.2


def test_the_name_belongs_to_pm_alone():
    embeddings = clouds(distortions=6, features=4)
    for f in (F.perceptual_separation, F.separation_distances):
        with pytest.raises(ValueError, match="convention"):
            f(*embeddings, convention="conformal")
    with pytest.raises(ValueError, match="convention"):
        F.diffusion_map(embeddings[0], convention="conformal")


def test_radius_is_what_truncation_changes_and_no_tail_is_stated():
    embeddings = clouds(3, distortions=10, features=30, seed=2)
    mask = torch.ones(3, 2, 10, dtype=torch.bool)
    mask[1, 0, 7:] = False
    active = torch.tensor([[True, True], [True, True], [True, False]])
    options = {"mask": mask, "active": active}
    found = F.match_bounds(*embeddings, **options, convention="conformal")
    change = match(*embeddings, **options, energy=1.0) - match(*embeddings, **options)
    torch.testing.assert_close(found.radius, change.abs(), rtol=1e-5, atol=1e-9)
    assert found.radius[:2].min() > 0.0
    for part in (found.tail, found.total):
        assert part[:2].isnan().all()
        assert (part[2] == 0.0).all()
    with pytest.raises(ValueError, match="convention"):
        F.separation_bounds(*embeddings, convention="conformal")
