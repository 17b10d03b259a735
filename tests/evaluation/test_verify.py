"""Protocol ids, and results that are changed in every place that is looked at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from checkpoints import pickle_weights, write_checkpoint
from separations import save_manifest, score_set, small_mapss, write, write_all, write_manifest
from waveforms import bursts, leaky, tones

from torch_mapss import MAPSS, Distortion, DistortionBank
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.protocol import protocol_id, settings_of, weights_hash
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.settings import ScoringSettings
from torch_mapss.evaluation.verify import Verification, verify

QUICK = ("--encoder", "mel", "--bank-size", "5", "--quiet")


@pytest.fixture(scope="module")
def results_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a test set and its results."""
    root = tmp_path_factory.mktemp("whole")
    manifest = write_manifest(root / "set", 2)
    assert cli.main(["evaluate", str(manifest), "--out", str(root / "out"), *QUICK]) == 0
    return root


@pytest.fixture
def copied(results_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(results_folder, tmp_path / "copy")
    return tmp_path / "copy"


def command(folder: Path, *options: str) -> int:
    root = ("--audio-root", str(folder / "set"))
    return cli.main(["verify", str(folder / "out"), *root, *options])


def differs(folder: Path, capsys: Any, *options: str) -> str:
    assert command(folder, *options) == 1
    return capsys.readouterr().out


def test_untouched_results_pass(results_folder, capsys):
    assert command(results_folder) == 0
    printed = capsys.readouterr().out
    for told in ("12 audio files compared by SHA-256, 8 rows", "6 estimates", "Nothing differs."):
        assert told in printed


@pytest.mark.parametrize(
    "options", [("--excerpts", "2"), ("--sample-frames", "30"), ("--channels", "each")]
)
def test_results_of_a_share_of_the_signals_pass(options, tmp_path, capsys):
    truth = bursts(4.0)
    for kind, waves in (("truth", truth), ("one", leaky(truth, 0.4))):
        write_all(tmp_path / "set" / kind, waves)
    paths = {kind: [f"{kind}/{source}.wav" for source in "ab"] for kind in ("truth", "one")}
    entry = {"mixture_id": "m", "references": paths["truth"], "systems": {"one": paths["one"]}}
    path = save_manifest(tmp_path / "set", [entry])
    (config := tmp_path / "config.yaml").write_text("excerpt_seconds: 1\n")
    how = ("--encoder", "mel", "--bank-size", "10", "--config", str(config), "--quiet", *options)
    assert cli.main(["evaluate", str(path), "--out", str(tmp_path / "out"), *how]) == 0
    assert command(tmp_path, "--pairs", "1") == 0
    printed = capsys.readouterr().out
    assert "Nothing differs." in printed
    assert ("bleed is of whole signals" in printed) == ("--excerpts" in options)
    (record_path := tmp_path / "out" / "records" / "m.json").write_text(
        record_path.read_text().replace('"bleed_db": -', '"bleed_db": -1')
    )
    printed = differs(tmp_path, capsys, "--pairs", "1")  # by scoring again
    assert "scored again, mixture 'm', system 'one', source 'a', bleed_db" in printed


def test_other_audio(copied, capsys):
    write(copied / "set/m1/bad/b.wav", leaky(tones(seconds=0.3), 0.9)[1])
    (copied / "set/m0/truth/a.wav").unlink()
    printed = differs(copied, capsys, "--pairs", "4")
    for told in (
        "SHA-256 of 'm1/bad/b.wav'",
        "differs: 1 of 12 audio files cannot be read, first 'm0/truth/a.wav'",
        "mixture 'm0', system 'good', scored again",
        "scored again, mixture 'm1', system 'bad', source 'b', ps",
    ):
        assert told in printed
    (moved := copied / "set").rename(copied / "elsewhere")
    moved.mkdir()
    printed = differs(copied, capsys, "--pairs", "0")
    assert "SHA-256 of" not in printed  # what is missing is told once, and first
    told = "differs: 12 of 12 audio files cannot be read, first 'm0/bad/a.wav'"
    assert printed.splitlines()[1].startswith(told)
    assert f"expected below {str(moved)!r}" in printed
    assert "--audio-root DIR" in printed


def test_tables_that_were_touched_up(copied, capsys):
    for name, column, changed in (("scores", "ps", 0.999), ("summary", "clearance", 0.1)):
        table = pandas.read_csv(path := copied / f"out/{name}.csv")
        table.loc[0, column] = changed
        table.to_csv(path, index=False, na_rep="nan")
    printed = differs(copied, capsys, "--pairs", "0")
    where = "scores.csv, mixture 'm0', system 'good', source 'a', ps"
    assert f"differs: {where}: 0.999 in the results, 0." in printed
    assert "differs: summary.csv, system 'good', clearance: 0.1 in the results, 0." in printed
    assert printed.count("differs: ") == 2
    pandas.read_csv(copied / "out/items.csv").tail(-1).to_csv(copied / "out/items.csv")
    (copied / "out/summary.csv").write_text("")
    printed = differs(copied, capsys, "--pairs", "0")
    assert "items.csv: lacks 1 of 4 rows of the records" in printed
    assert "summary.csv' should be an exported table of results, but is empty" in printed
    # A table that went through a spreadsheet program is the same table.
    table = pandas.read_csv(copied / "out/scores.csv")
    (copied / "out/summary.csv").unlink()
    (copied / "out/items.csv").unlink()
    table.loc[0, "ps"] = load_results(copied / "out").scores["ps"].iloc[0]
    text = table.to_csv(index=False, sep=";", decimal=",", na_rep="nan")
    (copied / "out/scores.csv").write_text(text, encoding="utf-8-sig")
    assert command(copied, "--pairs", "0") == 0


def test_records_that_were_touched_up(copied, capsys):
    path = copied / "out/records/m0.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = stored["systems"]["good"]["rows"]
    rows[0]["ps"] = 0.999
    path.write_text(json.dumps(stored), encoding="utf-8")
    printed = differs(copied, capsys, "--pairs", "0")
    told = "differs: records, mixture 'm0', system 'good', source 'a', ps: 0.999 in the results"
    assert told in printed
    rows[0] |= {"status": "undefined", "reason": "silent"}
    path.write_text(json.dumps(stored), encoding="utf-8")
    printed = differs(copied, capsys, "--pairs", "0")  # every reason is told
    assert "1 of 8 estimates have no score" in printed
    assert "1 undefined: silent" in printed


def test_frames_that_were_touched_up(copied, capsys):
    path = Path(copied / "out/frames/m1.npz")
    frames = dict(np.load(path))
    system_index = frames["systems"].tolist().index("bad")
    names = [
        name
        for name in frames
        if name.startswith(f"{system_index}.") and frames[name].dtype == "f4"
    ]
    assert len(names) >= 8
    for name in names:
        frames[name][1] = 0.9 * frames[name][1] - np.float32(0.01)
    np.savez(path, **frames)
    printed = differs(copied, capsys, "--pairs", "0")
    for name in ("clearance", "fidelity", "ps", "ps_pesq", "pm", "log_pm", "log_pm_compressed"):
        assert f"system 'bad', source 'b', {name}: " in printed
    path.unlink()
    assert "cannot be read as frame scores" in differs(copied, capsys, "--pairs", "0")


def test_settings_that_were_touched_up(copied, capsys):
    path = copied / "out" / "settings.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    # Options of bounds without any are no difference.
    stored["options"] |= {"confidence": 0.95, "tail": "concentration", "bounds": False}
    path.write_text(json.dumps(stored), encoding="utf-8")
    assert command(copied, "--pairs", "1") == 0
    assert "Nothing differs." in capsys.readouterr().out
    stored["settings"]["alpha"] = 0.5
    path.write_text(json.dumps(stored), encoding="utf-8")
    printed = differs(copied, capsys)
    assert "protocol id of the settings" in printed
    assert "setting alpha: 0.5 in the results, 1.0 here" in printed


def test_results_without_any_score_are_nothing_to_compare(tmp_path, capsys):
    manifest = write_manifest(tmp_path / "set", 1, ("good",))
    write(tmp_path / "set/m0/good/a.wav", tones(1, 0.5)[0])  # longer than its reference
    assert cli.main(["evaluate", str(manifest), "--out", str(tmp_path / "out"), *QUICK]) == 1
    capsys.readouterr()
    for options in ((), ("--pairs", "0")):
        printed = differs(tmp_path, capsys, *options)
        assert "nothing is verified" in printed
        assert "2 of 2 estimates have no score" in printed
        assert "Nothing differs" not in printed


def test_many_differences_are_counted():
    verification = Verification([f"file {k}: x" for k in range(50)], 0, 1).summary()
    assert "differs: file 19: x\nand 30 more differences." in verification


def test_results_of_python_need_a_scorer(tmp_path, capsys, monkeypatch):
    manifest = write_manifest(tmp_path / "set", 1)
    score_set(manifest, tmp_path / "out")
    assert command(tmp_path) == 2
    assert "made in Python" in capsys.readouterr().err
    assert command(tmp_path, "--pairs", "0") == 0
    results = load_results(tmp_path / "out")
    unlike = verify(results, lambda: small_mapss(6), pairs=1)
    assert any(
        difference.startswith("setting match_bank.size: 5 in") for difference in unlike.differences
    )
    assert unlike.scored == 0
    assert any("scored again" in note for note in unlike.notes)
    stored = json.loads((path := tmp_path / "out" / "settings.json").read_text())
    path.write_text(json.dumps({**stored, "options": {}}))  # as of a command without options
    monkeypatch.setattr("torch_mapss.evaluation.settings.mapss_of", lambda *_: small_mapss())
    assert command(tmp_path) == 0


def louder(waveform: torch.Tensor, sample_rate: int, amount: float) -> torch.Tensor:
    return torch.tanh(amount * waveform)


def identity(mapss: MAPSS, **changes: Any) -> str:
    return protocol_id({**settings_of(mapss, ScoringSettings()), **changes})


def test_the_id_follows_every_setting_and_nothing_else():
    base = identity(small_mapss())
    assert base == identity(small_mapss())
    assert base == identity(small_mapss(), bounds=True, confidence=0.9)
    assert base == identity(small_mapss(), bounds=True, bounds_convention="derived", tail="b")
    changes: list[dict[str, Any]] = [{"alpha": 0.5}, {"time": 2.0}, {"energy": 0.9}, {"size": 6}]
    changes += [{"convention": "reference"}, {"loudness": -20.0}, {"activity": 0.2}]
    ids = [identity(small_mapss(**change)) for change in (*changes, {"align_polarity": True})]
    ids.append(identity(MAPSS("mel", seed=1)))
    for amount in (2.0, 3.0):  # of a distortion of your own
        member = Distortion("own", "own", louder, {"amount": amount})
        bank = DistortionBank("match", only=("echo",), extra=(member,))
        ids += [identity(MAPSS("mel", match_bank=bank))]
    for asked in ("sample_frames", "permute", "trim"):
        ids.append(identity(small_mapss(), **{asked: 1}))
    assert len({base, *ids}) == len(ids) + 1


@pytest.mark.slow
def test_weights_count_and_not_their_place(tmp_path):
    model = write_checkpoint(tmp_path / "one", "wav2vec2", seed=0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    pickle_weights(tmp_path / "two", model)  # the older format, under the older names
    write_checkpoint(tmp_path / "three", "wav2vec2", seed=1)
    write_checkpoint(tmp_path / "four", "wav2vec2", seed=0, do_normalize=True)
    original, moved, unlike, level = (
        MAPSS(str(tmp_path / name), 1) for name in ("one", "two", "three", "four")
    )
    assert weights_hash(original.encoder) == weights_hash(moved.encoder)
    assert identity(original) == identity(moved)
    different_ids = [identity(unlike), identity(level), identity(MAPSS(str(tmp_path / "one"), 0))]
    different_ids.append(identity(MAPSS(str(tmp_path / "one"), 1, dtype=torch.bfloat16)))
    assert len({identity(original), *different_ids}) == 5
    assert weights_hash(small_mapss().encoder) is None
