"""Distances among the points of a bank, taken once: every score and slope is what it is without."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from clouds import clouds
from torch import Tensor

from torch_mapss.core import frame_batches, kernel
from torch_mapss.core.checks import Clouds, check_clouds
from torch_mapss.core.scores import match_scores, separation_scores
from torch_mapss.core.settings import map_settings

FRAMES = 5
Points = tuple[Tensor, Tensor, Tensor]


def coincident() -> Points:
    """Outputs that are their references, and distortions that changed nothing."""
    outputs, references, distortions = clouds(FRAMES, features=60, seed=3)
    outputs[:, 0] = references[:, 0]
    distortions[:, :, :3] = references.unsqueeze(2)
    return outputs, references, distortions


def without_bandwidth() -> Points:
    """In frames 1 and 3 more than half of the pairs coincide."""
    outputs, references, distortions = clouds(FRAMES, features=60, seed=4)
    for frame in (1, 3):
        distortions[frame] = references[frame, :1].unsqueeze(1)
        references[frame, 1] = references[frame, 0]
    return outputs, references, distortions


def clusters_far_apart() -> Points:
    """Distances within a cluster are too small beside those between two for inner products."""
    outputs, references, distortions = clouds(FRAMES, features=60, seed=5)
    distortions = references.unsqueeze(2) + 1e-4 * (distortions - references.unsqueeze(2))
    references[:, 0] += 1e3
    distortions[:, 0] += 1e3
    outputs[:, 0] += 1e3
    # Three quarters of the pairs lie within the second cluster, so the median does.
    distortions[:, 0, 4:] = distortions[:, 1, 4:] * (1 + 1e-9)
    return outputs, references, distortions


def far_from_zero() -> Points:
    return tuple(x + 50.0 for x in clouds(FRAMES, features=60, seed=6))  # type: ignore[return-value]


def an_output_astray() -> Points:
    outputs, references, distortions = clouds(FRAMES, features=60, seed=7)
    outputs[:, 1] += 20.0
    return outputs, references, distortions


CASES: dict[str, Callable[[], Points]] = {
    "plain": lambda: clouds(FRAMES, features=60),
    "few distortions": lambda: clouds(FRAMES, features=60, distortions=2, seed=1),
    "three sources": lambda: clouds(FRAMES, features=60, sources=3, distortions=6, seed=2),
    "coincident": coincident,
    "without bandwidth": without_bandwidth,
    "clusters far apart": clusters_far_apart,
    "far from zero": far_from_zero,
    "an output astray": an_output_astray,
}


def known(given: Clouds, **options: Any) -> Clouds:
    found = frame_batches.known_distances(
        given.references, given.distortions, given.active, given.mask, **options
    )
    return given._replace(known=found)


def scored(given: Clouds, scores: Any, place: int, **settings: Any) -> tuple[Tensor, ...]:
    """All scores, and the gradient of the sum of one of them in the outputs."""
    convention = settings.pop("convention", "paper")
    wanted = map_settings(1.0, 1.0, 0.99, convention, conventions=(convention,), **settings)
    leaf = given.outputs.clone().requires_grad_()
    found = frame_batches.score_frames(given._replace(outputs=leaf), wanted, scores)
    (slope,) = torch.autograd.grad(found[place].sum(), leaf)
    return *(x.detach() for x in found), slope


def assert_the_same(given: Clouds, tolerance: float = 1e-12, **settings: Any) -> None:
    """As close to the distances by differences, which lose nothing, as inner products are.

    Few distortions give a Gamma of shape 1e6, whose tail makes 1e-11 of the last digit of D²: a
    fixed tolerance would ask more than the ordinary path keeps.
    """
    with_block = known(given)
    for scores, place in ((separation_scores, 0), (match_scores, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "GRAM_RATIO", torch.inf)
            exact = scored(given, scores, place, **settings)
        ordinary = scored(given, scores, place, **settings)
        found = scored(with_block, scores, place, **settings)
        for ours, theirs, true in zip(found, ordinary, exact):
            size = max(float(true.double().abs().max()), 1e-3)
            lost = float((theirs - true).abs().max()) / size
            assert float((ours - true).abs().max()) / size <= tolerance + 4.0 * lost


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_frame(case: str) -> None:
    # Clusters 1e3 apart of 1e-4 each: moving the points to their centre rounds them by 1e-9.
    tolerance = 1e-9 if case == "clusters far apart" else 1e-12
    assert_the_same(check_clouds(*CASES[case](), None, None, None, 1), tolerance)


@pytest.mark.parametrize(
    "settings",
    [{"convention": "reference"}, {"convention": "conformal"}, {"max_dimension": 3}],
    ids=str,
)
def test_other_settings(settings: dict[str, Any]) -> None:
    assert_the_same(check_clouds(*CASES["plain"](), None, None, None, 1), **settings)


@pytest.mark.parametrize("attributed", [(1,), (2, 0)])
def test_absent_sources_and_distortions(attributed: tuple[int, ...]) -> None:
    outputs, references, distortions = clouds(FRAMES, sources=3, distortions=8, features=60)
    generator = torch.Generator().manual_seed(1)
    active = torch.ones(FRAMES, 3, dtype=torch.bool)
    active[0, 0] = active[3, 2] = active[4, 1] = False
    mask = torch.rand(FRAMES, 3, 8, generator=generator) > 0.3
    # What absent points hold must not matter, not even to the centre.
    distortions = torch.where(mask.unsqueeze(-1), distortions, torch.inf)
    references = torch.where(active.unsqueeze(-1), references, torch.nan)
    distortions = torch.where(active[..., None, None], distortions, 1e300)
    outputs = outputs[:, list(attributed)]
    assert_the_same(check_clouds(outputs, references, distortions, attributed, active, mask, 1))


def test_the_frames_that_need_differences_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = known(check_clouds(*clusters_far_apart(), None, None, None, 1))
    whole = []
    differences = kernel._difference_distances

    def noted(x: Tensor, y: Tensor) -> Tensor:
        whole.append(x.shape == y.shape)
        return differences(x, y)

    monkeypatch.setattr(kernel, "_difference_distances", noted)
    scored(given, separation_scores, 0)
    assert any(whole), "the case has no frame whose inner products lose digits"


def test_against_the_oracle() -> None:
    points = clouds(FRAMES, features=60, seed=8)
    given = known(check_clouds(*points, None, None, None, 1))
    ps, *_ = scored(given, separation_scores, 0)
    _, log_pm, *_ = scored(given, match_scores, 1)
    for frame in range(FRAMES):
        one = [x[frame].numpy() for x in points]
        np.testing.assert_allclose(ps[frame], oracle.separation(*one).ps, rtol=1e-10)
        np.testing.assert_allclose(log_pm[frame], oracle.match(*one).log_pm, rtol=1e-10)


def test_slopes_in_the_references_are_those_without() -> None:
    """Only the values of D² are known before, so any part may want a gradient."""
    given = check_clouds(*CASES["plain"](), None, None, None, 1)
    found = []
    for cloud in (given, known(given)):
        leaves = [x.clone().requires_grad_() for x in cloud[:3]]
        wanted = map_settings(1.0, 1.0, 0.99, "paper")
        moved = cloud._replace(outputs=leaves[0], references=leaves[1], distortions=leaves[2])
        score = frame_batches.score_frames(moved, wanted, separation_scores)[0]
        found.append(torch.autograd.grad(score.sum(), leaves))
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_in_chunks_and_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = check_clouds(*CASES["plain"](), None, None, None, 1)
    points = sum(x.flatten(1, -2).shape[1] for x in given[:3])
    two = 2 * 8 * (2 * points * 60 + 8 * points**2)
    expected = scored(known(given), separation_scores, 0)
    monkeypatch.setattr(frame_batches, "CHUNK_BYTES", two)
    monkeypatch.setattr(frame_batches, "GRAPH_BYTES", 0)
    found = scored(known(given, chunk_bytes=two), separation_scores, 0)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_where_the_values_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator: coarse frames are done again, at the end."""
    given = known(check_clouds(*clusters_far_apart(), None, None, None, 1))
    expected = scored(given, separation_scores, 0)
    monkeypatch.setattr(frame_batches.devices, "is_far", lambda _: True)
    for ours, theirs in zip(scored(given, separation_scores, 0), expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_when_it_pays() -> None:
    cpu, far = torch.device("cpu"), torch.device("cuda")
    worth = functools.partial(kernel.worth_keeping, 140)
    assert [worth(m, cpu) for m in (80, 400, 1024)] == [False, True, True]
    assert not worth(1024, far)
