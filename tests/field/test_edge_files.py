"""Files, manifests and missing packages.

Corrupt files, kills, resuming, broken manifests in every way and names in the C locale have their
full tests in test_manifest and test_cli; kills at random moments in test_kill.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from edge import leaky, voices
from separations import environment, save_manifest, write, write_manifest

from torch_mapss import evaluate
from torch_mapss.evaluation import cli

QUICK = ("--encoder", "mel", "--bank-size", "6")


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    references = voices()[0]
    return leaky(references), references


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def command(*arguments: Any) -> int:
    try:
        return cli.main([*map(str, arguments), *QUICK])
    except SystemExit as error:
        return int(error.code or 0)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


# --------------------------------------------------------------------------------- audio files


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "WAV"])
def test_formats_need_libsndfile_alone(tmp_path, monkeypatch, pair, mapss, suffix):
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setenv("PATH", "")  # no ffmpeg
    paths = {}
    for kind, waves in zip(("estimates", "references"), pair):
        paths[kind] = [str(tmp_path / f"{kind}{k}.{suffix}") for k in range(2)]
        for path, wave in zip(paths[kind], waves):
            soundfile.write(path, wave.numpy(), 16000)
    report = evaluate(**paths, mapss=mapss)
    expected = evaluate(estimates=pair[0], references=pair[1], mapss=mapss)
    assert report.means()["ps"] == pytest.approx(expected.means()["ps"], abs=0.1)


def test_stereo_at_another_rate_scores_as_mono_by_hand(tmp_path, pair, mapss):
    from torch_mapss.audio.waveforms import resample

    mono, stereo = {}, {}
    for kind, waves in zip(("estimates", "references"), pair):
        for k, wave in enumerate(waves):
            fast = resample(wave, 16000, 44100)
            sides = torch.stack([1.2 * fast, 0.8 * fast])
            stereo.setdefault(kind, []).append(write(tmp_path / f"{kind}{k}s.wav", sides, 44100))
            mono.setdefault(kind, []).append(write(tmp_path / f"{kind}{k}.wav", wave))
    found, expected = evaluate(**stereo, mapss=mapss), evaluate(**mono, mapss=mapss)
    assert found.means()["ps"] == pytest.approx(expected.means()["ps"], abs=2e-2)
    assert found.means()["pm"] == pytest.approx(expected.means()["pm"], abs=2e-2)
    text = found.summary()
    assert "2 channels mixed down to their mean" in text
    assert "resampled from 44100 to 16000 Hz" in text


def test_reference_and_estimate_of_different_rates(tmp_path, pair, mapss):
    from torch_mapss.audio.waveforms import resample

    estimates = [
        write(tmp_path / f"e{k}.wav", resample(wave, 16000, 48000), 48000)
        for k, wave in enumerate(pair[0])
    ]
    references = [write(tmp_path / f"r{k}.wav", wave) for k, wave in enumerate(pair[1])]
    report = evaluate(estimates=estimates, references=references, mapss=mapss)
    row = report.table()[0]
    assert (row["estimate_rate"], row["reference_rate"]) == (48000, 16000)
    plain = evaluate(estimates=pair[0], references=pair[1], mapss=mapss)
    assert report.means()["ps"] == pytest.approx(plain.means()["ps"], abs=2e-2)


def test_equal_names_in_different_folders_are_told_apart(tmp_path, pair, mapss):
    paths = {"estimates": [], "references": []}
    for kind, waves in zip(paths, pair):
        for k, wave in enumerate(waves):
            paths[kind].append(write(tmp_path / kind / f"s{k}" / "x.wav", wave))
    report = evaluate(**paths, mapss=mapss)
    assert len(set(report.sources)) == 2
    report.save(tmp_path / "out")
    assert len({row["source"] for row in rows_of(tmp_path / "out" / "ps.csv")}) == 2


# --------------------------------------------------------------------------------- manifests


def test_a_mixture_of_other_length_is_one_failed_row(tmp_path, capsys):
    path = write_manifest(tmp_path / "set", 3, ("sys",))
    short = tmp_path / "set" / "m1" / "sys" / "a.wav"
    write(short, voices(seconds=0.2)[0, 0])
    assert command("evaluate", path, "--out", tmp_path / "out" / "new" / "deep") == 1
    rows = rows_of(tmp_path / "out" / "new" / "deep" / "scores.csv")
    assert [row["status"] for row in rows] == ["ok"] * 2 + ["failed"] * 2 + ["ok"] * 2
    reason = rows[2]["reason"]
    assert "a.wav" in reason
    assert "3200" in reason
    assert "4800" in reason
    assert rows[2]["ps"] == "nan"
    assert "m1" in told(capsys)


def test_a_corrupt_file_among_ten_is_one_error(tmp_path, capsys):
    path = write_manifest(tmp_path / "set", 10, ("sys",), seconds=0.1)
    (tmp_path / "set" / "m4" / "sys" / "b.wav").write_bytes(b"RIFF no audio")
    assert command("evaluate", path, "--out", tmp_path / "out") == 1
    rows = rows_of(tmp_path / "out" / "items.csv")
    assert [row["status"] for row in rows].count("ok") == 9
    assert next(r for r in rows if r["status"] == "failed")["mixture_id"] == "m4"
    assert "b.wav" in told(capsys)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{not json", "JSON"),
        ("[]", "no mixture"),
        ("", "JSON"),
        ('[{"mixture_id": "a", "systems": {}}]', "lacks 'references'"),
        ("[1, 2]", "2 problems"),
        ("null", "list of mixtures"),
    ],
)
def test_a_manifest_that_cannot_be_run_is_told(tmp_path, capsys, content, words):
    path = tmp_path / "manifest.json"
    path.write_text(content)
    assert command("evaluate", path, "--out", tmp_path / "out") == 2
    assert words in told(capsys)


def test_all_problems_of_a_manifest_at_once(tmp_path, capsys):
    path = write_manifest(tmp_path, 3, ("sys",))
    entries = json.loads(path.read_text())
    del entries[0]["systems"]
    entries[1]["references"][0] = "gone.wav"
    entries[2]["references"] = entries[2]["references"][:1]
    save_manifest(tmp_path, entries)
    assert command("evaluate", path, "--out", tmp_path / "out") == 2
    text = told(capsys)
    for words in ("'systems'", "gone.wav", "at least two"):
        assert words in text


@pytest.mark.parametrize("action", ["score", "evaluate"])
def test_a_file_where_the_folder_should_be(tmp_path, capsys, action):
    path = write_manifest(tmp_path / "set", 1, ("sys",))
    taken = tmp_path / "taken"
    taken.write_text("mine")
    files = [str(tmp_path / "set" / "m0" / "truth" / f"{k}.wav") for k in "ab"]
    given = {
        "evaluate": ["evaluate", path],
        "score": ["score", "--references", *files, "--estimates", *files],
    }[action]
    assert command(*given, "--out", taken) == 2
    text = told(capsys)
    assert "taken" in text
    assert text.count("\n") == 1
    assert taken.read_text() == "mine"


@pytest.mark.slow
def test_names_of_any_language_in_the_c_locale(tmp_path, pair):
    folder = tmp_path / "réf 音源"
    names = ["größe.wav", "声.wav"]
    files = [write(folder / name, wave) for name, wave in zip(names, pair[1])]
    done = subprocess.run(
        [sys.executable, "-m", "torch_mapss", "score", "--references", *files]
        + ["--estimates", *files, "--out", str(tmp_path / "out"), *QUICK],
        env=environment(LC_ALL="C", LANG="C"),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert {row["source"] for row in rows_of(tmp_path / "out" / "scores.csv")} == {"größe", "声"}


# --------------------------------------------------------------------------------- packages


PARTS = {
    "torchaudio": "audio.resample(torch.zeros(2, 900), 44100, 16000)",
    "soundfile": "audio.load_audio('a.wav')",
    "transformers": "load_encoder('wav2vec2-base')",
    "matplotlib": "plots.check_available()",
}
LIGHTNING = {"lightning": "import torch_mapss.lightning"}
SCRIPT = """
import sys
how, folder, parts = sys.argv[1], sys.argv[2], eval(sys.argv[3])
paths = {name: f"{folder}/{name}" for name in parts}
if how == "raising":
    sys.path[:0] = paths.values()
else:
    sys.modules.update(dict.fromkeys(parts))
import torch, torch_mapss
from torch_mapss import MAPSS, audio, load_encoder
from torch_mapss.evaluation import plots
MAPSS("mel").prepare(torch.randn(2, 2000), measures="match")
for name, code in parts.items():
    try:
        exec(code)
    except ImportError as error:
        assert name in str(error) or name == "matplotlib" and "[plot]" in str(error), (name, error)
        assert "install" in str(error), (name, error)
    else:
        raise SystemExit(f"{name}: no error")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("missing", PARTS),
        ("raising", PARTS),
        pytest.param("missing", LIGHTNING, marks=pytest.mark.slow),
        pytest.param("raising", LIGHTNING, marks=pytest.mark.slow),
    ],
)
def test_missing_and_broken_packages_are_named_where_they_are_needed(tmp_path, how, parts):
    write(tmp_path / "a.wav", torch.zeros(800))
    for name in parts:  # there, but built against another torch, say
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").write_text("raise OSError('undefined symbol')\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, str(tmp_path), repr(parts)],
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
