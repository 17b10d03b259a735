"""Whole test sets: rows, means, failures, resuming, excerpts."""

from __future__ import annotations

import csv
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
from separations import (
    leaky,
    save_manifest,
    score_set,
    small_mapss,
    sources,
    write,
    write_manifest,
)

from torch_mapss import MAPSS, Distortion, DistortionBank, compare, evaluate, evaluate_set
from torch_mapss.evaluation import cli, io, tables
from torch_mapss.evaluation import run as runs
from torch_mapss.evaluation.commands import options
from torch_mapss.evaluation.measures import COLUMNS
from torch_mapss.evaluation.results import load_results, records

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

QUICK = ("--encoder", "mel", "--bank-size", "5")
TABLES = ("scores.csv", "items.csv", "summary.csv")


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def entries_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))


def evaluate_command(path: Path, out: Path, *given: str) -> int:
    return cli.main(["evaluate", str(path), "--out", str(out), *QUICK, *given])


def same_tables(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("set"), 3)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    score_set(corpus, out)
    return out


# -------------------------------------------------------------------------------- scores and means


def test_rows_are_those_of_single_mixtures(corpus: Path, whole: Path) -> None:
    rows = rows_of(whole / "scores.csv")
    assert [(r["mixture_id"], r["system"], r["source"]) for r in rows] == [
        (f"m{k}", system, source) for k in range(3) for system in ("good", "bad") for source in "ab"
    ]
    folder = corpus.parent / "m1"
    report = evaluate(
        references=[folder / "truth" / f"{name}.wav" for name in "ab"],
        estimates=[folder / "bad" / f"{name}.wav" for name in "ab"],
        mapss=small_mapss(),
    )
    for row, expected in zip(rows[6:8], report.rows):
        assert set(COLUMNS) <= set(row)
        for name in COLUMNS:
            assert float(row[name]) == pytest.approx(expected[name], rel=1e-8, nan_ok=True)
        assert row["frames"] == str(expected.frames)
        assert row["status"] == "ok"
        assert row["estimate"] == f"m1/bad/{row['source']}.wav"


def check_aggregation(out: Path) -> None:
    """Sources to items to sets, redone from the tables on disk."""
    scores, items, summary = (pd.read_csv(out / name) for name in TABLES)
    names = [name for name in COLUMNS if name in scores]
    keys = ["mixture_id", "system"]
    for table, below, by in ((items, scores, keys), (summary, items, keys[1:])):
        expected = [own[names].mean() for _, own in below.groupby(by, sort=False)]
        np.testing.assert_allclose(table[names], expected, rtol=1e-8)
    for state, column in (("ok", "scored"), ("undefined", "undefined"), ("failed", "failed")):
        counts = [(own == state).sum() for _, own in items.groupby("system", sort=False)["status"]]
        assert list(summary[column]) == counts
    assert list(items["estimates"]) == list(scores.groupby(keys, sort=False).size())


def test_means_can_be_redone_from_the_tables(corpus: Path, whole: Path, tmp_path: Path) -> None:
    check_aggregation(whole)
    summary = pd.read_csv(whole / "summary.csv", index_col="system")
    assert list(summary.index) == ["good", "bad"]
    assert list(summary["scored"]) == [3, 3]
    assert (
        summary.loc["good", ["ps", "clearance"]] > summary.loc["bad", ["ps", "clearance"]]
    ).all()
    # A mixture counts once, however many of its sources are estimated.
    entries = [{**e, "systems": {"some": e["systems"]["bad"]}} for e in entries_of(corpus)[:2]]
    entries[1]["systems"]["some"][1] = None
    score_set(save_manifest(corpus.parent, entries, "some.json"), tmp_path)
    check_aggregation(tmp_path)
    (row,) = rows_of(tmp_path / "summary.csv")
    assert (row["scored"], row["estimates"]) == ("2", "3")
    over_rows = pd.read_csv(tmp_path / "scores.csv")["ps"].mean()
    assert float(row["ps"]) != pytest.approx(over_rows, rel=1e-6)


def test_the_public_call_scores_a_set_for_compare(
    corpus: Path, whole: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(corpus.parent)
    calls = []
    prepare = MAPSS.prepare
    monkeypatch.setattr(MAPSS, "prepare", lambda *a, **k: calls.append(1) or prepare(*a, **k))
    entries = entries_of(corpus)
    results = evaluate_set(entries, out=tmp_path, mapss=small_mapss())
    assert results is not None
    assert len(calls) == 3  # once for all systems of a mixture
    expected = load_results(whole)
    for name in ("ps", "log_pm", "clearance"):
        assert list(results.items[name]) == list(expected.items[name])
    assert list(compare(results).systems) == ["good", "bad"]
    with pytest.raises(TypeError, match="banksize"):
        evaluate_set(entries, out=tmp_path, banksize=3)


def test_the_summary_is_printed_and_settings_can_be_used_again(
    corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    path, out = save_manifest(corpus.parent, entries_of(corpus)[:1], "one.json"), tmp_path / "a/b"
    assert evaluate_command(path, out, "--measures", "separation") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["system", "PS", "scored", "undefined", "failed"]
    assert lines[2].split()[0] == "good"
    assert lines[2].split()[-3:] == ["1", "0", "0"]
    assert "pm" not in rows_of(out / "scores.csv")[0]
    again = ["evaluate", str(path), "--out", str(tmp_path / "c"), "--quiet"]
    assert cli.main([*again, "--config", str(out / "settings.json")]) == 0
    assert same_tables(out, tmp_path / "c")
    before = (out / "scores.csv").read_bytes()
    (config := tmp_path / "seed.yaml").write_text("seed: 3\n")
    separation = ("--measures", "separation")
    cases = (((), "measures"), ((*separation, "--permute"), "permute"))
    cases += (((*separation, "--config", str(config)), "separation_bank"),)
    for given, name in cases:
        assert evaluate_command(path, out, *given) == 2
        printed = capsys.readouterr().err
        assert "holds results of other settings" in printed
        assert name in printed
        assert printed.count("\n") == 1
    assert (out / "scores.csv").read_bytes() == before


def test_null_and_permutation(corpus: Path, tmp_path: Path) -> None:
    entries = entries_of(corpus)[:1]
    swapped = entries[0]["systems"]["good"][::-1]
    entries[0]["systems"] = {"half": [None, "m0/good/b.wav"]}
    score_set(save_manifest(corpus.parent, entries, "half.json"), tmp_path / "half")
    (row,) = rows_of(tmp_path / "half" / "scores.csv")
    truth = sources(seconds=0.3)
    alone = small_mapss()(leaky(truth, 0.1)[1:], truth, attributed=(1,)).utterance()
    assert (row["source"], row["source_index"]) == ("b", "1")
    assert float(row["ps"]) == pytest.approx(alone.ps.item(), rel=1e-6)

    entries[0]["systems"] = {"x/y": swapped}
    path = save_manifest(corpus.parent, entries, "swapped.json")
    score_set(path, tmp_path / "swapped", permute=True, bounds=True)
    rows = rows_of(tmp_path / "swapped" / "scores.csv")
    assert [row["source"] for row in rows] == ["b", "a"]
    assert [row["estimate"] for row in rows] == ["m0/good/b.wav", "m0/good/a.wav"]
    assert all(float(row["ps_tail"]) > 0 and float(row["clearance_tail"]) >= 0 for row in rows)


def test_rates_channels_and_equal_systems_are_told(corpus: Path, tmp_path: Path) -> None:
    folder = corpus.parent
    high = leaky(sources(seconds=0.3, rate=48_000), 0.1)
    for name, wave in zip("ab", high):
        write(folder / "high" / f"{name}.wav", torch.stack([wave, wave]), 48_000)
    shutil.copytree(folder / "high", folder / "copy")
    entries = entries_of(corpus)[:1]
    names = ("high", "copy")
    entries[0]["systems"] = {name: [f"{name}/a.wav", f"{name}/b.wav"] for name in names}
    outcome = score_set(save_manifest(folder, entries, "high.json"), tmp_path)
    for row in rows_of(tmp_path / "scores.csv"):
        assert (row["estimate_rate"], row["reference_rate"]) == ("48000", "16000")
        assert "2 channels averaged, resampled from 48000" in row["notes"]
    assert "above 8 kHz is discarded" in outcome.text()
    assert any("'high' and 'copy' have the same files" in line for line in outcome.warnings)


# ------------------------------------------------------------------------------ mixtures that fail


def test_one_bad_mixture_keeps_the_others(tmp_path: Path, capsys: Capture) -> None:
    path = write_manifest(tmp_path / "set", 3, ("sys", "other"))
    short = tmp_path / "set" / "m1" / "sys" / "b.wav"
    write(short, leaky(sources(seconds=0.3))[1, :4000])
    assert evaluate_command(path, tmp_path / "out") == 1
    printed = capsys.readouterr()
    assert "torch-mapss: failed: mixture 'm1', system 'sys'" in printed.err
    rows = [row for row in rows_of(tmp_path / "out" / "scores.csv") if row["system"] == "sys"]
    assert [row["status"] for row in rows] == ["ok", "ok", "failed", "failed", "ok", "ok"]
    for row in rows[2:4]:
        assert math.isnan(float(row["ps"]))
        assert math.isnan(float(row["clearance"]))
        for word in ("m1/sys/b.wav' has 4000", "has 4800 samples", "trim"):
            assert word in row["reason"]
    check_aggregation(tmp_path / "out")
    assert [row["failed"] for row in rows_of(tmp_path / "out" / "summary.csv")] == ["1", "0"]


def test_failures_are_tried_again_and_the_rest_is_not(tmp_path: Path, monkeypatch: Patch) -> None:
    path = write_manifest(tmp_path / "set", 2, ("one", "two"))
    reference, estimate = (tmp_path / "set" / f"m1/{kind}/a.wav" for kind in ("truth", "one"))
    content, wave = reference.read_bytes(), sources(seconds=0.3)[0]
    reference.write_bytes(b"corrupt")
    first = score_set(path, tmp_path / "out")
    assert len(first.failures) == 2  # both systems of the mixture
    assert all("truth/a.wav" in line for line in first.failures)
    reference.write_bytes(content)
    before = estimate.read_bytes()
    write(estimate, torch.where(wave == wave[100], math.nan, wave))  # fails its system alone
    (line,) = score_set(path, tmp_path / "out").failures
    assert "system 'one'" in line
    estimate.write_bytes(before)
    calls = []
    prepare = MAPSS.prepare
    monkeypatch.setattr(MAPSS, "prepare", lambda *a, **k: calls.append(1) or prepare(*a, **k))
    assert score_set(path, tmp_path / "out").failures == ()
    assert len(calls) == 1
    score_set(path, tmp_path / "fresh")
    assert same_tables(tmp_path / "out", tmp_path / "fresh")
    write(estimate, leaky(sources(seconds=0.3), 0.9)[0])  # a file that changed is scored again
    old = rows_of(tmp_path / "fresh" / "scores.csv")
    new = records(score_set(path, tmp_path / "out").scores)
    assert new[4]["ps"] != pytest.approx(float(old[4]["ps"]), rel=1e-3)
    assert [row["ps"] for row in new[:4]] == [float(row["ps"]) for row in old[:4]]


def test_what_cannot_be_written_for_one_mixture_fails_that_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    path, write_with = write_manifest(tmp_path / "set", 2, ("sys",)), io.write_with

    def failing(name: Any, action: Any) -> None:
        with io.writing(name):
            if os.fspath(name).endswith("m0.npz"):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        write_with(name, action)

    monkeypatch.setattr(io, "write_with", failing)
    outcome = score_set(path, tmp_path / "out")
    assert [row["status"] for row in records(outcome.items)] == ["failed", "ok"]


def test_any_mixture_id_is_scored(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("sys",))
    (entry,) = entries_of(path)
    names = ["漢" * 100, "a/b:c", "a_b_c", "CON", "x" * 300, "Mixture", "mixture"]
    save_manifest(tmp_path, [{**entry, "mixture_id": name} for name in names])
    assert score_set(path, tmp_path / "out", measures="bleed").failures == ()
    results = load_results(tmp_path / "out")
    assert [*results.mixtures] == names
    for name in names:
        assert results.frames(name).systems["sys"].active.shape[0] == 2


def test_an_undefined_mixture_is_no_failure(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 2, ("sys",))
    write(tmp_path / "set" / "m0" / "truth" / "a.wav", torch.zeros(4800))
    with pytest.warns(UserWarning, match="no frame"):
        outcome = score_set(path, tmp_path / "out")
    assert outcome.failures == ()
    assert [row["status"] for row in records(outcome.scores)] == ["undefined"] * 2 + ["ok"] * 2
    check_aggregation(tmp_path / "out")
    assert rows_of(tmp_path / "out" / "summary.csv")[0]["undefined"] == "1"


def test_a_file_that_changes_meanwhile_is_a_failure(tmp_path: Path, monkeypatch: Patch) -> None:
    path = write_manifest(tmp_path, 2, ("good",))
    file = path.parent / entries_of(path)[0]["systems"]["good"][0]
    join = tables.join

    def touched(*arguments: Any) -> Any:
        file.touch()
        return join(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(tables, "join", touched)
        assert evaluate_command(path, tmp_path / "out") == options.SOME_FAILED
    rows = rows_of(tmp_path / "out" / "scores.csv")
    assert [row["status"] for row in rows] == ["failed", "failed", "ok", "ok"]
    assert evaluate_command(path, tmp_path / "out") == options.OK


# ---------------------------------------------------------------------------------------- resuming


def test_tables_of_others_are_not_overwritten(corpus: Path, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"scores\.csv"):
        score_set(corpus, tmp_path)
    assert (tmp_path / "scores.csv").read_text() == "mine"
    shutil.copytree(whole, tmp_path / "out")
    score_set(corpus, tmp_path / "out", confidence=0.8, excerpt_seconds=3)  # which nothing uses
    with pytest.raises(ValueError, match="bounds"):
        score_set(corpus, tmp_path / "out", bounds=True)


def test_torn_lines_and_added_mixtures_are_scored(
    corpus: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    for name in TABLES:
        (out / name).unlink()
    log = out / "progress" / "rank-0.jsonl"
    content = log.read_bytes()
    assert content.count(b"\n") == 6
    log.write_bytes(content[: content[:-1].rfind(b"\n") - 40])
    score_set(corpus, out)
    assert same_tables(out, whole)
    assert log.read_bytes().count(b"\n") == 6
    entries, grown = entries_of(corpus), tmp_path / "grown"
    score_set(save_manifest(corpus.parent, entries[1:], "grown.json"), grown)
    score_set(save_manifest(corpus.parent, entries, "grown.json"), grown)
    assert same_tables(grown, whole)


def test_distortions_of_your_own_are_part_of_the_settings(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("good",))

    def scorer(amount: float) -> MAPSS:
        member = Distortion("own", "own", louder, {"amount": amount})
        return MAPSS("mel", match_bank=DistortionBank("match", only=("echo",), extra=(member,)))

    score_set(path, tmp_path / "out", mapss=scorer(2.0))
    with pytest.raises(ValueError, match="other settings"):
        score_set(path, tmp_path / "out", mapss=scorer(3.0))


def louder(waveform: torch.Tensor, sample_rate: int, amount: float) -> torch.Tensor:
    return torch.tanh(amount * waveform)


def test_names_that_are_no_utf8_are_scored(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, 1, ("good",))
    (entry,) = entries_of(path)
    file = path.parent / entry["systems"]["good"][0]
    odd = file.with_name("caf\udce9.wav")  # the byte E9, as Python has it
    try:
        file.rename(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    entry["systems"]["good"][0] = str(odd.relative_to(path.parent))
    entry["mixture_id"] = "\ud800"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    for _ in range(2):  # scored, then found to be scored
        outcome = score_set(path, tmp_path / "out")
        assert outcome.failures == ()
        assert len(rows_of(tmp_path / "out" / "scores.csv")) == 2


def test_names_in_two_unicode_forms_are_one(tmp_path: Path) -> None:
    """System names of a manifest, and paths written in another form than the files have."""
    path = write_manifest(tmp_path, 2, ("é",))
    entries = entries_of(path)
    forms = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    for entry, form in zip(entries, forms):
        entry["systems"] = {form: entry["systems"]["é"]}
    other = [
        [unicodedata.normalize("NFD", p) for p in ps]
        for e in entries
        for ps in e["systems"].values()
    ]
    entries[1]["systems"] = {forms[1]: other[1]}
    save_manifest(tmp_path, entries)
    outcome = score_set(path, tmp_path / "out")
    assert outcome.failures == ()
    assert len(outcome.summary) == 1


# ------------------------------------------------------------------------ excerpts, channels, time


@pytest.fixture(scope="module")
def songs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("songs"), 2, seconds=5.0)


def test_excerpts_come_with_standard_errors(songs: Path, tmp_path: Path) -> None:
    whole = score_set(songs, tmp_path / "whole", measures="decomposition")
    given = {"measures": "decomposition", "excerpts": 4, "excerpt_seconds": 1}
    some = score_set(songs, tmp_path / "some", **given)
    rows, items = records(some.scores), records(some.items)
    for row in rows:
        assert 0 < row["frames"] < 4 * 50
        assert row["clearance_se"] > 0
        assert "excerpts scored (s): " in row["notes"]
    for item, expected in zip(items, records(whole.items)):
        error = abs(item["clearance"] - expected["clearance"])
        assert error < 6 * item["clearance_se"] + 0.01
    assert [row["notes"] for row in rows[:2]] == [row["notes"] for row in rows[2:4]]  # systems
    (one, two) = (records(some.summary)[0], [i for i in items if i["system"] == "good"])
    expected = math.sqrt(sum(i["clearance_se"] ** 2 for i in two)) / 2
    assert one["clearance_se"] == pytest.approx(expected, rel=1e-6)
    assert "±" in some.text()
    frames = load_results(tmp_path / "some").frames("m0")
    assert (np.diff(frames.times) > 0).all()
    assert frames.times[-1] > 2.5


def test_each_channel_may_be_scored(tmp_path: Path) -> None:
    """Left and right swapped lower the score only if each channel is scored."""
    left = sources(2, 0.5, seed=1)
    right = sources(2, 0.5, seed=2).flip(0)
    stereo = torch.stack([left, right], 1)  # (S, C, T)
    given = {"references": stereo, "mapss": small_mapss(), "channels": "each"}
    same = evaluate(estimates=stereo, **given)
    swapped = evaluate(estimates=stereo.flip(1), **given)
    assert same.rows[0].clearance == 1.0
    assert swapped.rows[0].clearance < 0.9
    mono = evaluate(
        estimates=stereo.flip(1).mean(1), references=stereo.mean(1), mapss=small_mapss()
    )
    assert mono.rows[0].clearance == pytest.approx(1.0, abs=1e-6)
    one = evaluate(estimates=leaky(left), references=left, mapss=small_mapss())
    both = evaluate(
        estimates=torch.stack([leaky(left)] * 2, 1),
        **given | {"references": torch.stack([left] * 2, 1)},
    )
    assert both.rows[0].ps == pytest.approx(one.rows[0].ps, rel=1e-6)
    with pytest.raises(ValueError, match="channels"):
        evaluate(
            estimates=[left[0], right], references=stereo, mapss=small_mapss(), channels="each"
        )


def test_a_long_run_says_how_long_it_will_take(
    songs: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr(runs, "_LONG_S", 5.0)
    assert evaluate_command(songs, tmp_path, "--measures", "decomposition") == 0
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if "on this machine" in line]
    assert "2 mixtures, 2 sources, 2 systems, 10 s of audio" in line
    assert "--excerpts 8" in line
