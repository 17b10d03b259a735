"""Folders as test sets lay them out: what is understood, and what is refused."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from separations import write
from waveforms import tones

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.folders import read_folders
from torch_mapss.evaluation.manifest import ManifestError, Mixture

SONGS, STEMS = ("song1", "song2", "song10"), ("bass", "drums", "other", "vocals")
WSJ, EXAMPLES = ("011a_2", "012b_-1", "013c_0"), ("ex_1", "ex_2", "ex_3")
DEEP = ("dev/song1", "dev/song2", "test/song1", "test/song2")


def touch(root: Path, *names: str) -> str:
    """Empty files: pairing looks at names alone."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return str(root)


def grid(outer: Sequence[str], inner: Sequence[str], form: str = "{}/{}.wav") -> list[str]:
    return [form.format(folder, name) for folder in outer for name in inner]


def read(
    root: Path, references: Any, estimates: Any, *forms: str, **options: Any
) -> tuple[Sequence[Mixture], Sequence[str]]:
    """Files of the references and of system A, whose templates are the forms."""
    truth, made = touch(root / "r", *references), touch(root / "a", *estimates)
    if forms:
        truth, made = (f"{root}/{form}" for root, form in zip((truth, made), forms))
    return read_folders(truth, {"A": made}, **options)


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ManifestError) as error:
        read(*arguments, **options)
    return "\n".join(error.value.problems)


# Name -> files of references, files of the system, templates that say the same, mixtures, sources.
LAYOUTS: dict[str, tuple[list[str], list[str], str, Sequence[str], Sequence[str]]] = {
    "musdb": (
        *(grid(SONGS, (*STEMS, "mixture")), grid(SONGS, STEMS)),
        *("{mixture}/{source}.wav|{mixture}/{source}.wav", SONGS, STEMS),
    ),
    "librimix": (
        grid(("s1", "s2", "noise", "mix_clean", "mix_both"), ("1_2", "3_4", "5_6")),
        grid(("s1", "s2"), ("1_2", "3_4", "5_6")),
        *("{source}/{mixture}.wav|{source}/{mixture}.wav", ("1_2", "3_4", "5_6"), ("s1", "s2")),
    ),
    "wsj0-2mix": (
        *(grid(("mix", "s1", "s2"), WSJ), grid(WSJ, ("s1", "s2"))),
        *("{source}/{mixture}.wav|{mixture}/{source}.wav", WSJ, ("s1", "s2")),
    ),
    "asteroid": (
        grid(EXAMPLES, ("s1", "s2", "mixture", "s1_estimate", "s2_estimate")),
        grid(EXAMPLES, ("s1_estimate", "s2_estimate")),
        *("{mixture}/{source}.wav|{mixture}/{source}_estimate.wav", EXAMPLES, ("s1", "s2")),
    ),
    "one folder": (
        *(grid(SONGS, STEMS), grid(SONGS, STEMS, "{}_{}.wav")),
        *("{mixture}/{source}.wav|{mixture}_{source}.wav", SONGS, STEMS),
    ),
    "names with underscores": (
        *(grid(("a_b", "c"), STEMS[1:3], "{}_{}.wav"), grid(("a_b", "c"), STEMS[1:3])),
        *("{mixture}_{source}.wav|{mixture}/{source}.wav", ("a_b", "c"), STEMS[1:3]),
    ),
    "a part twice": (
        grid(SONGS, ("x", "y"), "{0}/{0}-{1}.wav"),
        grid(SONGS, ("x", "y"), "v2-{0}/{1}.flac"),
        "{mixture}/{mixture}-{source}.wav|*-{mixture}/{source}.flac",
        *(SONGS, ("x", "y")),
    ),
    "no names of sources": (
        [*grid(SONGS, ("x", "y", "mixture")), "song1/notes.txt"],
        *(grid(SONGS, ("x", "y"), "{}/{}.flac"), "", SONGS, ("x", "y")),
    ),
    "mixtures in folders": (
        *(grid(DEEP, ("bass", "drums")), grid(DEEP, ("bass", "drums")), ""),
        *(DEEP, ("bass", "drums")),
    ),
    "a folder per source below each mixture": (
        *(grid(SONGS, ("x", "y"), "{}/{}/take.wav"), grid(SONGS, ("x", "y"))),
        *("{mixture}/{source}/*.wav|{mixture}/{source}.wav", SONGS, ("x", "y")),
    ),
    "one mixture": (
        ["drums.wav", "vocals.wav", "mixture.wav"],
        ["drums.wav", "vocals.wav"],
        *("{source}.wav|{source}.wav", ("r",), ("drums", "vocals")),
    ),
}
PLAIN = ("musdb", "librimix", "wsj0-2mix", "no names of sources", "mixtures in folders")


@pytest.mark.parametrize(
    ("name", "template"),
    [*((name, "") for name in PLAIN), *((name, x[2]) for name, x in LAYOUTS.items() if x[2])],
)
def test_layouts_of_test_sets(tmp_path, name, template):
    references, estimates, _, mixture_names, names = LAYOUTS[name]
    mixtures, notes = read(tmp_path, references, estimates, *filter(None, template.split("|")))
    assert tuple(mixture.name for mixture in mixtures) == tuple(mixture_names)
    for mixture in mixtures:
        assert mixture.sources == tuple(names)
        words = (*mixture.name.split("/"),) if name != "one mixture" else ()
        for source, *paths in zip(names, mixture.references, mixture.systems["A"], strict=True):
            for path in map(str, paths):
                assert Path(path).is_file()
                assert all(word in path for word in (source, *words))
    first_mixture = mixtures[0].mixture
    has = name in ("musdb", "wsj0-2mix", "asteroid", "no names of sources", "one mixture")
    assert (first_mixture is not None and "mix" in first_mixture) == has
    told = "".join(notes)
    assert ("ignored: " in told) == any("mix" in path for path in references)
    assert ("'noise'" in told) == (name == "librimix")


def test_enhancement_sets_have_noise_as_second_reference(tmp_path):
    """Clean, noisy, enhanced: noise = noisy - clean."""
    speech, noise = tones(2, 0.3)
    for k in ("1", "2"):
        write(tmp_path / "clean" / f"clean_fileid_{k}.wav", speech, 16_000)
        write(tmp_path / "noisy" / f"book_9_snr5_fileid_{k}.wav", speech + noise, 16_000)
        write(tmp_path / "enh" / f"enh_fileid_{k}.wav", speech + 0.1 * noise, 16_000)
    forms = (f"{tmp_path}/{d}/*_fileid_{{mixture}}.wav" for d in ("clean", "noisy", "enh"))
    clean, noisy, made = forms
    derived = tmp_path / "out" / "noise"
    options = {"noisy": noisy, "derived": str(derived)}
    mixtures, _ = read_folders(clean, {"A": made}, **options)
    assert [m.sources for m in mixtures] == [("speech", "noise")] * 2
    assert mixtures[0].systems["A"][1] is None
    noise_samples, rate = soundfile.read(mixtures[0].references[1])
    assert rate == 16_000
    torch.testing.assert_close(torch.tensor(noise_samples).float(), noise, atol=1e-6, rtol=0)
    stamp = (derived / "1.wav").stat().st_mtime_ns
    read_folders(clean, {"A": made}, **options)
    assert (derived / "1.wav").stat().st_mtime_ns == stamp
    write(tmp_path / "noisy" / "book_9_snr5_fileid_2.wav", noise[:1000], 16_000)
    with pytest.raises(ManifestError, match="mixture '2': noisy and clean differ"):
        read_folders(clean, {"A": made}, **options)
    with pytest.raises(ManifestError, match="--noisy"):
        read_folders(clean, {"A": made})


def test_sources_missing_from_a_system_are_null(tmp_path):
    songs, names = ("a", "b"), ("bass", "drums", "vocals")
    truth = touch(tmp_path / "r", *grid(songs, names))
    complete = touch(tmp_path / "w", *grid(songs, names), "c/bass.wav", "a/other.wav")
    voice = touch(tmp_path / "v", *grid(songs, ["vocals"]))
    mixtures, notes = read_folders(truth, {"whole": complete, "voice": voice})
    assert mixtures[1].systems["voice"] == (None, None, f"{voice}/b/vocals.wav")
    told = "\n".join(notes)
    assert "'voice': no estimate of 'bass', 'drums'" in told
    assert "'whole': 1 mixtures without references" in told


def test_sources_are_chosen_by_name(tmp_path):
    arguments = tmp_path, grid(("s1", "s2", "noise", "mix"), "abc"), grid(("s1", "s2"), "abc")
    for names in (["noise", "s2", "s1"], ["mix", "s2"]):
        mixtures, _ = read(*arguments, sources=names)
        assert mixtures[0].sources == tuple(names)
    assert "'s3'" in refused(*arguments, sources=["s1", "s3"])
    assert "two sources" in refused(*arguments, sources=["s1"])


@pytest.mark.parametrize(
    ("layout", "template"),
    [("{}/{}.wav", None), ("{}/{}/take.wav", "{mixture}/{source}/*.wav")],
)
def test_mixtures_may_have_sources_of_their_own(tmp_path, layout, template):
    """A set whose tracks have different stems, also in a folder each."""
    files = grid(("t1",), ("vocals", "bass"), layout) + grid(("t2",), ("vocals", "guitar"), layout)
    mixtures, notes = read(tmp_path, files, files, *([template] * 2 if template else ()))
    assert [m.sources for m in mixtures] == [("bass", "vocals"), ("guitar", "vocals")]
    (note_on_lack,) = [note for note in notes if "lack" in note]
    assert "'bass' in 1" in note_on_lack
    assert "all have 'vocals'" in note_on_lack
    assert len(notes) == 2


def test_names_in_two_unicode_forms_are_paired(tmp_path):
    decomposed_name, e = (unicodedata.normalize("NFD", text) for text in ("Café", "é"))
    files = grid(("Café", "b", "c"), ("é", "x")), grid((decomposed_name, "b", "c"), (e, "x"))
    mixtures, _ = read(tmp_path, *files, sources=[e, "x"])
    assert len(mixtures) == 3
    for mixture in mixtures:
        assert all(Path(path).exists() for path in (*mixture.references, *mixture.systems["A"]))


PAIRS = grid(("a", "b"), ("x", "y"))
# References, templates, files of the system, words.
REFUSED: dict[str, tuple[list[str], list[str], str, str]] = {
    "gaps": (grid(SONGS, "xy"), grid(SONGS[:1] + ("Song2",), "xy"), "", "lacks 2 of 3|'Song2'"),
    "gap": (
        *(grid(SONGS, "xy"), [*grid(SONGS[:2], "xy"), "song10/x.wav"]),
        *("", "system 'A' lacks 'y' of 'song10'"),
    ),
    "no folder": (PAIRS, PAIRS, "none|", "there is no folder|none"),
    "a file": (PAIRS, PAIRS, "a/x.wav|", "there is no folder|x.wav"),
    "no audio": (["readme.txt"], PAIRS, "", "no audio file"),
    "two ways": (PAIRS, PAIRS, "", "{mixture}/{source}|{source}/{mixture}"),
    "two ways, both usual": (
        *(grid(("s0", "s1"), ("aguitar", "eguitar", "ebass")), PAIRS),
        *("", "{mixture}/{source}|{source}/{mixture}"),
    ),
    "files in one folder": (
        *([f"{k}.wav" for k in range(20)], PAIRS),
        *("", "--references 'DIR/{mixture}_{source}.wav' or 'DIR/{source}.wav'"),
    ),
    "a folder per source below each mixture": (
        *(grid(SONGS, ("vocals", "bass"), "{}/{}/take.wav"), PAIRS),
        *("", "'DIR/{mixture}/{source}/*.wav' or 'DIR/*/{source}/{mixture}.wav'"),
    ),
    "a folder of estimates in another layout": (
        *(grid("ab", ("s1", "s2")), grid("ab", ("s1", "s2"), "{}_{}.wav")),
        *("", "is named like a reference|'DIR/{mixture}_{source}.wav'"),
    ),
    "mixtures alone": (grid("ab", ("mix", "noisy")), PAIRS, "{mixture}/{source}.wav|", "--sources"),
    "template": (
        *(PAIRS, PAIRS, "{mixture}/{source}.flac|"),
        "cannot be read as '{mixture}/{source}.flac', there is 'a/x.wav'",
    ),
    "other names": (
        *(PAIRS, ["u/v.wav", "u/w.wav"], "{mixture}/{source}.wav|"),
        "expected e.g. mixture 'a' with 'x', 'y'",
    ),
    "one name": ([*grid("ab", ("s1", "s2")), "a/s1.flac"], PAIRS, "", "would get the same name"),
    "one name by a star": (
        *(PAIRS, grid("ab", ("x-1", "x-2", "y-1"))),
        *("{mixture}/{source}.wav|{mixture}/{source}-*.wav", "would get the same name"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_input_is_refused(tmp_path, name):
    references, estimates, forms, words = REFUSED[name]
    text = refused(tmp_path, references, estimates, *(forms.split("|") if forms else ()))
    for fragment in words.split("|"):
        assert fragment in text


def test_command_prints_the_detected_layout(tmp_path, capsys):
    for k in range(2):
        for name, wave in zip(("vocals", "drums"), tones(2, 0.3, seed=k)):
            write(tmp_path / "refs" / f"song{k}" / f"{name}.wav", wave)
            write(tmp_path / "outA" / f"song{k}_{name}.wav", wave * 0.9)
    arguments = ["evaluate", "--references", f"{tmp_path}/refs", "--encoder", "mel"]
    arguments += ["--measures", "bleed", "--out", str(tmp_path / "out"), "--system"]
    assert cli.main([*arguments, f"A={tmp_path}/outA/{{mixture}}_{{source}}.wav"]) == 0
    out, err = capsys.readouterr()
    assert "2 mixtures of the 2 sources 'drums', 'vocals'" in err
    assert out.splitlines()[2].split()[0] == "A"
    for arguments_of_case, message in (
        (["A=x", "A=y"], "another name for every system, got A=x, A=y"),
        (["A=x", "--", "m.json"], "either a MANIFEST, or --references"),
    ):
        assert cli.main([*arguments, *arguments_of_case]) == 2
        assert message in capsys.readouterr().err
