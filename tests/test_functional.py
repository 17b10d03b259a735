"""PS and PM against the oracle and the reference implementation; their laws; bad input."""

from __future__ import annotations

import functools
import math

import numpy as np
import oracle
import pytest
import torch
from clouds import clouds, golden, released
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss import functional as F
from torch_mapss.core import linalg

CONVENTIONS = ["paper", "reference"]


def arrays(*tensors):
    return [t.numpy() for t in tensors]


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(
    ("sources", "count", "features"),
    [(2, 12, 8), (2, 83, 64), (3, 12, 1024), (3, 40, 16), (4, 30, 32)],
)
def test_equals_the_oracle_with_ragged_masks(convention, sources, count, features):
    embeddings = clouds(sources=sources, distortions=count, features=features, seed=count, away=0.2)
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(sources, count, generator=generator) > 0.15
    active = torch.ones(sources, dtype=torch.bool)
    if sources > 2:
        active[1] = False
    arguments = {"active": active, "mask": mask, "convention": convention}
    plain = {"active": active.numpy(), "mask": mask.numpy(), "convention": convention}
    separated = oracle.separation(*arrays(*embeddings), **plain)
    matched = oracle.match(*arrays(*embeddings), **plain)
    ps = F.perceptual_separation(*embeddings, **arguments)
    distances = F.separation_distances(*embeddings, **arguments)
    pm = F.perceptual_match(*embeddings, **arguments)
    log_pm = F.perceptual_match(*embeddings, log=True, **arguments)
    on = active.numpy()

    def close(actual, expected, **tolerance):
        assert np.allclose(actual.numpy()[on], expected[on], **tolerance)
        assert (actual.numpy()[~on] == 0.0).all()

    close(ps, separated.ps, rtol=0, atol=1e-9)
    close(distances.attributed, separated.A, rtol=1e-9)
    close(distances.foreign, separated.B, rtol=1e-9)
    close(pm, matched.pm, rtol=0, atol=1e-9)
    if convention == "paper":
        close(log_pm, matched.log_pm, rtol=1e-9, atol=1e-9)
    single = [x.float() for x in embeddings]
    actual = F.perceptual_separation(*single, **arguments)
    assert actual.dtype == torch.float32
    close(actual, separated.ps, rtol=0, atol=1e-4)
    close(F.perceptual_match(*single, **arguments), matched.pm, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        *(
            ({"attributed": attributed, "convention": convention}, 1e-9)
            for attributed in ((1,), (2, 0))
            for convention in CONVENTIONS
        ),
        *(
            ({"alpha": alpha, "time": time, "energy": energy}, 1e-7)
            for alpha, time, energy in ((0.0, 1, 0.9), (0.5, 2, 0.99), (1, 0.5, 1.0))
        ),
    ],
)
def test_outputs_alone_and_settings_equal_the_oracle(options, tolerance):
    outputs, *variants = clouds(sources=3, distortions=15, features=6, seed=3)
    embeddings = outputs[list(options.get("attributed", range(3)))], *variants
    expected = oracle.separation(*arrays(*embeddings), **options).ps
    actual = F.perceptual_separation(*embeddings, **options)
    assert np.allclose(actual.numpy(), expected, rtol=0, atol=tolerance)
    expected = oracle.match(*arrays(*embeddings), **options).pm
    actual = F.perceptual_match(*embeddings, **options)
    assert np.allclose(actual.numpy(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("bits", "tolerance"), [(64, 1e-8), (32, 1e-4)])
@pytest.mark.parametrize("name", released.CASES)
def test_reference_convention_equals_the_reference_implementation(bits, tolerance, name):
    numbers = golden(bits)
    embeddings = [torch.from_numpy(x).double() for x in released.embeddings(released.CASES[name])]
    ps = F.perceptual_separation(*embeddings, convention="reference")
    pm = F.perceptual_match(*embeddings, convention="reference")
    assert np.abs(ps.numpy() - numbers[f"{name}/ps"]).max() <= tolerance
    assert np.abs(pm.numpy() - numbers[f"{name}/pm"]).max() <= tolerance


def test_reference_convention_rounds_a_tail_below_its_precision_to_zero():
    embeddings = clouds(200, distortions=20, features=6, seed=23, away=1.0)
    actual = F.perceptual_match(*embeddings, convention="reference")
    log_pm = F.perceptual_match(*embeddings, convention="reference", log=True)
    small = log_pm < math.log(1e-16)
    assert (small & (log_pm > -700.0)).any()  # Q itself is far from 0 in float64
    assert not small.all()
    assert (actual[small] == 0.0).all()
    torch.testing.assert_close(actual[~small].log(), log_pm[~small])


SCORES = {
    "separation": F.perceptual_separation,
    "match": F.perceptual_match,
    "log match": functools.partial(F.perceptual_match, log=True),
}


def both(*embeddings, **options):
    actual = [score(*embeddings, **options) for score in SCORES.values()]
    return torch.stack(actual).clamp(min=-50.0)


def test_order_of_sources_and_distortions_does_not_matter():
    outputs, references, distortions = clouds(4, sources=3, distortions=12, seed=1)
    order = [2, 0, 1]
    members = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    mixed = distortions[:, order][:, :, members]
    actual = both(outputs[:, order], references[:, order], mixed)
    torch.testing.assert_close(actual, both(outputs, references, distortions)[..., order])


def test_absent_distortions_and_inactive_sources_change_nothing():
    outputs, references, distortions = clouds(4, sources=2, distortions=12, seed=3)
    expected = both(outputs, references, distortions)
    more_distortions = torch.cat([distortions, torch.randn(4, 2, 3, 8, dtype=torch.float64)], 2)
    mask = torch.arange(15) < 12
    torch.testing.assert_close(
        both(outputs, references, more_distortions, mask=mask.expand(2, 15)), expected
    )
    third = [torch.cat([x, torch.randn_like(x[:, :1])], 1) for x in (outputs, references)]
    third.append(torch.cat([distortions, torch.randn_like(distortions[:, :1])], 1))
    actual = both(*third, active=torch.tensor([True, True, False]))
    torch.testing.assert_close(actual[..., :2], expected)
    assert (actual[..., 2] == 0.0).all()
    active = torch.tensor([[True, True], [True, False], [False, False], [True, True]])
    actual = both(outputs, references, distortions, active=active)
    assert (actual[:, 1:3] == 0.0).all()  # frames without two active sources
    torch.testing.assert_close(actual[:, ::3], expected[:, ::3])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_moving_turning_and_scaling_all_embeddings_changes_nothing(scale):
    embeddings = clouds(4, distortions=12, seed=4)
    q, _ = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).double())
    moved = [scale * (x @ q + 2.0) for x in embeddings]
    torch.testing.assert_close(both(*moved), both(*embeddings), rtol=1e-6, atol=1e-7)


def test_batching_equals_looping():
    embeddings = clouds(2, 3, sources=3, distortions=10, seed=5)
    active = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(3)) > 0.2
    full = both(*embeddings, active=active)
    for i in np.ndindex(2, 3):
        left = both(*[x[i] for x in embeddings], active=active[i])
        torch.testing.assert_close(full[:, i[0], i[1]], left)


def test_scores_lie_in_the_unit_interval_and_log_agrees():
    for seed, away in enumerate((0.0, 0.1, 1.0, 10.0, 1000.0)):
        embeddings = clouds(20, sources=3, distortions=9, seed=seed, away=away)
        for convention in CONVENTIONS:
            ps = F.perceptual_separation(*embeddings, convention=convention)
            pm = F.perceptual_match(*embeddings, convention=convention)
            for score in (ps, pm):
                assert ((score >= 0.0) & (score <= 1.0)).all()
            log_pm = F.perceptual_match(*embeddings, log=True, convention=convention)
            assert (log_pm <= 0.0).all()
            if convention == "paper":
                torch.testing.assert_close(log_pm.exp(), pm, rtol=1e-9, atol=1e-300)


def test_ps_and_pm_fall_as_the_output_leaves_its_reference():
    _, references, distortions = clouds(sources=2, distortions=20, features=6, seed=9)
    step = torch.linspace(0.0, 1.0, 9, dtype=torch.float64)[:, None, None]
    expand = [x.expand(9, *x.shape) for x in (references, distortions)]
    ps = F.perceptual_separation(references + step * (references.flip(0) - references), *expand)
    assert (ps.diff(dim=0) < 1e-9).all()
    assert ps[-1].max() < 0.1
    assert ps[0].min() > 0.9
    away = distortions[:, 0] - references
    log_pm = F.perceptual_match(references + step * away, *expand, log=True)
    assert (log_pm[0] == 0.0).all()
    assert log_pm[-1].max() < -1e-3


def test_signs_of_eigenvectors_do_not_matter(monkeypatch):
    embeddings = [x.requires_grad_() for x in clouds(3, distortions=10, seed=12)]
    plain = both(*embeddings)
    before = torch.autograd.grad(plain.sum(), embeddings)
    eigh = torch.linalg.eigh

    def flipped(matrix):
        values, vectors = eigh(matrix)
        sign = torch.ones(matrix.shape[-1], dtype=matrix.dtype)
        sign[::2] = -1.0
        return values, vectors * sign

    monkeypatch.setattr(torch.linalg, "eigh", flipped)
    repeated = both(*embeddings)
    torch.testing.assert_close(repeated, plain, rtol=0, atol=1e-9)
    for a, b in zip(torch.autograd.grad(repeated.sum(), embeddings), before):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6 * float(b.abs().max()))


def test_deterministic_algorithms_give_equal_bits():
    outputs, references, distortions = clouds(3, distortions=10, seed=13)
    distortions[:, :, :5] = references.unsqueeze(2)  # many tied distances
    torch.use_deterministic_algorithms(True)
    try:
        leaf, runs = outputs.requires_grad_(), []
        for _ in range(2):
            score = both(leaf, references, distortions)
            runs.append((score, *torch.autograd.grad(score.sum(), leaf)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*runs))


def spoiled(name, index, value):
    embeddings = [x.clone() for x in clouds(3, distortions=6)]
    embeddings[name][index] = value
    return embeddings


@pytest.mark.parametrize("function", [F.perceptual_separation, F.perceptual_match])
@pytest.mark.parametrize(
    ("name", "index", "words"),
    [
        (0, (1, 0), "output of source 0 .* in frame 1"),
        (1, (2, 1), "reference of source 1 .* in frame 2"),
        (2, (0, 1, 4), "distortion 4 of source 1 .* in frame 0"),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_embeddings_are_named(function, name, index, words, value):
    with pytest.raises(ValueError, match=words):
        function(*spoiled(name, index, value))


def test_non_finite_embeddings_of_absent_points_do_not_matter():
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4] = False
    assert torch.isfinite(both(*spoiled(2, (0, 1, 4), math.nan), mask=mask)).all()
    active = torch.tensor([[True, True], [True, True], [True, False]])
    assert torch.isfinite(both(*spoiled(1, (2, 1), math.nan), active=active)).all()


def call(**arguments):
    names = "outputs", "references", "distortions"
    return F.perceptual_match(**{**dict(zip(names, clouds(3, distortions=6))), **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"outputs": torch.rand(8)}, ValueError, "S', M"),
        ({"distortions": torch.rand(3, 6, 8)}, ValueError, "S, P, M"),
        ({"outputs": torch.rand(2, 2, 8)}, ValueError, "Nothing is broadcast"),
        ({"outputs": torch.rand(3, 2, 7)}, ValueError, "same leading dimensions and features"),
        ({"outputs": torch.rand(3, 1, 8)}, ValueError, "attributed"),
        ({"outputs": torch.rand(3, 2, 8, dtype=torch.complex64)}, TypeError, "real"),
        ({"outputs": torch.ones(3, 2, 8, dtype=torch.int32)}, TypeError, "floating-point"),
        ({"outputs": np.zeros((3, 2, 8))}, TypeError, "torch.Tensor"),
        ({"attributed": (0, 0)}, ValueError, "different indices"),
        ({"attributed": (0, 2)}, ValueError, "indices from 0 to 1"),
        ({"attributed": (0,)}, ValueError, "one source for each"),
        ({"attributed": "ab"}, TypeError, "attributed"),
        ({"active": torch.ones(3, 2)}, TypeError, "bool"),
        ({"active": torch.ones(3, 3, dtype=torch.bool)}, ValueError, "active must have shape"),
        ({"mask": torch.zeros(3, 2, 6, dtype=torch.bool)}, ValueError, "0 distortions"),
        ({"convention": "derived"}, ValueError, "'paper', 'reference'"),
        ({"eigh": "half"}, ValueError, "eigh must be one of 'float64', 'float32', got 'half'"),
    ],
)
def test_bad_input_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        call(**arguments)


def test_too_few_sources_and_distortions():
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 1:] = False
    for function, arguments, options, words in (
        (F.perceptual_separation, clouds(2, sources=1, distortions=6), {}, "two sources"),
        (F.perceptual_separation, clouds(2, distortions=1), {}, "two distortions"),
        (F.perceptual_match, clouds(3, distortions=6), {"mask": mask}, "leaves 1 distortions"),
    ):
        with pytest.raises(ValueError, match=words):
            function(*arguments, **options)
    assert torch.isfinite(call(mask=mask, active=torch.tensor([False, True]))).all()


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Types of the matrices that are decomposed."""
    seen: list[torch.dtype] = []
    eigh = linalg.eigh

    def watched(matrices: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(matrices.dtype)
        return eigh(matrices)

    monkeypatch.setattr(linalg, "eigh", watched)
    return seen


@pytest.mark.parametrize("score", SCORES)
def test_only_the_decomposition_loses_digits(score: str, decomposed: list[torch.dtype]) -> None:
    leaves = [[x.requires_grad_() for x in clouds(20, distortions=30, seed=3)] for _ in range(2)]
    double = SCORES[score](*leaves[0])
    single = SCORES[score](*leaves[1], eigh="float32")
    assert decomposed == [torch.float64, torch.float32]
    assert single.dtype == torch.float64
    torch.testing.assert_close(single, double, rtol=2e-3, atol=2e-5)
    assert not torch.equal(single, double)
    double.sum().backward()
    single.sum().backward()
    for a, b in zip(*leaves):
        assert float((a.grad - b.grad).norm()) <= 2e-2 * float(a.grad.norm())


def test_special_places_and_bounds_in_single_precision() -> None:
    outputs, references, distortions = clouds(3, distortions=12, seed=5)
    distortions[:, 0] = references[:, :1]  # a collapsed cluster
    outputs[:, 0] = references[:, 0]
    outputs[1, 0] += 0.5
    actual = F.perceptual_match(outputs, references, distortions, eigh="float32")
    assert actual[:, 0].tolist() == [1.0, 0.0, 1.0]
    points = outputs, references, clouds(3, distortions=12, seed=5)[2]
    for bound in (F.separation_bounds, F.match_bounds):
        for convention in ("paper", "reference", "derived"):
            double = bound(*points, convention=convention)
            single = bound(*points, convention=convention, eigh="float32")
            torch.testing.assert_close(single.total, double.total, rtol=2e-2, atol=1e-3)
    leaf = references.clone().requires_grad_()
    for score in SCORES.values():  # repeated eigenvalues
        value = score(leaf, references, torch.cat([points[2]] * 2, 2), eigh="float32")
        assert value.isfinite().all()
        assert torch.autograd.grad(value.sum(), leaf)[0].isfinite().all()


def test_a_scorer_takes_it_and_banks_do_not_depend_on_it(decomposed: list[torch.dtype]) -> None:
    references = torch.randn(1, 2, 4000, generator=torch.Generator().manual_seed(9))
    double, single = MAPSS("mel"), MAPSS("mel", eigh="float32")
    assert single.describe()["eigh"] == "float32"
    bank = double.prepare(references)
    scores = double(references + 0.3 * references.flip(1), bank)
    actual = single(references + 0.3 * references.flip(1), bank)
    assert set(decomposed) == {torch.float64, torch.float32}
    torch.testing.assert_close(actual.ps, scores.ps, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(actual.log_pm, scores.log_pm, rtol=2e-2, atol=1e-3)
