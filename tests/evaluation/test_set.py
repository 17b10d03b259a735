"""Whole test sets: means, failures, resuming, excerpts."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from separations import entries_of, save_manifest, score_set, small_mapss, write, write_manifest
from waveforms import leaky, tones

from torch_mapss import MAPSS, compare, evaluate, evaluate_set
from torch_mapss.audio import shift
from torch_mapss.evaluation import cli, console, io, tables
from torch_mapss.evaluation import run as runs
from torch_mapss.evaluation.commands import arguments
from torch_mapss.evaluation.results import load_results
from torch_mapss.evaluation.results_folder import frames_path, read_frames
from torch_mapss.evaluation.results_text import results_text
from torch_mapss.score_table import SCORES

TABLES = ("scores.csv", "items.csv", "summary.csv")


def evaluate_command(path: Path, out: Path, *options: str) -> int:
    quick = ("--encoder", "mel", "--bank-size", "10", "--measures", "separation")
    return cli.main(["evaluate", str(path), "--out", str(out), *quick, *options])


def same_tables(folder: Path, other_folder: Path) -> bool:
    return all(
        (folder / name).read_bytes() == (other_folder / name).read_bytes() for name in TABLES
    )


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every mixture that is prepared."""
    calls: list[int] = []
    prepare = MAPSS.prepare
    monkeypatch.setattr(MAPSS, "prepare", lambda *a, **k: calls.append(1) or prepare(*a, **k))
    return calls


def check_aggregation(out: Path) -> None:
    """Sources to items to sets, redone from the tables on disk."""
    scores, items, summary = (pd.read_csv(out / name) for name in TABLES)
    names = [name for name in SCORES if name in scores]
    keys = ["mixture_id", "system"]
    for table, below, by in ((items, scores, keys), (summary, items, keys[1:])):
        expected = [group_rows[names].mean() for _, group_rows in below.groupby(by, sort=False)]
        np.testing.assert_allclose(table[names], expected, rtol=1e-8)
    for state, column in (("ok", "scored"), ("undefined", "undefined"), ("failed", "failed")):
        counts = [
            (states == state).sum() for _, states in items.groupby("system", sort=False)["status"]
        ]
        assert list(summary[column]) == counts
    assert list(items["estimates"]) == list(scores.groupby(keys, sort=False).size())


def test_means_can_be_redone_from_the_tables(results):
    check_aggregation(Path(results.folder))
    summary = results.summary.set_index("system")
    good, bad = (summary.loc[name, ["ps", "clearance"]] for name in ("good", "bad"))
    assert (good > bad).all()
    # A mixture counts once, however many of its sources are estimated.
    assert [(row.scored, row.estimates) for row in summary.itertuples()] == [(3, 6), (3, 5)]
    over_rows = results.scores.groupby("system")["ps"].mean()
    assert summary.loc["bad", "ps"] != pytest.approx(over_rows["bad"], rel=1e-6)


def test_the_public_call_scores_a_set_for_compare(manifest, tmp_path, prepared, monkeypatch):
    monkeypatch.chdir(manifest.parent)
    settings: dict[str, Any] = {"out": tmp_path, "mapss": small_mapss()}
    results = evaluate_set(entries_of(manifest), **settings, measures="decomposition")
    assert len(prepared) == 3  # once for all systems of a mixture
    assert list(compare(results).systems) == ["good", "bad"]
    with pytest.raises(TypeError, match="banksize"):
        evaluate_set(entries_of(manifest), **settings, banksize=3)


def test_the_summary_is_printed_and_settings_can_be_used_again(manifest, tmp_path, capsys):
    path = save_manifest(manifest.parent, entries_of(manifest)[1:2], "one.json")
    assert evaluate_command(path, out := tmp_path / "a") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["system", "PS", "SI-SDR", "(dB)", "scored", "undefined", "failed"]
    name, _, _, *counts = lines[2].split()
    assert (name, counts) == ("good", ["1", "0", "0"])
    assert "pm" not in pd.read_csv(out / "scores.csv")
    repeated = ["evaluate", str(path), "--out", str(tmp_path / "c"), "--quiet"]
    assert cli.main([*repeated, "--config", str(out / "settings.json")]) == 0
    assert same_tables(out, tmp_path / "c")
    (config := tmp_path / "seed.yaml").write_text("seed: 3\n")
    cases = (("--measures", "match"), "measures"), (("--permute",), "permute")
    for options, name in (*cases, (("--config", str(config)), "separation_bank")):
        assert evaluate_command(path, out, *options) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert all(
            fragment in printed for fragment in ("holds results made with different settings", name)
        )
    assert same_tables(out, tmp_path / "c")


def test_permutation_rates_channels_and_equal_systems(manifest, tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(manifest.parent / "m1", folder / "m1")
    high = leaky(tones(seconds=0.3, seed=1, rate=48_000), 0.1)
    for name, wave in zip("ab", high):
        write(folder / "high" / f"{name}.wav", torch.stack([wave, wave]), 48_000)
    shutil.copytree(folder / "high", folder / "copy")
    (entry,) = entries_of(manifest)[1:2]
    entry["systems"] = {name: [f"{name}/b.wav", f"{name}/a.wav"] for name in ("high", "copy")}
    outcome = score_set(save_manifest(folder, [entry]), tmp_path, permute=True, bounds=True)
    rows = outcome.scores
    assert list(rows["source"]) == ["b", "a"] * 2
    assert list(rows["estimate"][:2]) == ["high/b.wav", "high/a.wav"]
    assert (rows["ps_tail"] > 0).all()
    assert (rows["clearance_tail"] >= 0).all()
    assert {*zip(rows["estimate_rate"], rows["reference_rate"])} == {(48_000, 16_000)}
    assert all("2 channels averaged, resampled from 48000" in notes for notes in rows["notes"])
    assert "above 8 kHz is discarded" in results_text(outcome)
    assert any("'high' and 'copy' have the same files" in line for line in outcome.warnings)


def test_failures_keep_the_others_and_are_tried_again(tmp_path, prepared):
    path, out = write_manifest(tmp_path / "set", 2, ("one", "two")), tmp_path / "out"
    settings = {"measures": ("decomposition", "separation")}
    reference, estimate = (tmp_path / "set" / f"m1/{kind}/a.wav" for kind in ("truth", "one"))
    kept = reference.read_bytes(), estimate.read_bytes()
    reference.write_bytes(b"corrupt")
    failures = score_set(path, out, **settings).failures
    assert ["truth/a.wav" in line for line in failures] == [True] * 2  # both systems
    reference.write_bytes(kept[0])
    for wave, fragments in (
        (torch.where(torch.arange(4800) == 100, math.nan, 0.1), ["m1/one/a.wav"]),
        (torch.ones(4000), ["m1/one/a.wav' has 4000", "has 4800 samples", "trim"]),
    ):
        write(estimate, wave)  # fails its system alone
        second = score_set(path, out, **settings)
        (line,) = second.failures
        assert "system 'one'" in line
        rows = second.scores.reset_index(drop=True)
        assert list(rows["status"]) == ["ok"] * 4 + ["failed"] * 2 + ["ok"] * 2
        assert rows.loc[4:5, ["ps", "clearance"]].isna().all(axis=None)
        assert all(fragment in rows["reason"][4] for fragment in fragments)
        check_aggregation(out)
    estimate.write_bytes(kept[1])
    prepared.clear()
    assert score_set(path, out, **settings).failures == ()
    assert len(prepared) == 1
    fresh = score_set(path, tmp_path / "fresh", **settings).scores["ps"]
    assert same_tables(out, tmp_path / "fresh")
    write(estimate, leaky(tones(seconds=0.3), 0.9)[0])  # a file that changed is scored again
    rescored = score_set(path, out, **settings).scores["ps"]
    assert rescored.iloc[4] != pytest.approx(fresh.iloc[4], rel=1e-3)
    assert list(rescored[:4]) == list(fresh[:4])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSPC])
def test_frames_that_cannot_be_written_fail_or_end_the_run(number, tmp_path, monkeypatch):
    """Invalid for one mixture, or a disk that is full for all: then nothing is noted."""
    path, write_with = write_manifest(tmp_path / "set", 2, ("sys",)), io.write_with
    out, settings = tmp_path / "out", {"measures": "bleed"}

    def failing(name: Any, action: Any) -> None:
        with io.writing(name):
            if os.fspath(name).endswith("m0.npz"):
                raise OSError(number, os.strerror(number))
        write_with(name, action)

    with monkeypatch.context() as patched:
        patched.setattr(io, "write_with", failing)
        if number == errno.EINVAL:
            assert list(score_set(path, out, **settings).items["status"]) == ["failed", "ok"]
        else:
            with pytest.raises(io.WriteError, match=r"m0\.npz' cannot be written: No space left"):
                score_set(path, out, **settings)
            assert not (out / "records").exists()
    assert list(score_set(path, out, **settings).items["status"]) != ["failed", "ok"]
    assert [*read_frames(frames_path(str(out), "m0")).systems] == ["sys"]


def test_an_undefined_mixture_is_no_failure(tmp_path):
    path = write_manifest(tmp_path / "set", 2, ("sys",))
    write(tmp_path / "set" / "m0" / "truth" / "a.wav", torch.zeros(4800))
    with pytest.warns(UserWarning, match="no frame"):
        outcome = score_set(path, tmp_path / "out", measures="separation")
    assert outcome.failures == ()
    assert list(outcome.scores["status"]) == ["undefined"] * 2 + ["ok"] * 2
    check_aggregation(tmp_path / "out")
    assert list(outcome.summary["undefined"]) == [1]


def test_a_file_that_changes_meanwhile_is_a_failure(tmp_path, monkeypatch, capsys):
    path, out = write_manifest(tmp_path, 2, ("good",)), tmp_path / "out"
    load = runs.load_mixture

    def changing(scorer: Any, mixture: Any) -> Any:
        loaded = load(scorer, mixture)
        if mixture.name == "m0":
            write(tmp_path / "m0/good/a.wav", torch.ones(4800))
        return loaded

    with monkeypatch.context() as patched:
        patched.setattr(runs, "load_mixture", changing)
        assert evaluate_command(path, out) == arguments.SOME_FAILED
    assert "torch-mapss: failed: mixture 'm0', system 'good'" in capsys.readouterr().err
    scores = pd.read_csv(out / "scores.csv")
    assert list(scores["status"]) == ["failed", "failed", "ok", "ok"]
    assert "changed during scoring" in scores["reason"][0]
    assert evaluate_command(path, out) == arguments.OK


def test_results_of_other_settings_are_not_overwritten(manifest, results, tmp_path):
    (tmp_path / "scores.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"scores\.csv"):
        score_set(manifest, tmp_path)
    assert (tmp_path / "scores.csv").read_text() == "mine"
    out = tmp_path / "out"
    shutil.copytree(results.folder, out)
    score_set(manifest, out, confidence=0.8, excerpt_seconds=3)  # which nothing uses
    with pytest.raises(ValueError, match="bounds"):
        score_set(manifest, out, bounds=True)


def test_lost_and_added_mixtures_are_scored(manifest, results, tmp_path, prepared):
    out, complete = tmp_path / "out", Path(results.folder)
    shutil.copytree(complete, out)
    (out / "scores.csv").unlink()
    (out / "records" / "m0.json").unlink()
    score_set(manifest, out)  # the first mixture is scored last, and comes first
    assert len(prepared) == 1
    assert same_tables(out, complete)


def test_any_mixture_id_is_scored(tmp_path):
    path = write_manifest(tmp_path, 1, ("sys",))
    (entry,) = entries_of(path)
    names = ["漢" * 100, "a/b:c", "a_b_c", "CON", "x" * 300, "Mixture", "mixture"]
    save_manifest(tmp_path, [{**entry, "mixture_id": name} for name in names])
    assert score_set(path, tmp_path / "out", measures="bleed").failures == ()
    results = load_results(tmp_path / "out")
    assert [*results.mixtures] == names
    for name in names:
        assert results.frames(name).systems["sys"].active.shape[0] == 2


def test_names_that_are_no_utf8_are_scored(tmp_path):
    path = write_manifest(tmp_path, 1, ("good",))
    (entry,) = entries_of(path)
    odd = "m0/good/caf\udce9.wav"  # the byte E9, as Python has it
    try:
        (tmp_path / entry["systems"]["good"][0]).rename(tmp_path / odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    entry["systems"]["good"][0] = odd
    entry["mixture_id"] = "\ud800"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    for _ in range(2):  # scored, then found to be scored
        outcome = score_set(path, tmp_path / "out", measures="bleed")
        assert (outcome.failures, len(outcome.scores)) == ((), 2)


def test_names_in_two_unicode_forms_are_one(tmp_path):
    """System names of a manifest, and paths written in another form than the files have."""
    path = write_manifest(tmp_path, 2, ("é",))
    entries = entries_of(path)
    for entry, form in zip(entries, ("NFC", "NFD")):
        (paths,) = entry["systems"].values()
        spelled = [unicodedata.normalize(form, path) for path in paths]
        entry["systems"] = {unicodedata.normalize(form, "é"): spelled}
    outcome = score_set(save_manifest(tmp_path, entries), tmp_path / "out", measures="bleed")
    assert (outcome.failures, len(outcome.summary)) == ((), 1)
    for mixture in outcome.mixtures:  # verify, worst and the page open them as well
        assert Path(outcome.audio(mixture).references[0]).exists()
        assert Path(outcome.audio(mixture).estimates["é"][0]).exists()


def test_excerpts_come_with_standard_errors_and_an_estimate_of_time(tmp_path, monkeypatch, capsys):
    songs = write_manifest(tmp_path / "songs", 2, seconds=5.0)
    monkeypatch.setattr(runs, "LONG_S", 5.0)
    complete = score_set(songs, tmp_path / "whole", measures="decomposition", quiet=False)
    (line,) = [text for text in capsys.readouterr().err.splitlines() if "this machine" in text]
    assert "2 mixtures, 2 sources, 2 systems, 10 s of audio" in line
    assert "--excerpts 8" in line
    settings = {"measures": "decomposition", "excerpts": 4, "excerpt_seconds": 1}
    excerpted = score_set(songs, tmp_path / "some", **settings)
    rows, items = excerpted.scores, excerpted.items
    assert rows["frames"].between(1, 4 * 50).all()
    assert (rows["clearance_se"] > 0).all()
    assert all("excerpts scored (s): " in notes for notes in rows["notes"])
    assert list(rows["notes"][:2]) == list(rows["notes"][2:4])  # the same of all systems
    errors = (items["clearance"] - complete.items["clearance"]).abs()
    assert (errors < 6 * items["clearance_se"] + 0.01).all()
    standard_errors = items.loc[items["system"] == "good", "clearance_se"]
    expected = math.sqrt((standard_errors**2).sum()) / 2
    assert excerpted.summary["clearance_se"].iloc[0] == pytest.approx(expected, rel=1e-6)
    assert "±" in results_text(excerpted)
    items.loc[items.index[0], "clearance_se"] = math.nan  # of a mixture with one excerpt
    summary_errors = tables.summary_table(items, rows, 16_000).set_index("system")["clearance_se"]
    assert summary_errors["good"] == pytest.approx(standard_errors.iloc[1] / math.sqrt(2), rel=1e-6)
    frames = load_results(tmp_path / "some").frames("m0")
    assert (np.diff(frames.times) > 0).all()
    assert frames.times[-1] > 2.0


def test_systems_of_a_long_mixture_share_a_pass(tmp_path, prepared, monkeypatch, capsys):
    path = write_manifest(tmp_path / "set", 1, ("A", "short", "B"), 3.0)
    write(tmp_path / "set" / "m0" / "short" / "a.wav", torch.ones(20_000))
    monkeypatch.setattr(console, "INTERVAL", 0.01)
    settings: dict[str, Any] = {"measures": ("decomposition", "separation")}
    outcome = score_set(path, tmp_path / "out", small_mapss(segment=1.0), **settings, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert any("scoring:  67%, 1 of 1: m0," in line and "left" in line for line in lines), lines
    assert len(prepared) == 1  # not once more for the other system
    assert list(outcome.items["status"]) == ["ok", "failed", "ok"]
    assert "20000 samples" in outcome.failures[0]
    assert outcome.settings["segment"] == 1.0
    complete = score_set(path, tmp_path / "whole", **settings).items
    for name in ("ps", "clearance", "fidelity"):
        np.testing.assert_allclose(outcome.items[name], complete[name], atol=1e-3)
    told: list[tuple[int, int]] = []
    truth = tones(seconds=3.0)
    settings |= {"mapss": small_mapss(segment=1.0), "on_segment": lambda *state: told.append(state)}
    evaluate(estimates=leaky(truth), references=truth, **settings)
    assert told[:4] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert MAPSS("mel", segment="auto").config.segment == 60


def test_each_channel_may_be_scored():
    """Left and right swapped lower the score only if each channel is scored."""
    left = tones(2, 0.5, seed=1)
    right = tones(2, 0.5, seed=2).flip(0)
    stereo, mapss = torch.stack([left, right], 1), small_mapss()  # (S, C, T)
    settings: dict[str, Any] = {"mapss": mapss, "measures": ("decomposition", "separation")}
    of_channels = settings | {"references": stereo, "channels": "each"}
    assert evaluate(estimates=stereo, **of_channels).rows[0].clearance == 1.0
    assert evaluate(estimates=stereo.flip(1), **of_channels).rows[0].clearance < 0.9
    mono = evaluate(estimates=stereo.flip(1).mean(1), references=stereo.mean(1), **settings)
    assert mono.rows[0].clearance == pytest.approx(1.0, abs=1e-6)
    left_alone = evaluate(estimates=leaky(left), references=left, **settings)
    two_channels, twice = (torch.stack([waves] * 2, 1) for waves in (leaky(left), left))
    report = evaluate(estimates=two_channels, **of_channels | {"references": twice})
    assert report.rows[0].ps == pytest.approx(left_alone.rows[0].ps, rel=1e-6)
    with pytest.raises(ValueError, match="channels"):
        evaluate(estimates=[left[0], right], **of_channels)


def test_hidden_reference_is_not_a_finding():
    """Only a system that is the reference by mistake is named."""
    text = "the same as the reference, sample by sample"
    records = [
        {
            "rows": [{"mixture_id": "m", "system": system}],
            "findings": [("same", text), ("silent", "x")],
        }
        for system in ("control:ref", "mistaken")
    ]
    silent, same = tables.finding_lines(records)
    assert "in 1 of 2 pairs of mixture and system ('mistaken')" in same
    assert "in 2 of 2" in silent


def test_names_in_another_unicode_form_are_those_of_the_first_run(tmp_path):
    path, out = write_manifest(tmp_path / "set", 2, ("é",), 0.2), tmp_path / "out"
    entries = json.loads(path.read_text(encoding="utf-8"))
    for form in ("NFC", "NFD"):
        system = unicodedata.normalize(form, "é")
        for entry, name in zip(entries, ("ü0", "ü1")):
            entry["mixture_id"] = unicodedata.normalize(form, name)
            entry["systems"] = {system: next(iter(entry["systems"].values()))}
        # The second run adds the second mixture.
        listed = entries[:1] if form == "NFC" else entries
        results = score_set(save_manifest(tmp_path / "set", listed), out, measures="bleed")
    assert results.systems == ("é",)
    assert len(results.items) == 2
    for name in results.scores["mixture_id"]:
        assert [*results.frames(name).systems] == ["é"]


def test_a_report_is_saved_under_the_spelling_of_the_folder(tmp_path):
    truth = tones(seconds=0.3)
    report = evaluate(estimates=leaky(truth), references=truth, mapss=small_mapss())
    for form in ("NFC", "NFD"):
        report.save(tmp_path / "out", system=unicodedata.normalize(form, "é"))
    assert load_results(tmp_path / "out").systems == ("é",)


def test_excerpts_are_the_same_for_all_systems_whatever_their_length(tmp_path):
    """They are drawn from the references; a shorter system has the same, as far as it goes."""
    path = write_manifest(tmp_path / "set", 1, ("good", "bad"), 5.0)
    for name, wave in zip("ab", leaky(tones(seconds=5.0))[:, :75_000]):
        write(tmp_path / "set/m0/bad" / f"{name}.wav", wave)
    settings = {"measures": "bleed", "trim": True, "excerpts": 3, "excerpt_seconds": 1.0}
    notes = score_set(path, tmp_path / "out", **settings).scores["notes"]
    drawn = [text.rpartition("excerpts scored (s): ")[2] for text in notes]
    begins = {tuple(span.partition("-")[0] for span in text.split(", ")) for text in drawn}
    assert len(begins) == 1


@pytest.mark.parametrize("together", [True, False])
def test_frames_of_a_system_that_ends_before_all_excerpts_keep_their_times(together, tmp_path):
    """It is scored as a whole, at other times than the systems with excerpts."""
    path = write_manifest(tmp_path / "set", 1, ("good", "bad"), 5.0)
    for name, wave in zip("ab", leaky(tones(seconds=5.0))[:, :8000]):
        write(tmp_path / "set/m0/bad" / f"{name}.wav", wave)
    settings = {"measures": "decomposition", "trim": True, "excerpts": 1, "excerpt_seconds": 1.0}
    (entry,) = entries_of(path)
    frames_alone = {}
    for system in ("good", "bad"):
        alone = {**entry, "systems": {system: entry["systems"][system]}}
        alone_path = save_manifest(tmp_path / "set", [alone], f"{system}.json")
        frames_alone[system] = score_set(alone_path, tmp_path / system, **settings).frames("m0")
        if not together:
            score_set(alone_path, tmp_path / "out", **settings)
    stored = score_set(path, tmp_path / "out", **settings).frames("m0")
    assert (np.diff(stored.times) > 0).all()
    for system, (times, systems) in frames_alone.items():
        is_scored = stored.systems[system].active.any(0)
        assert set(stored.times[is_scored]) == set(times[systems[system].active.any(0)])
    assert stored.times[stored.systems["bad"].active.any(0)].max() < 0.5
    assert stored.times[stored.systems["good"].active.any(0)].min() > 0.5


def test_delay_within_a_frame_is_reported_for_a_set(tmp_path):
    path = write_manifest(tmp_path / "set", 3, ("late", "prompt"))
    for k in range(3):
        for name, wave in zip("ab", shift(leaky(tones(2, 0.3, seed=k)), -160)):
            write(tmp_path / "set" / f"m{k}" / "late" / f"{name}.wav", wave)
    results = score_set(path, tmp_path / "out", measures="bleed")
    (text,) = [line for line in results.warnings if line.startswith("lag:")]
    assert "in 3 of 6 pairs of mixture and system ('late')" in text
    assert "10.0 ms late" in text
    assert '--align (align="shift") removes it' in text
