"""Distances among a bank's points, shared by systems or kept with the bank: scores stay alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bursts import bursts, leaky, small
from torch import Tensor

from torch_mapss import MAPSS, ReferenceBank
from torch_mapss.core import frame_batches, kernel
from torch_mapss.pipeline import kept, scoring
from torch_mapss.pipeline.records import Encoded, FrameBounds

NAMES = ("ps", "pm", "log_pm", "attributed_distance", "foreign_distance")


def systems(references: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(references.shape, generator=generator).to(references.dtype)
    return [leaky(references), references + 0.01 * noise, -leaky(references)[..., [1, 0], :]]


def assert_alike(one: Any, other: Any) -> None:
    assert torch.equal(one.active, other.active)
    assert one.active.any()
    for name in NAMES:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-12)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames' distances among the bank's points are taken, at each time."""
    seen: list[int] = []
    original = frame_batches.known_distances

    def counted(references: Tensor, *given: Any) -> Any:
        seen.append(len(references))
        return original(references, *given)

    monkeypatch.setattr(kept, "known_distances", counted)
    return seen


@pytest.mark.parametrize("segment", [None, 1.5])
def test_systems_share_them(segment: float | None, taken: list[int]) -> None:
    references = bursts(2.4).double()
    mapss = small(segment=segment)
    bank = mapss.prepare(references)
    alone = [mapss(estimates, bank, frames=40) for estimates in systems(references)]
    assert not taken
    together = mapss.score_systems(systems(references), bank, frames=40)
    assert sum(taken) == 2 * 40  # for PS and for PM
    for one, other in zip(alone, together):
        assert_alike(one, other)


def test_systems_of_different_sources_share_them(taken: list[int]) -> None:
    references = bursts(1.2, sources=3).double()
    mapss = small()
    bank = mapss.prepare(references)
    estimates = [leaky(references)[[2, 0]], leaky(references)[[1]]]
    attributed = [(2, 0), (1,)]
    together = mapss.score_systems(estimates, bank, attributed)
    assert taken
    for one, which, found in zip(estimates, attributed, together):
        assert_alike(mapss(one, bank, which), found)


def test_more_systems_than_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    references = bursts(1.0).double()
    mapss = small()
    bank = mapss.prepare(references)
    expected = mapss.score_systems(systems(references), bank)
    monkeypatch.setattr(scoring, "TOGETHER", 2)
    for one, other in zip(expected, mapss.score_systems(systems(references), bank)):
        assert_alike(one, other)


def test_a_system_with_a_broken_mixture_does_not_touch_the_others() -> None:
    references = torch.stack([bursts(1.0, seed=s) for s in range(2)]).double()
    mapss = small(trim=False)
    bank = mapss.prepare(references)
    silent = leaky(references)
    silent[1] = 0.0
    expected = [mapss(x, bank) for x in (leaky(references), silent)]
    for one, other in zip(expected, mapss.score_systems([leaky(references), silent], bank)):
        assert_alike(one, other)


def test_a_mixture_that_one_system_spoils_is_whole_for_the_others() -> None:
    """The frames of a mixture with a bad sample have no source in that call, but in the bank."""
    references = torch.stack([bursts(1.0, seed=s) for s in range(2)]).double()
    mapss = small(check_finite=False)
    bank = mapss.prepare(references)
    spoilt = leaky(references)
    spoilt[1, 0, 5000] = torch.nan
    given = [spoilt, leaky(references)]
    expected = [mapss(x, bank) for x in given]
    assert not expected[0].active[1].any()
    for one, other in zip(expected, mapss.score_systems(given, bank)):
        assert_alike(one, other)


def test_bounds_share_them(taken: list[int]) -> None:
    references = bursts(1.5).double()
    mapss = small()
    bank = mapss.prepare(references)
    given = systems(references)[:2]
    together = mapss.bound_systems(given, bank, frames=20)
    assert taken
    for estimates, found in zip(given, together):
        alone = mapss.bounds(estimates, bank, frames=20)
        assert_alike(alone.scores, found.scores)
        for measure in ("ps", "pm"):
            bounds: FrameBounds = getattr(found, measure)
            for ours, theirs in zip(bounds, getattr(alone, measure)):
                torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def with_slopes(mapss: MAPSS, estimates: Tensor, bank: ReferenceBank) -> tuple[Any, Tensor]:
    leaf = estimates.clone().requires_grad_()
    scores = mapss(leaf, bank)
    (slope,) = torch.autograd.grad((scores.ps.sum() + 1e-3 * scores.log_pm.sum()), leaf)
    return scores.detach(), slope


def assert_kept_alike(mapss: MAPSS, estimates: Tensor, bank: ReferenceBank, other: Any) -> None:
    scores, slope = with_slopes(mapss, estimates, bank)
    found, slope_found = with_slopes(mapss, estimates, other)
    assert_alike(scores, found)
    size = float(slope.abs().max())
    torch.testing.assert_close(slope_found, slope, rtol=1e-9, atol=1e-9 * size)


def test_a_bank_keeps_them(taken: list[int], tmp_path: Path) -> None:
    references = torch.stack([bursts(1.2, seed=s) for s in range(2)]).double()
    mapss = small()
    bank = mapss.prepare(references)
    full = bank.with_distances()
    frames = len(bank.groups[0].scored)
    assert taken == [frames, frames]
    points = [2 * (part.distortions.shape[2] + 1) for part in parts(bank)]
    assert full.nbytes > bank.nbytes + sum(8 * n * n * frames for n in points)
    assert_kept_alike(mapss, leaky(references), bank, full)
    full.save(tmp_path / "bank.pt")
    loaded = ReferenceBank.load(tmp_path / "bank.pt")
    assert loaded.nbytes == full.nbytes
    assert_kept_alike(mapss, leaky(references), bank, loaded)
    assert sum(taken) == 2 * frames  # and never again


def parts(bank: ReferenceBank) -> list[Encoded]:
    found = [part for group in bank.groups for part in (group.separation, group.match)]
    assert all(isinstance(part, Encoded) for part in found)
    return found  # type: ignore[return-value]


def test_a_bank_of_one_measure_keeps_that() -> None:
    references = bursts(1.0).double()
    mapss = small()
    bank = mapss.prepare(references, measures="separation").with_distances()
    (group,) = bank.groups
    assert group.match is None
    alone = mapss(leaky(references), references, measures="separation")
    found = mapss(leaky(references), bank, measures="separation")
    torch.testing.assert_close(found.ps, alone.ps, rtol=1e-9, atol=1e-12)


def test_joined_banks_keep_them() -> None:
    """Also where one of them has fewer distortions, whose places are then filled up."""
    references = [bursts(1.1, seed=s).double() for s in range(3)]
    references[1] = 0.1 * torch.sin(torch.arange(17600) / 9.0).double().expand(2, -1).clone()
    references[1][1] = references[1][1] ** 3
    mapss = small()
    banks = [mapss.prepare(x) for x in references]
    counts = {part.distortions.shape[2] for bank in banks for part in parts(bank)[1:]}
    assert len(counts) > 1
    joined = ReferenceBank.join([bank.with_distances() for bank in banks])
    assert all(part.distances is not None for part in parts(joined))
    plain = ReferenceBank.join(banks)
    assert_kept_alike(mapss, leaky(torch.stack(references)), plain, joined)
    some = ReferenceBank.join([banks[0].with_distances(), banks[2]])
    assert all(part.distances is None for part in parts(some))


def test_recombined_banks_drop_them() -> None:
    references = torch.stack([bursts(1.0, seed=s) for s in range(2)]).double()
    mapss = small()
    bank = mapss.prepare(references).with_distances().recombined([[0, 1], [1, 0]])
    assert all(part.distances is None for part in parts(bank))
    crossed = torch.stack([references[[0, 1], [0, 1]], references[[1, 0], [0, 1]]])
    assert_alike(mapss(leaky(crossed), crossed), mapss(leaky(crossed), bank))


def test_none_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    references = bursts(1.0)
    monkeypatch.setattr(kernel, "LEAST_FEATURES", 1000.0)
    mapss = small()
    bank = mapss.prepare(references)
    assert bank.with_distances().nbytes == bank.nbytes
    mapss.score_systems(systems(references), bank)


def test_a_frame_that_is_not_kept_goes_the_ordinary_way() -> None:
    references = bursts(1.0).double()
    mapss = small()
    bank = mapss.prepare(references)
    full = bank.with_distances()
    for part in parts(full):
        assert part.distances is not None
        part.distances.row[0, :10] = -1
    assert_alike(mapss(leaky(references), bank), mapss(leaky(references), full))


def test_systems_are_held_against_a_bank() -> None:
    references = bursts(0.5)
    for method in ("score_systems", "bound_systems"):
        with pytest.raises(TypeError, match=r"mapss\.prepare\(references\)"):
            getattr(MAPSS("mel"), method)([references], references)
