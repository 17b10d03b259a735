"""How often preparing references waits for an accelerator, and budgets of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reads import counted

from torch_mapss import MAPSS, DistortionBank
from torch_mapss.encoders import MelEncoder
from torch_mapss.pipeline import memory
from torch_mapss.pipeline.memory import Budget, budget, checked_memory


def voices(seconds: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(1, 2, round(16000 * seconds), generator=generator)


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_preparing_reads_the_device_at_most_seventeen_times(seconds: float) -> None:
    mapss = MAPSS("mel")
    with counted() as waits:
        mapss.prepare(voices(seconds))
    assert 0 < waits.reads.total() <= 17, waits.lines


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


@pytest.mark.parametrize("given", ["20MiB", 2**31])
def test_memory_changes_no_score(given: int | str) -> None:
    references = voices(1.5)
    estimates = references + 0.3 * references.flip(1)
    options = {
        "separation_bank": DistortionBank(size=20),
        "match_bank": DistortionBank("match", size=20),
    }
    scores = MAPSS("mel", **options)(estimates, references)
    tight = MAPSS("mel", memory=given, **options)(estimates, references)
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
    assert 2**24 <= budget(None, torch.device("cpu")).total <= 2**30
    known = Budget(2**30)
    assert known.samples == 2**20
    assert known.frames == 96 * 2**20


@pytest.mark.parametrize(
    ("line", "folder", "names", "used"),
    [
        ("0::/", "", ("memory.max", "memory.current"), "inactive_file"),
        ("0::/a/b", "a", ("memory.max", "memory.current"), "inactive_file"),
        (
            "4:cpu,memory:/docker/x",
            "memory/docker/x",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_inactive_file",
        ),
    ],
)
def test_the_limit_of_a_container_counts(
    line: str,
    folder: str,
    names: tuple[str, str],
    used: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    groups.write_text(f"9:name=systemd:/\n{line}\n")
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (2**28, 2**27)):
        (root / folder / name).write_text(f"{value}\n")
    (root / folder / "memory.stat").write_text(f"anon 5\n{used} {2**26}\n")
    monkeypatch.setattr(memory, "_GROUPS", str(groups))
    monkeypatch.setattr(memory, "_CGROUP", str(root))
    assert memory.free_memory() == 2**28 - 2**27 + 2**26
    assert budget(None, torch.device("cpu")).total == (2**27 + 2**26) // 4
    (root / folder / names[0]).write_text("max\n")
    assert memory.free_memory() > 2**28


def test_out_of_memory_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: object) -> None:
        raise torch.OutOfMemoryError("2 GiB wanted")

    mapss = MAPSS("mel")
    monkeypatch.setattr(MelEncoder, "_encode", failing)
    with pytest.raises(torch.OutOfMemoryError, match="2 GiB wanted") as caught:
        mapss(voices(0.5), voices(0.5))
    assert str(caught.value).count("memory=") == 1


def test_the_least_memory_prepares_many_sources_in_segments() -> None:
    references = torch.randn(1, 6, 48000, generator=torch.Generator().manual_seed(0))
    banks = {"separation_bank": DistortionBank(only=("echo",))}
    mapss = MAPSS("mel", segment=1.0, memory="16MiB", measures="separation", **banks)
    assert len(mapss.prepare(references).groups[0].scored) > 100


def test_a_copy_to_the_cpu_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = MAPSS("mel").prepare(voices(0.5), measures="decomposition")
    original, asked = torch.Tensor.to, set()

    def noted(self: torch.Tensor, *given: object, **options: object) -> torch.Tensor:
        asked.add((str(given[0]), options["non_blocking"]))
        return original(self, "cpu")

    monkeypatch.setattr(torch.Tensor, "to", noted)
    bank.to("cpu")
    bank.to("cuda:1")
    assert asked == {("cpu", False), ("cuda:1", True)}
