"""How often preparing references waits for an accelerator, and budgets of memory."""

from __future__ import annotations

import pytest
import torch
from reads import counted

from torch_mapss import MAPSS, DistortionBank
from torch_mapss.pipeline.memory import Budget, budget, checked_memory


def voices(seconds: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(1, 2, round(16000 * seconds), generator=generator)


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_preparing_reads_the_device_at_most_forty_times(seconds: float) -> None:
    mapss = MAPSS("mel")
    with counted() as waits:
        mapss.prepare(voices(seconds))
    assert 0 < waits.reads.total() <= 40, waits.lines


def test_the_counter_sees_what_it_should() -> None:
    x = torch.arange(4.0)
    with counted() as waits:
        bool((x > 2).any())
        x[x > 2]
        x.tolist()
        x.nonzero()
        x[torch.tensor([1, 2])]
    expected = {"_local_scalar_dense": 1, "boolean index": 1, "tolist": 1, "nonzero": 1}
    assert waits.reads == expected


@pytest.mark.parametrize("memory", ["20MiB", 2**31])
def test_memory_changes_no_score(memory: int | str) -> None:
    references = voices(1.5)
    estimates = references + 0.3 * references.flip(1)
    options = {
        "separation_bank": DistortionBank(size=20),
        "match_bank": DistortionBank("match", size=20),
    }
    scores = MAPSS("mel", **options)(estimates, references)
    tight = MAPSS("mel", memory=memory, **options)(estimates, references)
    assert torch.equal(scores.active, tight.active)
    torch.testing.assert_close(scores.ps, tight.ps, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores.pm, tight.pm, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("auto", None), ("1GiB", 2**30), ("1.5 g", 3 * 2**29), ("512MB", 2**29), (2**25, 2**25)],
)
def test_memory_may_be_bytes_or_a_text(given: int | str, expected: int | None) -> None:
    assert checked_memory(given) == expected


@pytest.mark.parametrize("wrong", ["much", "1.2.3G", "", 0, -5, "3k", float("inf"), float("nan")])
def test_memory_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="16 MiB"):
        MAPSS("mel", memory=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, True, [1]])
def test_memory_of_another_type_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="bytes"):
        MAPSS("mel", memory=wrong)  # type: ignore[arg-type]


def test_budgets_are_shared_out() -> None:
    whole = budget(None, torch.device("cpu"))
    assert 2**24 <= whole.total <= 2**30
    known = Budget(2**30)
    assert known.samples == 2**20
    assert known.frames == 96 * 2**20
