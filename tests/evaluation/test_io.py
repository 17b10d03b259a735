"""Files of results: replaced in one step, named safely."""

from __future__ import annotations

import os
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torch_mapss.evaluation import io


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.csv"
    io.write_bytes(path, b"old")

    def fails(name: str) -> None:
        Path(name).write_bytes(b"half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        io.write_with(path, fails)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.csv"]


def test_files_left_by_a_killed_process_are_removed(tmp_path):
    path = tmp_path / ("long" * 60 + ".csv")
    left: list[Path] = []

    def killed(name: str) -> None:
        Path(name).write_bytes(b"half")
        left.append(Path(name).with_name(Path(name).name.replace(str(os.getpid()), "1")))
        os.rename(name, left[0])

    with pytest.raises(io.WriteError):
        io.write_with(path, killed)
    io.write_bytes(path, b"whole")  # it may belong to a process that is still at work
    assert len(names(tmp_path)) == 2
    os.utime(left[0], (0, 0))
    io.write_bytes(path, b"whole")
    assert names(tmp_path) == [path.name]


def test_many_writers_leave_one_whole_file(tmp_path):
    path = tmp_path / "a.csv"
    contents = [bytes([65 + k]) * 100_000 for k in range(8)]

    def write(content: bytes) -> None:
        for _ in range(20):
            io.write_bytes(path, content)

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["a.csv"]


def test_a_folder_is_filled_at_once_or_not_at_all(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError), io.filled_at_once(out) as folder:
        os.rename(Path(folder, "b"), Path(folder, "a"))
    assert names(tmp_path) == []
    with io.filled_at_once(out) as folder:
        Path(folder, "a").write_text("1")
    with io.filled_at_once(out) as folder:
        Path(folder, "a").write_text("2")
        Path(folder, "b").write_text("3")
    assert names(tmp_path) == ["out"]
    assert (out / "a").read_text() == "2"
    assert names(out) == ["a", "b"]


def test_names_of_files_are_safe_and_unlike():
    texts = ["song", "Song", "song.", "song ", "a/b", "a\\b", "a_b", "CON", "con", "aux.x", ".."]
    texts += ["漢" * 100, "漢" * 101, "é" * 200, "a" * 300, "\ud800", "x:y", ".hidden", ""]
    made = [io.file_name(text) for text in texts]
    assert len({name.lower() for name in made}) == len(texts)
    for name in made:
        assert 0 < len(name.encode()) <= 160
        assert not set(name) & set('/\\:*?"<>|')
        assert (name[0] == ".", name[-1] in " .") == (False, False)
        assert name.split(".")[0].lower() not in ("con", "aux")
    assert io.file_name("song 1-a_b") == "song 1-a_b"
    composed, decomposed = (unicodedata.normalize(form, "Café Olé") for form in ("NFC", "NFD"))
    assert io.same_name(composed) == io.same_name(decomposed)
    assert io.file_name(composed) == io.file_name(decomposed)


def test_display_names():
    for paths, names in (
        ("a/x.wav b/x.wav c/y.wav", "a/x b/x y"),
        ("p/a/x.wav q/a/x.wav", "p/a/x q/a/x"),
        ("x.wav a/x.wav v1.2.wav v1.3.wav", "x a/x v1.2 v1.3"),
        ("", ""),
    ):
        assert io.display_names(paths.split()) == (*names.split(),)
    assert io.display_names(["x (2).wav", "x.wav", "x.flac"]) == ("x (2)", "x", "x (3)")


def test_folders_are_made_unless_a_file_is_in_the_way(tmp_path):
    (tmp_path / "taken").write_text("mine")
    for path in ("taken", "taken/below"):
        with pytest.raises(ValueError, match=r"taken.* (File exists|Not a directory)"):
            io.make_folder(tmp_path / path)
    assert (tmp_path / "taken").read_text() == "mine"
    io.write_bytes(Path(io.make_folder(tmp_path / "a" / "b"), "c"), b"")
    assert (tmp_path / "a/b/c").stat().st_mode == (tmp_path / "taken").stat().st_mode


def test_tables_line_up_for_wide_and_combining_characters():
    lines = io.text_table(["n", "x"], [["鼓", "1"], ["e\u0301", "2"], ["ab", "3"]]).split("\n")
    assert lines == ["n   x", "--  -", "鼓  1", "e\u0301   2", "ab  3"]
