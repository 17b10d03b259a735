"""What a run leaves behind, read back: frames, tables, names, hashes, where the audio lies."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from pandas.testing import assert_frame_equal
from separations import save_manifest, score_set, small_mapss, write, write_manifest
from waveforms import leaky, tones

from torch_mapss import compare, evaluate, evaluate_set
from torch_mapss.evaluation.manifest import load_manifest
from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.results_folder import frames_path
from torch_mapss.evaluation.settings import read_config
from torch_mapss.evaluation.shard import Shard
from torch_mapss.score_table import FRAME_SCORES, SCORES, scores_in

# Without --measures bss.
MEASURED = tuple(name for name, score in SCORES.items() if score.measure != "bss")


def scored(path: Path, out: Path, **options: Any) -> Results:
    score_set(path, out, **options)
    return load_results(out)


@pytest.fixture
def copied(results: Results, tmp_path: Path) -> Path:
    return Path(shutil.copytree(results.folder, tmp_path / "copy"))


def test_rows_and_frames_are_those_of_single_mixtures(manifest, results):
    folder = manifest.parent / "m1"
    truth, made = ([folder / kind / f"{name}.wav" for name in "ab"] for kind in ("truth", "bad"))
    report = evaluate(references=truth, estimates=made, mapss=small_mapss())
    stored_frames = results.frames("m1")
    assert [*stored_frames.systems] == ["good", "bad"]
    np.testing.assert_allclose(stored_frames.times, report.times.numpy())
    frames = stored_frames.systems["bad"]
    np.testing.assert_array_equal(frames.active, report.active.numpy())
    np.testing.assert_array_equal(frames.attributed, [0, 1])
    assert set(frames.scores) == set(FRAME_SCORES)
    for name, values in frames.scores.items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, getattr(report, name).numpy(), rtol=1e-6)
    rows = results.scores.query("mixture_id == 'm1' and system == 'bad'")
    for row, expected in zip(rows_of(rows), report.rows, strict=True):
        for name in results.measures:
            assert row[name] == pytest.approx(expected[name], rel=1e-8, nan_ok=True)
        assert (row["frames"], row["status"]) == (expected.frames, "ok")
        assert row["estimate"] == f"m1/bad/{row['source']}.wav"
    truth = tones(seconds=0.3)  # of the first mixture, where one source is not estimated
    alone = small_mapss()(leaky(truth, 0.5)[1:], truth, attributed=(1,)).utterance()
    (row,) = rows_of(results.scores.query("mixture_id == 'm0' and system == 'bad'"))
    assert (row["source"], row["source_index"]) == ("<b>", 1)
    assert row["ps"] == pytest.approx(alone.ps.item(), rel=1e-6)


def test_rows_are_the_means_of_the_frames(results):
    for row in rows_of(results.scores):
        frames = results.frames(row["mixture_id"]).systems[row["system"]]
        source_index = list(frames.attributed).index(row["source_index"])
        active = frames.active[source_index]
        assert row["frames"] == active.sum()
        foreign = frames.scores["foreign_distance"][source_index][active].astype(float)
        means = {"foreign_distance": foreign.mean(), "log_foreign_distance": np.log(foreign).mean()}
        means |= {n: frames.scores[n][source_index][active].mean() for n in ("ps", "pm", "log_pm")}
        means["clearance"] = np.nanmean(frames.scores["clearance"][source_index])
        for name in means:
            assert row[name] == pytest.approx(means[name], rel=1e-5)


def test_cells_have_the_type_of_their_column(results):
    row, item = rows_of(results.scores)[0], rows_of(results.items)[0]
    for kind, names in (
        (int, ("source_index", "frames", "estimate_rate", "silent")),
        (float, (*MEASURED, "estimate_bandwidth", "lag_ms")),
        (str, ("mixture_id", "source", "estimate")),
    ):
        assert {type(row[name]) for name in names} == {kind}
    assert "ps_tail" not in row
    assert type(rows_of(results.summary)[0]["rates"]) is str
    assert results.measures == MEASURED
    assert (item["references"], item["seconds"]) == (2, pytest.approx(0.3))


def test_names_paths_hashes_and_the_statement(manifest, results):
    assert (results.mixtures, results.systems) == (("m0", "m1", "m2"), ("good", "bad"))
    assert list(results.scores["source"]) == ["Größe", "<b>", "<b>", *"abab" * 2]
    audio = results.audio("m0")
    assert audio.sources == ("Größe", "<b>")
    assert audio.mixture == str(manifest.parent / "m0" / "mix.wav")
    assert audio.estimates["bad"] == (str(manifest.parent / "m0" / "bad" / "b.wav"),)
    assert results.audio("m1").mixture is None
    assert list(results.frames("m0").systems["bad"].attributed) == [1]
    assert len(results.sha256) == 6 + 11  # references, estimates without the null
    for path, digest in results.sha256.items():
        content = (manifest.parent / path).read_bytes()
        assert digest == hashlib.sha256(content).hexdigest()
    text = results.statement()
    assert text.startswith("2 systems on 3 mixtures (0.0 min; 0 pairs failed), protocol ")
    for fragment in (str(results.protocol), "encoder mel", f"torch {torch.__version__}"):
        assert fragment in text


def test_audio_that_moved_is_found(tmp_path):
    path = write_manifest(tmp_path / "one" / "set", 1, ("x",))
    entry = load_manifest(path)[0]
    entry_elsewhere = load_manifest(write_manifest(tmp_path / "y", 1))[0]._replace(name="other")
    results = evaluate_set([entry, entry_elsewhere], out=tmp_path / "both", measures="bleed")
    assert results is not None  # mixtures of several folders
    assert results.audio("m0").references[0] == str(tmp_path / "one/set/m0/truth/a.wav")
    assert results.audio("other").references[0] == str(tmp_path / "y/m0/truth/a.wav")
    scored(path, tmp_path / "one" / "out", measures="bleed")
    (tmp_path / "one").rename(tmp_path / "two")  # together
    for root, expected in ((None, "two/set/m0"), (tmp_path / "three", "three/m0")):
        moved = load_results(tmp_path / "two" / "out", root=root)
        assert moved.audio("m0").references[0] == str(tmp_path / expected / "truth/a.wav")


def test_frames_of_added_lost_and_failed_systems(manifest, results, tmp_path):
    folder, out = tmp_path / "set", tmp_path / "out"
    shutil.copytree(manifest.parent, folder)
    entries = json.loads(manifest.read_text(encoding="utf-8"))[1:2]
    systems = entries[0]["systems"]
    entries[0]["systems"] = {"bad": systems["bad"]}
    of_one_system = scored(save_manifest(folder, entries), out, measures="separation")
    assert [*of_one_system.frames("m1").systems] == ["bad"]
    entries[0]["systems"] = systems
    of_two_systems = scored(save_manifest(folder, entries), out, measures="separation")
    assert [*of_two_systems.frames("m1").systems] == ["good", "bad"]
    path = Path(frames_path(str(out), "m1"))
    path.write_bytes(path.read_bytes()[:100])  # damaged
    with pytest.raises(ValueError, match="cannot be read as frame scores"):
        of_two_systems.frames("m1")
    rescored = scored(folder / manifest.name, out, measures="separation").frames("m1")
    expected = results.frames("m1").systems["bad"].scores["ps"]
    np.testing.assert_array_equal(rescored.systems["bad"].scores["ps"], expected)
    write(folder / "m1/bad/b.wav", torch.zeros(100))
    partly_failed = scored(folder / manifest.name, out, measures="separation")
    assert [*partly_failed.frames("m1").systems] == ["good"]
    assert list(partly_failed.items["status"]) == ["ok", "failed"]
    assert partly_failed.items[["seconds", "ps"]].iloc[1].isna().all()


def test_trimmed_systems_of_unlike_length_share_a_file(tmp_path):
    path = write_manifest(tmp_path / "set", 1)
    write(tmp_path / "set/m0/good/a.wav", leaky(tones(seconds=0.3))[0, :4000])
    frames = scored(path, tmp_path / "out", trim=True, measures="separation").frames("m0")
    good, bad = frames.systems["good"], frames.systems["bad"]
    assert good.scores["ps"].shape == bad.scores["ps"].shape == (2, len(frames.times))
    assert not good.active[:, -2:].any()
    assert bad.active[:, -2:].any()


def test_folders_that_are_no_results_are_refused(manifest, results, copied, tmp_path):
    for folder in (tmp_path / "none", manifest, manifest.parent):
        with pytest.raises(ValueError, match=r"is not a results folder: settings\.json"):
            load_results(folder)
    listed = json.loads((copied / "mixtures.json").read_text())
    for content, message in (({}, "cannot be read as part of results"), (listed, "format 99")):
        (copied / "mixtures.json").write_text(json.dumps({**content, "format": 99}))
        with pytest.raises(ValueError, match=message):
            load_results(copied)
    with pytest.raises(ValueError, match="holds no mixture 'm7'; it holds 'm0', 'm1', 'm2'"):
        results.frames("m7")
    shutil.rmtree(copied / "records")
    (copied / "mixtures.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=r"nothing in .* is scored yet.*resumes where it stopped"):
        load_results(copied)


def test_the_root_of_results_that_were_read_already_can_be_another(results, tmp_path):
    assert load_results(results) is results
    moved = load_results(results, root=tmp_path)
    assert moved.audio("m0").references[0] == str(tmp_path / "m0" / "truth" / "a.wav")
    assert moved.items is results.items


def test_settings_of_results_of_python_are_no_config(folder, manifest):
    with pytest.raises(ValueError, match="made with a mapss= of Python"):
        read_config(folder / "settings.json")
    with pytest.raises(ValueError, match=r"use the same settings \(its mapss=\)"):
        score_set(manifest, folder, small_mapss(loudness=-20.0))


def test_tables_are_exports_and_not_read_back(results, copied):
    for name in ("scores", "items", "summary"):
        (copied / f"{name}.csv").write_text("changed by another program")
    reloaded = load_results(copied)
    for name in ("scores", "items", "summary"):
        assert_frame_equal(getattr(reloaded, name), getattr(results, name))


def test_exports_equal_the_records(results):
    for name in ("scores", "items", "summary"):
        table = pandas.read_csv(Path(results.folder, f"{name}.csv"), keep_default_na=False)
        expected = getattr(results, name)
        assert [*table] == [*expected]
        for column in scores_in(table):
            values = pandas.to_numeric(table[column], errors="coerce")
            np.testing.assert_array_equal(values, expected[column])


def test_a_run_under_way_can_be_read(manifest, results, tmp_path):
    """What is not scored yet is pending; the rest compares."""
    partial = score_set(manifest, tmp_path, shard=Shard(2, 3))
    assert partial.pending == (("m0", "good"), ("m0", "bad"), ("m2", "good"), ("m2", "bad"))
    assert not (tmp_path / "scores.csv").exists()
    partial_results = load_results(tmp_path)
    items_so_far = results.items.query("mixture_id == 'm1'").reset_index(drop=True)
    assert_frame_equal(partial_results.items, items_so_far)
    assert compare(partial_results).measures == compare(results).measures


def contents(folder: Path) -> dict[str, bytes]:
    """All files of results, but for the list that says where the folder lies."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in paths if path.name != "mixtures.json"}


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "another object": lambda content: b'{"systems": {"good": 3}}',
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", ["records/m1.json", "frames/m1.npz"])
def test_damaged_files_of_its_own_are_made_again(manifest, results, copied, file, damage, capsys):
    """They are named, and only their mixture is scored again."""
    contents_before = contents(copied)
    path = copied / file
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    if path.suffix == ".json":
        with pytest.warns(UserWarning, match=r"m1\.json' is damaged"):
            assert {mixture for mixture, _ in load_results(copied).pending} == {"m1"}
    score_set(manifest, copied, quiet=False)
    told = capsys.readouterr().err
    assert ("m1.json' is damaged" in told) or ("2 pairs are scored again, since they lost" in told)
    assert contents(copied) == contents_before


@pytest.mark.parametrize("damage", ["empty", "cut", "zeroed"])
@pytest.mark.parametrize("file", ["settings.json", "mixtures.json"])
def test_without_these_nothing_goes_on(manifest, copied, file, damage):
    """They are named, with what to do."""
    path = copied / file
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    for action in (lambda: score_set(manifest, copied), lambda: load_results(copied)):
        with pytest.raises(ValueError, match=rf"{file}' cannot be read.*choose another folder"):
            action()
