"""Manifests: what is refused, all at once, and what is read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from separations import save_manifest, write, write_manifest

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.manifest import ManifestError, load_manifest, read_entries


def entries_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def evaluate_command(path: Path, out: Path) -> int:
    return cli.main(["evaluate", str(path), "--out", str(out), "--encoder", "mel"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("set"), 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{not json", "is no valid JSON (line 1, column 2"),
        ("[]", "lists no mixture"),
        ('{"mixture_id": "x"}', "must be a JSON list of mixtures, got an object with 'mixture_id'"),
        ("[3]", "entry 0 must be an object, got int"),
        ('[{"mixture_id": "x", "systems": {}}]', "mixture 'x' lacks 'references'"),
        ('[{"references": ["a", "b"], "systems": {}}]', "entry 0 lacks 'mixture_id'"),
        ('[{"mixture_id": "x", "mixture_id": "y"}]', "has the key 'mixture_id' twice"),
    ],
)
def test_broken_manifests_are_one_line(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as error:
        load_manifest(path)
    assert any(message in problem for problem in error.value.problems)
    out = tmp_path / "out"
    assert evaluate_command(path, out) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert "m.json" in printed
    assert not out.exists()


def test_a_missing_manifest_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate_command(tmp_path / "none.json", tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "none.json: there is no such file" in printed


def test_all_problems_are_listed_at_once(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = entries_of(corpus)
    entries[0]["references"][0] = "m0/truth/gone.wav"
    entries[1]["systems"]["bad"].append("m1/bad/c.wav")
    entries[1]["systems"]["none"] = [None, None]
    entries[2]["mixture_id"] = "m0"
    entries.append({"mixture_id": "late", "references": ["m0/truth/a.wav"], "systems": []})
    entries.append({"mixture_id": 7, "references": "m0/truth/a.wav"})
    path = save_manifest(corpus.parent, entries, "wrong.json")
    assert evaluate_command(path, tmp_path / "out") == 2
    printed = capsys.readouterr().err
    assert "wrong.json has 8 problems:" in printed
    for problem in (
        "mixture 'm0', references: no file",
        "gone.wav",
        "mixture 'm1', system 'bad': must have one path per reference (2)",
        "mixture 'm1', system 'none': estimates no source at all",
        "mixture_id 'm0' is used 2 times",
        "mixture 'late': references must be at least two, got 1",
        "mixture 'late': systems must be an object",
        "mixture '7' lacks 'systems'",
        "mixture '7': references must be a list of paths",
    ):
        assert problem in printed
    assert len(printed.strip().splitlines()) == 9


def test_further_keys_and_a_byte_order_mark_are_fine(corpus: Path) -> None:
    entries = entries_of(corpus)
    entries[0]["remark"] = "anything"
    path = corpus.parent / "bom.json"
    path.write_text(json.dumps(entries), encoding="utf-8-sig")
    assert len(load_manifest(path)) == 3


def test_a_manifest_without_systems_is_refused(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 2, ("good",))
    entries = entries_of(path)
    entries[0]["systems"] = {}
    path.write_text(json.dumps(entries), encoding="utf-8")
    assert len(load_manifest(path)) == 2
    entries[1]["systems"] = {}
    path.write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(ManifestError, match="no system in any"):
        load_manifest(path)


def test_manifests_of_other_tools_are_shown_a_valid_one(tmp_path: Path) -> None:
    cases = {
        '{"utts": {"a": {}}, "x": 1}': r"got an object with 'utts', 'x'\. The least that is valid",
        '{"mixture_id": "m", "references": [], "systems": {}}': "got a single one: put it in",
        '{"id": 1}\n{"id": 2}\n': "One object per line is no manifest. The least that is valid",
        "3": "must be a JSON list of mixtures, got 3",
    }
    path = tmp_path / "m.json"
    for text, message in cases.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ManifestError, match=message):
            load_manifest(path)
    with pytest.raises(ManifestError) as error:
        load_manifest(path)
    shown = str(error.value)
    for name in "ab":
        write(tmp_path / f"{name}.wav", torch.zeros(800))
        write(tmp_path / f"{name}_est.wav", torch.zeros(800))
    path.write_text(shown[shown.index("[{") :], encoding="utf-8")
    assert len(load_manifest(path)) == 1  # what is shown is valid


@pytest.mark.skipif(os.sep == "\\", reason="backslashes separate folders here")
def test_backslashes_get_a_hint(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("good",))
    path.write_text(path.read_text().replace("/", "\\\\"))
    with pytest.raises(ManifestError, match=r"backslashes do not .*'m0/truth/a.wav' is there"):
        load_manifest(path)


def test_reading_is_linear_in_mixtures(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.wav", torch.zeros(8)) for name in "ab"]
    entries = [
        {"mixture_id": f"m{k}", "references": paths, "systems": {"x": paths}} for k in range(4000)
    ]
    started = time.monotonic()
    assert len(read_entries(entries, "m", "")) == 4000
    assert time.monotonic() - started < 10.0  # quadratic names alone took a second for 8,000
    entries.append(entries[7])
    with pytest.raises(ManifestError, match="'m7' is used 2 times"):
        read_entries(entries, "m", "")
