"""The worst segments: against a search over all windows, and as sound."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from separations import score_set, small_mapss, write, write_manifest
from waveforms import RATE, leaky, tones

from torch_mapss import evaluate_set
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.manifest import load_manifest
from torch_mapss.evaluation.records import SystemFrames
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.results_folder import MixtureFrames
from torch_mapss.evaluation.worst import (
    CONTEXT_S,
    WORST_OF,
    frame_curves,
    lowest_runs,
    worst_segments,
    write_segments,
)
from torch_mapss.score_table import SCORES


def test_the_first_run_is_the_lowest_window():
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = np.where(rng.random(60) < 0.2, np.nan, rng.normal(size=60))
        length = int(rng.integers(1, 20))
        windows = [scores[k : k + length] for k in range(60 - length + 1)]
        means = [
            np.nanmean(w) if np.isfinite(w).sum() >= max(1, np.ceil(length / 2)) else np.inf
            for w in windows
        ]
        begin, end, mean = lowest_runs(scores, length, length, 1)[0]
        assert (begin, end) == (int(np.argmin(means)), int(np.argmin(means)) + length)
        assert mean == pytest.approx(min(means))


def test_lowest_runs_do_not_overlap():
    scores = np.ones(50)
    scores[10:24] = 0.1
    scores[30:36] = 0.3
    assert lowest_runs(scores, 6, 40, 1) == [(10, 24, pytest.approx(0.1))]
    assert {run[:2] for run in lowest_runs(scores, 6, 8, 2)} == {(10, 18), (18, 24)}
    runs = lowest_runs(np.random.default_rng(1).normal(size=200), 5, 20, 100)
    taken = sorted(run[:2] for run in runs)
    assert all(earlier[1] <= next_run[0] for earlier, next_run in itertools.pairwise(taken))
    assert [run[2] for run in runs] == sorted(run[2] for run in runs)
    assert len(runs) > 10
    sparse = np.where(np.arange(30) == 3, 0.0, np.nan)  # too little of any window is scored
    for few in (np.full(30, np.nan), sparse, np.empty(0)):
        assert lowest_runs(few, 6, 20, 3) == []
    assert lowest_runs(np.array([0.5, 0.2]), 5, 20, 3) == [(0, 2, pytest.approx(0.35))]


def test_segments_do_not_span_excerpts():
    times = np.concatenate([np.arange(10), np.arange(3000, 3010)]) * 0.02
    ps = np.linspace(0.0, 1.0, 20, dtype=np.float32)[None]
    system_frames = SystemFrames(np.ones((1, 20), bool), np.array([3]), {"ps": ps})
    results: Any = SimpleNamespace(frames=lambda _: MixtureFrames(times, {"s": system_frames}))
    rows = [{"mixture_id": "m", "system": name, "source_index": 3} for name in ("s", "failed")]
    (_, seconds, curves), (_, _, none) = frame_curves(results, rows)
    np.testing.assert_allclose(np.diff(seconds), 0.02)
    scored = np.isfinite(curves["ps"])
    np.testing.assert_allclose(seconds[scored], times)
    np.testing.assert_array_equal(curves["ps"][scored], ps[0])
    assert none == {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One mixture; system "good" has a second of strong leakage from 1.0 to 2.0 s."""
    path = write_manifest(root := tmp_path_factory.mktemp("set"), 1, ("good", "bad"), seconds=3.0)
    truth = tones(2, 3.0, seed=0)
    made = leaky(truth, 0.1)
    made[0, RATE : 2 * RATE] = truth[1, RATE : 2 * RATE]
    write(root / "m0" / "good" / "a.wav", made[0])
    score_set(path, root / "out")
    return root / "out"


def test_the_place_of_leakage_is_found_and_its_sound_is_the_files_own(folder, results, tmp_path):
    segments = worst_segments(results, 1, ("ps",))
    (worst,) = segments.itertuples()
    assert (worst.mixture_id, worst.system, worst.source) == ("m0", "good", "a")
    assert 0.9 <= worst.start < worst.start + 0.29 <= worst.end <= 2.1
    frames = results.frames("m0")
    inside = (frames.times > worst.start) & (frames.times < worst.end)
    values = frames.systems["good"].scores["ps"][0][inside]
    assert worst.score == pytest.approx(np.nanmean(values), rel=1e-5)
    assert worst.frames == np.isfinite(values).sum()
    estimate, reference = write_segments(results, segments, tmp_path)
    assert Path(estimate).name.startswith("ps_001_m0_good_a_")
    begin, end = round((worst.start - CONTEXT_S) * RATE), round((worst.end + CONTEXT_S) * RATE)
    for path, file_name in ((estimate, "good/a.wav"), (reference, "truth/a.wav")):
        made, rate = soundfile.read(path, dtype="float32")
        truth, _ = soundfile.read(folder.parent / "m0" / file_name, dtype="float32")
        assert rate == RATE
        np.testing.assert_array_equal(made, truth[begin:end])


def test_order_and_choice(folder, results, tmp_path, capsys):
    segments = worst_segments(results, 4).groupby("measure", sort=False)["score"]
    names = [name for name in WORST_OF if name in results.measures and name != "bleed_db"]
    assert [*segments.groups] == names
    assert segments.is_monotonic_increasing.all()
    with pytest.raises(ValueError, match=r"measures must be of .*'sdr'"):
        worst_segments(results, 3, ("sdr",))
    with pytest.raises(ValueError, match="count"):
        worst_segments(results, 0)
    command = ["worst", str(folder), "--n", "2", "--measures", "ps", "log_pm"]
    assert cli.main([*command, "--wav", str(tmp_path / "wav")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:4] == ["PS", "m0", "good", "a"]
    assert [line.split()[0] for line in lines[2:6]] == ["PS", "PS", "log", "log"]
    *earlier_names, last_name = sorted(path.name for path in (tmp_path / "wav").iterdir())
    assert (len(earlier_names), last_name[:15]) == (7, "ps_002_m0_good_")


@pytest.mark.parametrize("third", [False, True])
def test_bleed_is_worst_where_it_is_highest_and_names_the_source(results, tmp_path, third):
    real = results.frames("m0")
    bleed = np.full((2, len(real.times)), np.nan, dtype=np.float32)
    bleed[1, 20:60] = -90.0  # inaudible
    bleed[1, 60:80] = -18.0

    class Made(Results):
        def frames(self, mixture_id: str) -> MixtureFrames:
            frames_of_good = real.systems["good"]
            frames_of_good = frames_of_good._replace(
                scores={**frames_of_good.scores, "bleed_db": bleed}
            )
            return real._replace(systems={"good": frames_of_good})

    entry = dict(results.entries["m0"])
    if third:  # a source that is silent in that place
        soundfile.write(tmp_path / "silent.wav", np.zeros(3 * RATE), RATE)
        entry |= {"sources": ["a", "b", "c"]}
        entry["references"] = [*entry["references"], str(tmp_path / "silent.wav")]
    changed = {"entries": {"m0": entry}, "items": results.items.assign(bleed_db=0.0)}
    (segment,) = worst_segments(Made(**{**vars(results), **changed}), 5, ("bleed_db",)).itertuples()
    assert (segment.title, segment.source, segment.frames) == ("bleed of a", "b", 20)
    assert segment.score == pytest.approx(-18.0, abs=1e-3)
    span = real.times[60] - 0.01, real.times[79] + 0.01
    assert (segment.start, segment.end) == pytest.approx(span, abs=1e-6)


def test_sets_without_a_score_say_so(folder, tmp_path, capsys):
    manifest = load_manifest(folder.parent / "manifest.json")
    soundfile.write(tmp_path / "still.wav", np.zeros(3 * RATE), RATE)
    still = manifest[0]._replace(references=(str(tmp_path / "still.wav"),) * 2)
    with pytest.warns(UserWarning, match="no frame in which two sources"):
        evaluate_set([still], out=tmp_path / "out", mapss=small_mapss())
    assert cli.main(["worst", str(tmp_path / "out"), "--wav", str(tmp_path / "wav")]) == 0
    out = capsys.readouterr().out
    assert all(x in out for x in ("No estimate has enough scored frames", "`reason` of scores.csv"))


def test_audio_that_was_moved(folder, tmp_path, capsys):
    shutil.copytree(folder.parent, tmp_path / "set")
    command = ["worst", str(folder), "--n", "4", "--wav", str(tmp_path / "wav")]
    # Of one system alone, whose segments are not the first ones: nothing is written then.
    folder_of_bad = folder.parent / "m0" / "bad"
    folder_of_bad.rename(folder.parent / "moved")
    try:
        assert cli.main(command) == 2
        assert "--audio-root" in capsys.readouterr().err
        assert not (tmp_path / "wav").exists()
        assert cli.main([*command, "--audio-root", str(tmp_path / "set")]) == 0
    finally:
        (folder.parent / "moved").rename(folder_of_bad)


def test_sampled_frames_stand_alone(folder, tmp_path, capsys):
    path = folder.parent / "manifest.json"
    score_set(path, tmp_path, sample_frames=12)
    segments = worst_segments(load_results(tmp_path), 3, ("ps",))
    assert {*segments["frames"]} == {1}
    np.testing.assert_allclose(segments["end"] - segments["start"], 0.02)
    assert cli.main(["worst", str(tmp_path)]) == 0
    assert "single frames, which have no neighbours" in capsys.readouterr().out


def test_measures_stand_for_their_scores(results):
    def listed(*names: str) -> list[str]:
        return [*worst_segments(results, 1, names)["measure"].unique()]

    assert listed("decomposition") == ["clearance", "fidelity"]
    assert listed("log_pm", "separation") == ["log_pm", "ps"]
    # A score of utterances alone has no moments.
    assert SCORES["log_pm_compressed"].has_frames is False
    items = results.items.assign(ps_pesq=0.5)
    with pytest.raises(ValueError, match="measures must be of clearance, fidelity, ps, pm, log_pm"):
        worst_segments(dataclasses.replace(results, items=items), 1, ["ps_pesq"])
    with pytest.raises(ValueError, match=r"no worst moments\. It pools log_pm, which has some"):
        worst_segments(results, 1, ["log_pm_compressed"])


def test_controls_are_listed_when_asked_for_or_alone(folder, tmp_path):
    """An anchor is worst throughout, and says nothing about the systems."""
    (entry,) = load_manifest(folder.parent / "manifest.json")
    renamed = {"control:anchor": entry.systems["bad"], "good": entry.systems["good"]}
    options: dict[str, Any] = {"mapss": small_mapss(), "measures": "separation"}
    with_control = evaluate_set([entry._replace(systems=renamed)], out=tmp_path / "a", **options)
    assert {*worst_segments(with_control, 5)["system"]} == {"good"}
    assert "control:anchor" in {*worst_segments(with_control, 5, controls=True)["system"]}
    only = {"control:anchor": entry.systems["bad"]}
    alone = evaluate_set([entry._replace(systems=only)], out=tmp_path / "b", **options)
    assert {*worst_segments(alone, 5)["system"]} == {"control:anchor"}
