"""``eigh="float32"``: the eigendecomposition alone in single precision, all else as it is."""

from __future__ import annotations

import pytest
import torch
from clouds import clouds
from torch import Tensor

from torch_mapss import MAPSS
from torch_mapss import functional as F
from torch_mapss.core import linalg

SCORES = {
    "separation": F.perceptual_separation,
    "match": F.perceptual_match,
    "log match": lambda *x, **o: F.perceptual_match(*x, log=True, **o),
}


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


def test_an_output_on_its_reference_is_a_match() -> None:
    _, references, distortions = clouds(5, distortions=12, seed=4)
    assert bool(
        (F.perceptual_match(references, references, distortions, eigh="float32") == 1).all()
    )


def test_a_cluster_on_its_reference_is_collapsed() -> None:
    outputs, references, distortions = clouds(3, distortions=12, seed=5)
    distortions[:, 0] = references[:, :1]
    outputs[:, 0] = references[:, 0]
    outputs[1, 0] += 0.5
    found = F.perceptual_match(outputs, references, distortions, eigh="float32")
    assert found[:, 0].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("convention", ["paper", "reference", "derived"])
def test_bounds_follow(convention: str) -> None:
    points = clouds(4, distortions=20, seed=6)
    for bound in (F.separation_bounds, F.match_bounds):
        double = bound(*points, convention=convention)
        single = bound(*points, convention=convention, eigh="float32")
        torch.testing.assert_close(single.total, double.total, rtol=2e-2, atol=1e-3)


def test_repeated_eigenvalues_keep_finite_gradients() -> None:
    _, references, distortions = clouds(3, distortions=12, seed=8)
    distortions = torch.cat([distortions, distortions], 2)
    outputs = references.clone().requires_grad_()
    for score in SCORES.values():
        (gradient,) = torch.autograd.grad(
            score(outputs, references, distortions, eigh="float32").sum(), outputs
        )
        assert bool(gradient.isfinite().all())


def test_other_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match="eigh must be one of 'float64', 'float32', got 'half'"):
        F.perceptual_separation(*clouds(), eigh="half")


def test_a_scorer_takes_it_and_banks_do_not_depend_on_it(decomposed: list[torch.dtype]) -> None:
    references = torch.randn(1, 2, 4000, generator=torch.Generator().manual_seed(9))
    double, single = MAPSS("mel"), MAPSS("mel", eigh="float32")
    assert single.describe()["eigh"] == "float32"
    bank = double.prepare(references)
    scores = double(references + 0.3 * references.flip(1), bank)
    found = single(references + 0.3 * references.flip(1), bank)
    assert set(decomposed) == {torch.float64, torch.float32}
    torch.testing.assert_close(found.ps, scores.ps, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.log_pm, scores.log_pm, rtol=2e-2, atol=1e-3)
