"""Folders as test sets lay them out: what is understood, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from separations import leaky, sources, write

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.folders import read_folders
from torch_mapss.evaluation.manifest import ManifestError, load_manifest

QUICK = ("--encoder", "mel", "--bank-size", "5", "--quiet")


def touch(root: Path, *names: str) -> str:
    """Empty files: pairing looks at names alone."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return str(root)


def grid(outer: Sequence[str], inner: Sequence[str], suffix: str = ".wav") -> list[str]:
    return [f"{one}/{other}{suffix}" for one in outer for other in inner]


def refused(*arguments: object, **options: object) -> tuple[str, ...]:
    with pytest.raises(ManifestError) as error:
        read_folders(*arguments, **options)  # type: ignore[arg-type]
    return error.value.problems


# ------------------------------------------------------------------------------------------------
# What is understood
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
def test_a_folder_per_mixture(tmp_path: Path, known: bool) -> None:
    names = ("bass", "vocals") if known else ("x", "y")
    songs = ("song2", "song10", "song1")
    truth = touch(tmp_path / "r", *grid(songs, [*names, "mixture"]), "song1/notes.txt")
    made = touch(tmp_path / "a", *grid(songs, names, ".flac"))
    corpus = read_folders(truth, {"A": made})
    assert corpus.layout == "mixture"
    assert corpus.sources == names
    assert [mixture.name for mixture in corpus.mixtures] == ["song1", "song2", "song10"]
    first = corpus.mixtures[0]
    assert first.references == tuple(f"{truth}/song1/{name}.wav" for name in names)
    assert first.systems == {"A": tuple(f"{made}/song1/{name}.flac" for name in names)}
    assert first.mixture == f"{truth}/song1/mixture.wav"
    assert first.source_names == names


@pytest.mark.parametrize("known", [True, False])
def test_a_folder_per_source(tmp_path: Path, known: bool) -> None:
    names = ("s1", "s2") if known else ("left", "right")
    truth = touch(tmp_path / "r", *grid([*names, "mix_clean", "mix_both"], ("0001", "0002", "7")))
    made = touch(tmp_path / "a", *grid(names, ("0001", "0002", "7")))
    corpus = read_folders(truth, {"A": made})
    assert corpus.layout == "source"
    assert corpus.sources == names
    assert {mixture.name for mixture in corpus.mixtures} == {"0001", "0002", "7"}
    assert corpus.mixtures[0].mixture is None  # which of the two, nobody knows
    assert "a folder per source: 3 mixtures of the 2 sources" in corpus.notes[0]


def test_layouts_of_references_and_systems_may_differ(tmp_path: Path) -> None:
    truth = touch(tmp_path / "r", *grid(("s1", "s2"), ("a", "b", "c")))
    made = touch(tmp_path / "a", *grid(("a", "b", "c"), ("s1", "s2")))
    (first, *_) = read_folders(truth, {"A": made}).mixtures
    assert first.systems["A"] == (f"{made}/a/s1.wav", f"{made}/a/s2.wav")


def test_trees_may_be_deeper(tmp_path: Path) -> None:
    files = [f"{part}/{source}/{k}.wav" for part in ("dev", "test") for source in ("s1", "s2")
             for k in range(3)]  # fmt: skip
    truth, made = touch(tmp_path / "r", *files), touch(tmp_path / "a", *files)
    corpus = read_folders(truth, {"A": made})
    assert corpus.sources == ("s1", "s2")
    assert [m.name for m in corpus.mixtures] == [
        f"{p}/{k}" for p in ("dev", "test") for k in range(3)
    ]
    assert corpus.mixtures[0].references[1] == f"{truth}/dev/s2/0.wav"


def test_one_mixture_needs_no_folder_of_its_own(tmp_path: Path) -> None:
    truth = touch(tmp_path / "song", "drums.wav", "vocals.wav", "mixture.wav")
    made = touch(tmp_path / "out", "drums.wav", "vocals.wav")
    (mixture,) = read_folders(truth, {"A": made}).mixtures
    assert mixture.name == "song"
    assert mixture.references == (f"{truth}/drums.wav", f"{truth}/vocals.wav")


def test_what_a_system_lacks_throughout_is_null(tmp_path: Path) -> None:
    songs, names = ("a", "b"), ("bass", "drums", "vocals")
    truth = touch(tmp_path / "r", *grid(songs, names))
    whole = touch(tmp_path / "w", *grid(songs, names), "c/bass.wav", "a/other.wav")
    voice = touch(tmp_path / "v", *grid(songs, ["vocals"]))
    corpus = read_folders(truth, {"whole": whole, "voice": voice})
    assert corpus.mixtures[1].systems["voice"] == (None, None, f"{voice}/b/vocals.wav")
    told = "\n".join(corpus.notes)
    assert "'voice': a folder per mixture; no estimate of 'bass', 'drums'" in told
    assert "left out, as no reference: 'other'" in told
    assert "1 mixtures without references left out" in told


def test_sources_may_be_chosen(tmp_path: Path) -> None:
    items = ("a", "b", "c")
    truth = touch(tmp_path / "r", *grid(("s1", "s2", "noise"), items))
    made = touch(tmp_path / "a", *grid(("s1", "s2"), items))
    (problem,) = refused(truth, {"A": made})
    assert "no system estimates 'noise'" in problem
    assert "--sources s1 s2 leaves it out" in problem
    assert read_folders(truth, {"A": made}, sources=["s2", "s1"]).sources == ("s2", "s1")
    kept = read_folders(truth, {"A": made}, sources=["s1", "s2", "noise"])
    assert kept.mixtures[0].systems["A"][2] is None
    assert (
        "must name at least two different ones of 'noise', 's1', 's2', got 's1', 's3'"
        in (refused(truth, {"A": made}, sources=["s1", "s3"])[0])
    )


# ------------------------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------------------------


def test_a_square_of_unknown_names_must_be_told(tmp_path: Path) -> None:
    square = grid(("p", "q"), ("x", "y"))
    truth, made = touch(tmp_path / "r", *square), touch(tmp_path / "a", *square)
    (problem,) = refused(truth, {"A": made})
    assert "a folder per mixture: 2 mixtures of the 2 sources 'x', 'y'" in problem
    assert "a folder per source: 2 mixtures of the 2 sources 'p', 'q'" in problem
    assert read_folders(truth, {"A": made}, layout="mixture").sources == ("x", "y")
    assert read_folders(truth, {"A": made}, layout="source").sources == ("p", "q")


@pytest.mark.parametrize(
    ("layout", "files"),
    [
        ("mixture", grid(("m0", "m1"), ("x", "y"))),
        ("mixture", grid(("p", "q"), ("x", "y", "mixture"))),
        ("mixture", grid(("mix_p", "mix_q"), ("x", "y"))),
        ("source", grid(("p", "q"), ("0001", "0002"))),
        ("source", grid(("p", "q", "mix"), ("x", "y"))),
        ("source", grid(("p", "q"), ("x", "y", "z"))),
    ],
)
def test_names_tell_what_numbers_do_not(tmp_path: Path, layout: str, files: list[str]) -> None:
    truth = touch(tmp_path / "r", *files)
    assert read_folders(truth, {"A": truth}).layout == layout


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    songs, names = ("one", "two", "three"), ("drums", "vocals")
    truth = touch(tmp_path / "r", *grid(songs, names))
    os.remove(tmp_path / "r" / "two" / "drums.wav")
    short = touch(tmp_path / "s", *grid(songs, names))
    os.remove(tmp_path / "s" / "one" / "vocals.wav")
    renamed = touch(tmp_path / "n", *grid(("one", "two", "threee"), names))
    alien = touch(tmp_path / "x", "1/a.wav")
    twice = touch(tmp_path / "t", *grid(songs, names), "one/drums.mp3")
    systems = {"S": short, "N": renamed, "X": alien, "T": twice, "0": str(tmp_path / "nothing")}
    problems = refused(truth, systems)
    assert problems[0] == "the references of mixture 'two' lack 'drums'"
    said = "\n".join(problems)
    assert "system 'S', mixture 'one': lacks 'vocals', which it has elsewhere" in said
    assert "system 'N' lacks mixture 'three' (but has 'threee')" in said
    assert "system 'X': no file below" in said
    assert "found e.g. '1/a'" in said
    assert "system 'T':" in said
    assert "have one name" in said
    assert "system '0':" in said
    assert "does not exist" in said
    assert len(problems) == 6


def test_folders_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "empty").mkdir()
    assert "is no folder" in refused(str(file), {})[0]
    assert "no audio file" in refused(str(tmp_path / "empty"), {})[0]
    lone = touch(tmp_path / "lone", "a/x.wav", "b/y.wav", "c/z.wav")
    (problem, *_) = refused(lone, {"A": lone}, layout="mixture")
    assert problem == "the references of mixture 'a' lack 'y', 'z'"
    many = touch(
        tmp_path / "many", *grid([f"m{k}" for k in range(20)], [f"n{k}" for k in range(20)])
    )
    assert "cannot be read: expected a folder per mixture" in refused(many, {"A": many})[0]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    truth = touch(tmp_path / "r", *grid(("a", "b", "c"), ("s1", "s2")), "._hidden/s1.wav")
    os.symlink(tmp_path / "r", tmp_path / "r" / "a" / "again")
    assert len(read_folders(truth, {"A": truth}).mixtures) == 3


# ------------------------------------------------------------------------------------------------
# The command
# ------------------------------------------------------------------------------------------------


def corpus_on_disk(folder: Path) -> tuple[str, str]:
    for k in range(3):
        truth = sources(2, 0.3, seed=k)
        for name, true, made in zip(("s1", "s2"), truth, leaky(truth)):
            write(folder / "refs" / name / f"{k}.wav", true)
            write(folder / "outs" / f"{k}" / f"{name}.wav", made)
    return str(folder / "refs"), str(folder / "outs")


def test_a_manifest_of_folders_scores_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs, outs = corpus_on_disk(tmp_path)
    folders = ["evaluate", "--references", refs, "--system", f"A={outs}", *QUICK]
    assert cli.main([*folders, "--out", str(tmp_path / "o"), "--write-manifest"]) == 0
    (entry, *_) = json.loads((tmp_path / "o" / "manifest.json").read_text("utf-8"))
    assert entry["references"] == ["../refs/s1/0.wav", "../refs/s2/0.wav"]
    assert entry["systems"] == {"A": ["../outs/0/s1.wav", "../outs/0/s2.wav"]}
    assert entry["sources"] == ["s1", "s2"]
    monkeypatch.chdir(tmp_path / "o")  # paths hold wherever it is read from
    assert len(load_manifest("manifest.json")) == 3
    assert cli.main(["evaluate", "manifest.json", "--out", str(tmp_path / "p"), *QUICK]) == 0
    for name in ("scores.csv", "summary.csv"):
        assert (tmp_path / "o" / name).read_bytes() == (tmp_path / "p" / name).read_bytes()
    file = tmp_path / "kept" / "m.json"
    assert cli.main([*folders, "--out", str(tmp_path / "q"), "--write-manifest", str(file)]) == 0
    assert len(load_manifest(file)) == 3


def test_what_was_understood_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refs, outs = corpus_on_disk(tmp_path)
    options = ["--out", str(tmp_path / "o"), "--encoder", "mel", "--bank-size", "5"]
    assert cli.main(["evaluate", "--references", refs, "--system", outs, *options]) == 0
    told = capsys.readouterr().err
    assert "references: a folder per source: 3 mixtures of the 2 sources 's1', 's2'" in told
    assert "system 'outs': a folder per mixture" in told


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "nothing to score"),
        (["--references", "r"], "nothing to score"),
        (["m.json", "--references", "r"], "exclude each other"),
        (["--references", "r", "--system", "A=a", "A=b"], "(twice)"),
        (["--references", "r", "--system", "=a"], "must be NAME=DIR"),
        (["--references", "nowhere", "--system", "A=a"], "'nowhere' does not exist"),
    ],
)
def test_wrong_use_of_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert cli.main(["evaluate", *given, "--out", str(tmp_path / "o"), *QUICK]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
