"""Folders as test sets lay them out: what is understood, and what is refused."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
import soundfile
import torch
from separations import sources, write

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.folders import read_folders
from torch_mapss.evaluation.manifest import ManifestError

SONGS = ("song1", "song2", "song10")


def touch(root: Path, *names: str) -> str:
    """Empty files: pairing looks at names alone."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return str(root)


def grid(outer: Sequence[str], inner: Sequence[str], form: str = "{}/{}.wav") -> list[str]:
    return [form.format(one, other) for one in outer for other in inner]


def refused(*arguments: object, **options: object) -> str:
    with pytest.raises(ManifestError) as error:
        read_folders(*arguments, **options)  # type: ignore[arg-type]
    return "\n".join(error.value.problems)


# ------------------------------------------------------------------------------------------------
# The layouts of test sets
# ------------------------------------------------------------------------------------------------

STEMS = ("bass", "drums", "other", "vocals")
# Name -> files of references, files of the system, templates that say the same, sources.
LAYOUTS = {
    "musdb": (
        grid(SONGS, (*STEMS, "mixture")),
        grid(SONGS, STEMS),
        ("{mixture}/{source}.wav", "{mixture}/{source}.wav"),
        STEMS,
    ),
    "librimix": (
        grid(("s1", "s2", "noise", "mix_clean", "mix_both"), ("1_2", "3_4", "5_6")),
        grid(("s1", "s2"), ("1_2", "3_4", "5_6")),
        ("{source}/{mixture}.wav", "{source}/{mixture}.wav"),
        ("s1", "s2"),
    ),
    "wsj0-2mix": (
        grid(("mix", "s1", "s2"), ("011a_2", "012b_-1", "013c_0")),
        grid(("011a_2", "012b_-1", "013c_0"), ("s1", "s2")),
        ("{source}/{mixture}.wav", "{mixture}/{source}.wav"),
        ("s1", "s2"),
    ),
    "asteroid": (
        grid(("ex_1", "ex_2", "ex_3"), ("s1", "s2", "mixture", "s1_estimate", "s2_estimate")),
        grid(("ex_1", "ex_2", "ex_3"), ("s1_estimate", "s2_estimate")),
        ("{mixture}/{source}.wav", "{mixture}/{source}_estimate.wav"),
        ("s1", "s2"),
    ),
    "one folder": (
        grid(SONGS, STEMS),
        grid(SONGS, STEMS, "{}_{}.wav"),
        ("{mixture}/{source}.wav", "{mixture}_{source}.wav"),
        STEMS,
    ),
    "names with underscores": (
        grid(("a_b", "c"), ("vocals", "drums"), "{}_{}.wav"),
        grid(("a_b", "c"), ("vocals", "drums")),
        ("{mixture}_{source}.wav", "{mixture}/{source}.wav"),
        ("drums", "vocals"),
    ),
}


@pytest.mark.parametrize("templates", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_test_sets(tmp_path: Path, name: str, templates: bool) -> None:
    references, estimates, forms, names = LAYOUTS[name]
    truth, made = touch(tmp_path / "r", *references), touch(tmp_path / "a", *estimates)
    if templates:
        truth, made = (f"{root}/{form}" for root, form in zip((truth, made), forms))
    corpus = read_folders(truth, {"A": made})
    count = len(estimates) // len(names)
    assert len(corpus.mixtures) == count
    for mixture in corpus.mixtures:
        assert mixture.sources == names
        for source, reference, estimate in zip(
            names, mixture.references, mixture.systems["A"], strict=True
        ):
            for path in (reference, estimate):
                assert path is not None
                assert source in path
                assert mixture.name in path
    if name in ("librimix", "asteroid"):
        assert any("set aside" in note for note in corpus.notes)
    if name == "librimix":
        assert "'noise'" in "".join(corpus.notes)


def test_enhancement_sets_have_noise_as_second_reference(tmp_path: Path) -> None:
    """Clean, noisy, enhanced: noise = noisy - clean."""
    speech, noise = sources(2, 0.3)
    for k in ("1", "2"):
        write(tmp_path / "clean" / f"clean_fileid_{k}.wav", speech, 16_000)
        write(tmp_path / "noisy" / f"book_9_snr5_fileid_{k}.wav", speech + noise, 16_000)
        write(tmp_path / "enh" / f"enh_fileid_{k}.wav", speech + 0.1 * noise, 16_000)
    given = [f"{tmp_path}/{d}/*_fileid_{{mixture}}.wav" for d in ("clean", "noisy", "enh")]
    derived = tmp_path / "out" / "noise"
    corpus = read_folders(given[0], {"A": given[2]}, noisy=given[1], derived=str(derived))
    assert [m.sources for m in corpus.mixtures] == [("speech", "noise")] * 2
    assert corpus.mixtures[0].systems["A"][1] is None
    made, rate = soundfile.read(corpus.mixtures[0].references[1])
    assert rate == 16_000
    torch.testing.assert_close(torch.tensor(made).float(), noise, atol=1e-6, rtol=0)
    stamp = (derived / "1.wav").stat().st_mtime_ns
    read_folders(given[0], {"A": given[2]}, noisy=given[1], derived=str(derived))
    assert (derived / "1.wav").stat().st_mtime_ns == stamp
    write(tmp_path / "noisy" / "book_9_snr5_fileid_2.wav", noise[:1000], 16_000)
    text = refused(given[0], {"A": given[2]}, noisy=given[1], derived=str(derived))
    assert "mixture '2'" in text
    assert "noisy and clean differ" in text
    assert "--noisy" in refused(given[0], {"A": given[2]})


# ------------------------------------------------------------------------------------------------
# What is understood besides
# ------------------------------------------------------------------------------------------------


# Files of references and system, names of the mixtures, sources of the first.
TREES = {
    "folders": (
        [*grid(SONGS, ("x", "y", "mixture")), "song1/notes.txt"],
        grid(SONGS, ("x", "y"), "{}/{}.flac"),
        (SONGS, ("x", "y")),
    ),
    "deeper": (
        grid(("dev/s1", "dev/s2", "test/s1", "test/s2"), "01"),
        grid(("dev/s1", "dev/s2", "test/s1", "test/s2"), "01"),
        (("dev/0", "dev/1", "test/0", "test/1"), ("s1", "s2")),
    ),
    "one mixture": (
        ["drums.wav", "vocals.wav", "mixture.wav"],
        ["drums.wav", "vocals.wav"],
        (("r",), ("drums", "vocals")),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_other_trees(tmp_path: Path, name: str) -> None:
    references, estimates, (mixtures, names) = TREES[name]
    truth, made = touch(tmp_path / "r", *references), touch(tmp_path / "a", *estimates)
    corpus = read_folders(truth, {"A": made})
    assert tuple(mixture.name for mixture in corpus.mixtures) == mixtures
    first = corpus.mixtures[0]
    assert first.source_names == names
    assert (first.mixture is None) == (name == "deeper")
    for source, *paths in zip(names, first.references, first.systems["A"], strict=True):
        assert all(source in path and Path(path).is_file() for path in paths)


def test_what_a_system_lacks_throughout_is_null(tmp_path: Path) -> None:
    songs, names = ("a", "b"), ("bass", "drums", "vocals")
    truth = touch(tmp_path / "r", *grid(songs, names))
    whole = touch(tmp_path / "w", *grid(songs, names), "c/bass.wav", "a/other.wav")
    voice = touch(tmp_path / "v", *grid(songs, ["vocals"]))
    corpus = read_folders(truth, {"whole": whole, "voice": voice})
    assert corpus.mixtures[1].systems["voice"] == (None, None, f"{voice}/b/vocals.wav")
    told = "\n".join(corpus.notes)
    assert "'voice': no estimate of 'bass', 'drums'" in told
    assert "'whole': 1 mixtures without references" in told


def test_sources_are_chosen_by_name(tmp_path: Path) -> None:
    truth = touch(tmp_path / "r", *grid(("s1", "s2", "noise", "mix"), "abc"))
    systems = {"A": touch(tmp_path / "a", *grid(("s1", "s2"), "abc"))}
    for names in (["noise", "s2", "s1"], ["mix", "s2"]):
        chosen = read_folders(truth, systems, sources=names)
        assert chosen.mixtures[0].sources == tuple(names)
    assert "'s3'" in refused(truth, systems, sources=["s1", "s3"])
    assert "two sources" in refused(truth, systems, sources=["s1"])


@pytest.mark.parametrize("layout", ["{}/{}.wav", "{}/{}/take.wav"])
def test_mixtures_may_have_sources_of_their_own(tmp_path: Path, layout: str) -> None:
    """A set whose tracks have different stems, also in a folder each."""
    files = grid(("t1",), ("vocals", "bass"), layout) + grid(("t2",), ("vocals", "guitar"), layout)
    truth, made = touch(tmp_path / "r", *files), touch(tmp_path / "a", *files)
    corpus = read_folders(truth, {"A": made})
    assert [m.sources for m in corpus.mixtures] == [("bass", "vocals"), ("guitar", "vocals")]
    (said,) = [note for note in corpus.notes if "lack" in note]
    assert "'bass' in 1" in said
    assert "all have 'vocals'" in said
    assert len(corpus.notes) == 2


def test_names_in_two_unicode_forms_are_paired(tmp_path: Path) -> None:
    one, other = (unicodedata.normalize(form, "Café Olé") for form in ("NFC", "NFD"))
    truth = touch(tmp_path / "r", *grid((one, "b", "c"), ("é", "x")))
    made = touch(tmp_path / "a", *grid((other, "b", "c"), (unicodedata.normalize("NFD", "é"), "x")))
    corpus = read_folders(truth, {"A": made}, sources=[unicodedata.normalize("NFD", "é"), "x"])
    assert len(corpus.mixtures) == 3
    for mixture in corpus.mixtures:
        assert all(Path(path).exists() for path in (*mixture.references, *mixture.systems["A"]))


def test_a_template_may_name_a_part_twice(tmp_path: Path) -> None:
    truth = touch(tmp_path / "r", *grid(SONGS, ("x", "y"), "{0}/{0}-{1}.wav"))
    made = touch(tmp_path / "a", *grid(SONGS, ("x", "y"), "v2-{0}/{1}.flac"))
    corpus = read_folders(
        f"{truth}/{{mixture}}/{{mixture}}-{{source}}.wav",
        {"A": f"{made}/*-{{mixture}}/{{source}}.flac"},
    )
    first = corpus.mixtures[0]
    assert first.references[0].endswith("song1-x.wav")
    assert str(first.systems["A"][0]).endswith("v2-song1/x.flac")
    touch(tmp_path / "a", "v3-song1/x.flac")
    assert "have one name" in refused(
        f"{truth}/{{mixture}}/{{mixture}}-{{source}}.wav",
        {"A": f"{made}/*-{{mixture}}/{{source}}.flac"},
    )


# ------------------------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------------------------


PAIRS = grid(("a", "b"), ("x", "y"))
# References (below DIR, what follows | is the template), files of the system, words.
REFUSED = {
    "gaps": (
        grid(SONGS, "xy"),
        "",
        grid(("song1", "Song2"), "xy"),
        "lacks 2 of 3 mixtures|'Song2'",
    ),
    "gap": (
        *(grid(SONGS, "xy"), "", [*grid(SONGS[:2], "xy"), "song10/x.wav"]),
        "system 'A' lacks 'y' of 'song10'",
    ),
    "no folder": (PAIRS, "/none", PAIRS, "there is no folder|none"),
    "a file": (PAIRS, "/a/x.wav", PAIRS, "there is no folder|x.wav"),
    "no audio": (["readme.txt"], "", PAIRS, "no audio file"),
    "two ways": (PAIRS, "", PAIRS, "{mixture}/{source}|{source}/{mixture}"),
    "no way": (
        *([f"{k}.wav" for k in range(20)], "", PAIRS),
        "--references 'DIR/{mixture}/{source}.wav'",
    ),
    "template": (PAIRS, "/{mixture}/{source}.flac", PAIRS, "matches the template|'a/x.wav'"),
    "other names": (
        *(PAIRS, "/{mixture}/{source}.wav", ["u/v.wav", "u/w.wav"]),
        "expected e.g. mixture 'a' with 'x', 'y'",
    ),
    "one name": ([*grid("ab", ("s1", "s2")), "a/s1.flac"], "", PAIRS, "have one name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    references, template, estimates, words = REFUSED[name]
    truth, made = touch(tmp_path / "r", *references), touch(tmp_path / "a", *estimates)
    text = refused(f"{truth}{template}", {"A": made})
    for part in words.split("|"):
        assert part in text


def test_the_command_says_what_it_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in range(2):
        for name, wave in zip(("vocals", "drums"), sources(2, 0.3, seed=k)):
            write(tmp_path / "refs" / f"song{k}" / f"{name}.wav", wave)
            write(tmp_path / "outA" / f"song{k}_{name}.wav", wave * 0.9)
    given = ["evaluate", "--references", f"{tmp_path}/refs", "--encoder", "mel"]
    given += ["--measures", "decomposition", "--out", str(tmp_path / "out")]
    assert cli.main([*given, "--system", f"A={tmp_path}/outA/{{mixture}}_{{source}}.wav"]) == 0
    out, err = capsys.readouterr()
    assert "2 mixtures of the 2 sources 'drums', 'vocals'" in err
    assert out.splitlines()[2].split()[0] == "A"
    assert cli.main([*given, "--system", "A=x", "A=y"]) == 2
    assert "(twice)" in capsys.readouterr().err
    assert cli.main([*given, "m.json"]) == 2
    assert "either a MANIFEST, or --references" in capsys.readouterr().err
