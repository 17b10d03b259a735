"""Folders of results: what is written beside the tables, and what is read back."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from separations import leaky, save_manifest, small_mapss, sources, write, write_manifest

from torch_mapss import evaluate
from torch_mapss.evaluation import frame_store
from torch_mapss.evaluation.manifest import ManifestError, load_manifest
from torch_mapss.evaluation.measures import MEASURES
from torch_mapss.evaluation.progress import file_name
from torch_mapss.evaluation.request import Request
from torch_mapss.evaluation.results import Results, load_results, records
from torch_mapss.evaluation.run import run


def with_extras(folder: Path) -> Path:
    """Two mixtures; the first names its sources and its mixture and has a null."""
    path = write_manifest(folder, 2)
    entries = json.loads(path.read_text(encoding="utf-8"))
    write(folder / "m0" / "mix.wav", sources(seconds=0.3).sum(0))
    entries[0] |= {"mixture": "m0/mix.wav", "sources": ["Größe", "<b>"]}
    entries[0]["systems"]["bad"][0] = None
    return save_manifest(folder, entries)


def scored(path: Path, out: Path, **options: Any) -> Results:
    run(load_manifest(path), out, small_mapss, **options)
    return load_results(out)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_extras(tmp_path_factory.mktemp("set"))


@pytest.fixture(scope="module")
def results(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return scored(manifest, tmp_path_factory.mktemp("out"))


# ---------------------------------------------------------------------------------------- content


def test_frames_are_those_of_the_report(manifest: Path, results: Results) -> None:
    folder = manifest.parent / "m1"
    report = evaluate(
        references=[folder / "truth" / f"{name}.wav" for name in "ab"],
        estimates=[folder / "bad" / f"{name}.wav" for name in "ab"],
        mapss=small_mapss(),
    )
    found = results.frames("m1")
    assert [*found.systems] == ["good", "bad"]
    np.testing.assert_allclose(found.times, report.times.numpy())
    frames = found.systems["bad"]
    np.testing.assert_array_equal(frames.active, report.active.numpy())
    np.testing.assert_array_equal(frames.attributed, [0, 1])
    for name in frame_store.FIELDS:
        values = getattr(frames, name)
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, getattr(report, name).numpy(), rtol=1e-6)


def test_rows_are_the_means_of_the_frames(results: Results) -> None:
    for row in records(results.scores):
        frames = results.frames(row["mixture_id"]).systems[row["system"]]
        place = list(frames.attributed).index(row["source_index"])
        active = frames.active[place]
        assert row["frames"] == active.sum()
        foreign = frames.foreign_distance[place][active].astype(float)
        means = {"foreign_distance": foreign.mean(), "log_foreign_distance": np.log(foreign).mean()}
        means |= {n: getattr(frames, n)[place][active].mean() for n in ("ps", "pm", "log_pm")}
        for name in MEASURES:
            assert row[name] == pytest.approx(means[name], rel=1e-5)


def test_items_and_sets_are_means_below(results: Results) -> None:
    for item in records(results.items):
        rows = [
            row
            for row in records(results.scores)
            if (row["mixture_id"], row["system"]) == (item["mixture_id"], item["system"])
        ]
        assert item["estimates"] == len(rows)
        assert (item["references"], item["seconds"]) == (2, pytest.approx(0.3))
        for name in MEASURES:
            assert item[name] == pytest.approx(np.mean([row[name] for row in rows]), rel=1e-8)
    for one in records(results.summary):
        own = [item for item in records(results.items) if item["system"] == one["system"]]
        for name in MEASURES:
            assert one[name] == pytest.approx(np.mean([item[name] for item in own]), rel=1e-8)


def test_cells_have_the_type_of_their_column(results: Results) -> None:
    row = records(results.scores)[0]
    for name in ("source_index", "frames", "total_frames", "estimate_rate", "silent"):
        assert type(row[name]) is int, name
    for name in (*MEASURES, "log_pm_median", "estimate_bandwidth", "lag_ms"):
        assert type(row[name]) is float, name
    for name in ("mixture_id", "source", "estimate"):
        assert type(row[name]) is str, name
    assert math.isnan(row["ps_tail"])
    assert type(records(results.summary)[0]["rates"]) is str


def test_names_and_paths(manifest: Path, results: Results) -> None:
    assert results.mixtures == ("m0", "m1")
    assert results.systems == ("good", "bad")
    assert [row["source"] for row in records(results.scores)] == [
        "Größe",
        "<b>",
        "<b>",
        "a",
        "b",
        "a",
        "b",
    ]
    audio = results.audio("m0")
    assert audio.sources == ("Größe", "<b>")
    assert audio.mixture == str(manifest.parent / "m0" / "mix.wav")
    assert audio.estimates["bad"] == (str(manifest.parent / "m0" / "bad" / "b.wav"),)
    assert results.audio("m1").mixture is None
    assert results.audio("m1").sources == ("a", "b")
    assert list(results.frames("m0").systems["bad"].attributed) == [1]


def test_every_audio_file_has_its_hash(manifest: Path, results: Results) -> None:
    assert len(results.sha256) == 4 + 7 + 1  # references, estimates without the null, mixture
    for path, found in results.sha256.items():
        content = (manifest.parent / path).read_bytes()
        assert found == hashlib.sha256(content).hexdigest()


def test_audio_that_moved_is_found(manifest: Path, tmp_path: Path) -> None:
    shutil.copytree(manifest.parent, tmp_path / "one" / "set")
    scored(tmp_path / "one" / "set" / manifest.name, tmp_path / "one" / "out")
    (tmp_path / "one").rename(tmp_path / "two")  # together
    moved = load_results(tmp_path / "two" / "out")
    assert moved.audio("m1").references[0] == str(tmp_path / "two/set/m1/truth/a.wav")
    elsewhere = load_results(tmp_path / "two" / "out", root=tmp_path / "three")
    assert elsewhere.audio("m1").references[0] == str(tmp_path / "three/m1/truth/a.wav")


# --------------------------------------------------------------------------------- going on


def test_lost_frames_are_scored_again(manifest: Path, tmp_path: Path) -> None:
    first = scored(manifest, tmp_path)
    before = first.frames("m1")
    path = Path(frame_store.path_of(str(tmp_path), "m1"))
    path.write_bytes(path.read_bytes()[:100])  # damaged
    with pytest.raises(ValueError, match="cannot be read as frame scores"):
        first.frames("m1")
    again = scored(manifest, tmp_path).frames("m1")
    for system in before.systems:
        for one, other in zip(before.systems[system], again.systems[system]):
            np.testing.assert_array_equal(one, other)


def test_a_system_that_is_added_joins_the_file(manifest: Path, tmp_path: Path) -> None:
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    less = [{**e, "systems": {"bad": e["systems"]["bad"]}} for e in entries]
    first = scored(save_manifest(manifest.parent, less, "less.json"), tmp_path)
    assert [*first.frames("m0").systems] == ["bad"]
    both = scored(manifest, tmp_path)
    assert [*both.frames("m0").systems] == ["good", "bad"]
    np.testing.assert_array_equal(
        both.frames("m0").systems["bad"].ps, first.frames("m0").systems["bad"].ps
    )


def test_a_failure_takes_its_frames_along(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 1)
    assert [*scored(path, tmp_path / "out").frames("m0").systems] == ["good", "bad"]
    write(tmp_path / "set/m0/bad/a.wav", torch.zeros(100))
    found = scored(path, tmp_path / "out")
    assert [*found.frames("m0").systems] == ["good"]
    assert [row["status"] for row in records(found.items)] == ["ok", "failed"]
    assert math.isnan(records(found.items)[1]["foreign_distance"])
    assert math.isnan(records(found.items)[1]["seconds"])


def test_trimmed_systems_of_unlike_length_share_a_file(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "set", 1)
    short = leaky(sources(seconds=0.3))[0, :4000]
    write(tmp_path / "set/m0/good/a.wav", short)
    found = scored(path, tmp_path / "out", request=Request(trim=True)).frames("m0")
    good, bad = found.systems["good"], found.systems["bad"]
    assert good.ps.shape == bad.ps.shape == (2, len(found.times))
    assert not good.active[:, -2:].any()
    assert bad.active[:, -2:].any()


def test_mixtures_of_several_folders_keep_their_audio(tmp_path: Path) -> None:
    one = load_manifest(write_manifest(tmp_path / "x", 1))[0]
    other = load_manifest(write_manifest(tmp_path / "y", 1))[0]._replace(name="other")
    run([one, other], tmp_path / "out", small_mapss)
    results = load_results(tmp_path / "out")
    assert results.audio("m0").references[0] == str(tmp_path / "x/m0/truth/a.wav")
    assert results.audio("other").references[0] == str(tmp_path / "y/m0/truth/a.wav")


# ------------------------------------------------------------------------------------- refused


def test_folders_that_are_no_results_are_refused(
    manifest: Path, results: Results, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="is not there"):
        load_results(tmp_path / "none")
    with pytest.raises(ValueError, match="is a file"):
        load_results(manifest)
    with pytest.raises(ValueError, match=r"is no folder of results: settings\.json"):
        load_results(manifest.parent)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(results.folder, unfinished)
    (unfinished / "summary.csv").unlink()
    with pytest.raises(ValueError, match=r"has not finished: summary\.csv is missing"):
        load_results(unfinished)
    shutil.copy(Path(results.folder) / "summary.csv", unfinished)
    (unfinished / "mixtures.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="cannot be read as part of results"):
        load_results(unfinished)
    listed = json.loads((Path(results.folder) / "mixtures.json").read_text())
    (unfinished / "mixtures.json").write_text(json.dumps({**listed, "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        load_results(unfinished)
    with pytest.raises(ValueError, match="holds no mixture 'm7'; it holds 'm0', 'm1'"):
        results.frames("m7")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"sources": ["a"]}, r"sources must be one name per reference \(2\)"),
        ({"sources": ["a", "a"]}, "each another"),
        ({"sources": ["a", " "]}, "sources must be one name"),
        ({"sources": "ab"}, "sources must be one name"),
        ({"mixture": 3}, "mixture must be a path, got 3"),
        ({"mixture": "gone.wav"}, "mixture: no file"),
    ],
)
def test_manifests_with_wrong_extras(tmp_path: Path, extra: dict[str, Any], message: str) -> None:
    path = write_manifest(tmp_path, 1)
    entries = json.loads(path.read_text(encoding="utf-8"))
    with pytest.raises(ManifestError, match=message):
        load_manifest(save_manifest(tmp_path, [entries[0] | extra]))


def test_names_that_no_file_system_takes_have_a_file() -> None:
    assert file_name("\ud800").isascii()
    assert file_name("\ud800") != file_name("\ud801")
