"""The report page: its content, what is embedded, and that names stay text."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas
import pytest
import soundfile
from separations import WILD, save_manifest, score_set, wild_results, write_all
from waveforms import leaky, tones

from torch_mapss import evaluate_set
from torch_mapss.evaluation import cli
from torch_mapss.evaluation.commands.arguments import BAD_INPUT, OK
from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.page.content import (
    input_notes,
    page_content,
    path_shortener,
    write_page,
)
from torch_mapss.evaluation.page.tracks import address, lossless_address, playing_gain
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.significance import p_text
from torch_mapss.evaluation.worst import CONTEXT_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wild_results(tmp_path_factory.mktemp("set"))


def written(results: Results, folder: Path, **options: Any) -> Path:
    path = folder / "page.html"
    write_page(results, path, **options)
    return path


@pytest.fixture(scope="module")
def page(results: Results) -> Path:
    """Everything is embedded; the folder of the page is created."""
    return written(results, Path(results.root) / "deep")


def content_of(path: str | Path) -> dict[str, Any]:
    text = Path(path).read_text(encoding="utf-8")
    script = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)
    return json.loads(script[1])


def samples_of(source: str) -> Any:
    kind, _, content = source.partition(";base64,")
    assert kind in ("data:audio/mpeg", "data:audio/flac", "data:audio/wav")
    return soundfile.read(io.BytesIO(base64.b64decode(content)))


def error_db(samples: Any, truth: Any) -> float:
    """Power of the difference relative to the truth."""
    return 10.0 * np.log10(np.square(samples - truth).mean() / np.square(truth).mean())


def check_track(track: dict[str, Any], path: str) -> None:
    """The embedded sound is the file, aligned; its spectrogram is there."""
    samples, rate = samples_of(track["src"])
    truth, true_rate = soundfile.read(path)
    assert (rate, len(samples)) == (true_rate, len(truth))
    assert error_db(samples, truth) < -25.0
    assert track["seconds"] == pytest.approx(len(truth) / rate)
    assert track["picture"].startswith("data:image/jpeg;base64,")


def check_sounds_and_curves(results: Results, content: dict[str, Any]) -> None:
    names = ["mixture_id", "system", "source"]
    for row in content["rows"]:
        key = [row["mixture"], row["system"], row["source"]]
        (scored,) = results.scores[(results.scores[names] == key).all(axis=1)].to_dict("records")
        paths = {role: results.locate(scored[role]) for role in ("reference", "estimate")}
        mixture = results.audio(row["mixture"]).mixture
        paths |= {"mixture": mixture} if mixture else {}
        assert row["tracks"].keys() == paths.keys()
        for role, path in paths.items():
            check_track(content["tracks"][row["tracks"][role]], path)
        frames = results.frames(row["mixture"])
        system = frames.systems[row["system"]]
        index = system.attributed.tolist().index(scored["source_index"])
        active = system.active[index]
        if not active.any():
            assert row["curve"] is None
            continue
        curve = np.array(row["curve"]["ps"], dtype=float)
        np.testing.assert_array_equal(np.isfinite(curve), active)
        np.testing.assert_allclose(curve[active], system.scores["ps"][index][active], rtol=1e-3)
        times = row["curve"]["first"] + row["curve"]["step"] * np.arange(len(curve))
        np.testing.assert_allclose(times, frames.times, atol=1e-4)


def test_sounds_are_the_files_and_curves_the_frames(results, page):
    content = content_of(page)
    assert content["embedded"] == "14 of 14 audio files embedded"
    comparison = compare(results)
    assert content["answer"] == comparison.answer()
    pairs = comparison.shown_pairs()
    texts = pairs["p_holm"].map(p_text)
    assert content["pairs"] == pairs.assign(p_text=texts).to_dict("records")
    assert content["scored"] == "2 mixtures, 2 s in all, 2 systems"
    assert not any(segment["clips"] for segment in content["segments"])  # whole files have them
    check_sounds_and_curves(results, content)


def test_every_score_has_its_worst_moments_worst_first(results, page):
    content = content_of(page)
    measures = [segment["measure"] for segment in content["segments"]]
    assert {*measures} >= {"clearance", "fidelity", "ps", "log_pm"}
    for measure in {*measures} - {"bleed_db"}:
        scores = [s["score"] for s in content["segments"] if s["measure"] == measure]
        assert scores == sorted(scores)


def test_a_table_of_means_by_source(results, page):
    sources_table = content_of(page)["sources"]
    assert sources_table["names"] == ["a & b", "<i>c</i>"]
    for row in sources_table["means"]:
        keys = {name: row[name] for name in ("system", "source")}
        chosen = (results.scores[[*keys]] == [*keys.values()]).all(axis=1)
        assert row["mean"] == pytest.approx(results.scores.loc[chosen, row["measure"]].mean())


def test_the_page_is_small_without_its_sounds(results, tmp_path):
    """Scripts and layout; a spectrogram and the curves of a row take a few kilobytes each."""
    content = content_of(written(results, tmp_path, embed_mb=0.0))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(text) - len(json.dumps(content)) < 60_000
    assert max(len(track["picture"]) for track in content["tracks"]) < 16_000


def test_estimates_behind_an_undefined_one_keep_their_curves_and_sounds(tmp_path):
    """The first of three sources is silent: its estimate has no score."""
    truth = tones(3, 0.6)
    truth[0] = 0.0
    systems = {"s": write_all(tmp_path / "s", leaky(truth, 0.1))}
    entry = {"mixture_id": "m", "systems": systems, "sources": ["none", "low", "high"]}
    entry["references"] = write_all(tmp_path / "truth", truth)
    score_set(save_manifest(tmp_path, [entry]), tmp_path / "results")
    results = load_results(tmp_path / "results")
    content = content_of(written(results, tmp_path, title="A & B"))
    assert content["title"] == "A & B"
    assert [row["source"] for row in content["rows"]] == ["none", "low", "high"]
    worst_sources = {content["rows"][segment["row"]]["source"] for segment in content["segments"]}
    assert worst_sources == {"low", "high"}
    silent_reference = content["rows"][0]["tracks"]["reference"]
    assert content["tracks"][silent_reference]["picture"]
    del content["rows"][0]  # silence has no relative error
    check_sounds_and_curves(results, content)


def test_hidden_references_and_anchors_are_apart_and_paths_short(tmp_path):
    truth = tones(2, 0.6)
    estimates = {"ours": leaky(truth, 0.1), "control:anchor": leaky(truth, 1.0)}
    files = {name: write_all(tmp_path / name.split(":")[-1], x) for name, x in estimates.items()}
    references = write_all(tmp_path / "truth", truth)
    entry = {"mixture_id": "m", "references": references, "systems": files}
    score_set(save_manifest(tmp_path, [entry]), tmp_path / "results")
    content = content_of(written(load_results(tmp_path / "results"), tmp_path))
    assert [row["control"] for row in content["rows"]] == [False, False, True, True]
    assert {row["system"] for row in content["rows"]} == {"ours", "anchor"}
    assert {row["system"] for row in content["ranking"]} == {"ours"}
    (anchor,) = content["controls"]
    assert anchor["system"] == "anchor"
    assert 0.0 < anchor["clearance"] < content["rows"][0]["clearance"]
    worst_systems = {content["rows"][segment["row"]]["system"] for segment in content["segments"]}
    assert worst_systems == {"ours"}
    assert content["scored"].endswith("1 system, 1 hidden reference or anchor")
    notes = [row["note"] for row in content["rows"] if row["note"]]
    assert any("anchor/a.wav" in note for note in notes)
    assert not any(str(tmp_path) in note for note in notes)


def test_paths_are_shown_without_their_common_part():
    short_paths = path_shortener(["/d/s/m1/a.wav", "/d/s/m10/a.wav", "/d/s/m1/a.wav.wav"])
    assert short_paths["/d/s/m1/a.wav"] == "m1/a.wav"
    assert [*short_paths][-1] == "/d/s/m1/a.wav"  # not replaced inside a longer one
    assert path_shortener(["a.wav"]) == {"a.wav": "a.wav"}
    assert path_shortener([]) == {}


def test_remarks_keep_the_folder_of_a_system_where_the_manifest_is_relative(tmp_path, monkeypatch):
    """A remark names the file as it was opened, which ends like the path in the manifest."""
    truth = tones(2, 0.6)
    write_all(tmp_path / "set/references", truth)
    write_all(tmp_path / "set/faulty", truth * truth.new_tensor([[1.0], [0.0]]))
    monkeypatch.chdir(tmp_path)
    entry = {"mixture_id": "m", "references": [f"set/references/{name}.wav" for name in "ab"]}
    entry |= {"systems": {"s": [f"set/faulty/{name}.wav" for name in "ab"]}}
    with pytest.warns(UserWarning, match=r"set/faulty/b\.wav"):
        results = evaluate_set([entry], out="results", encoder="mel", measures="decomposition")
    content = page_content(results, "page.html", 0)
    (note,) = {row["note"] for row in content["rows"] if "is silent" in row["note"]}
    assert "'faulty/b.wav' is silent" in note
    assert str(tmp_path) not in note


def test_downmix_is_reported(tmp_path):
    truth = tones(2, 0.6)
    references = write_all(tmp_path / "truth", truth[:, None].expand(-1, 2, -1))
    estimates = write_all(tmp_path / "s", leaky(truth, 0.1)[:, None].expand(-1, 2, -1))
    entry = {"mixture_id": "m", "references": references, "systems": {"s": estimates}}
    score_set(save_manifest(tmp_path, [entry]), tmp_path / "results")
    content = content_of(written(load_results(tmp_path / "results"), tmp_path))
    assert content["input"] == ["2 channels averaged (2 of 2 estimates)"]


@pytest.mark.parametrize(("seconds", "kind"), [(0.3, "wav"), (20.0, "flac")])
def test_without_mp3_sounds_are_lossless(seconds, kind, monkeypatch):
    integers = (2**14 * tones(1, seconds)[0]).round()
    assert address(integers / 2**15, 16000).startswith("data:audio/mpeg;base64,")
    assert address(integers / 2**15, 12345) == lossless_address(integers / 2**15, 12345)
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"WAV": "", "FLAC": ""})
    sound = address(integers / 2**15, 16000)
    assert sound.startswith(f"data:audio/{kind};base64,")
    content = io.BytesIO(base64.b64decode(sound.split(",")[1]))
    assert soundfile.info(content).subtype == "PCM_16"
    content.seek(0)
    np.testing.assert_array_equal(soundfile.read(content, dtype="int16")[0], integers.numpy())


@pytest.mark.parametrize("rate", [16000, 22050, 24000, 32000, 44100, 48000])
def test_compressed_sounds_keep_length_and_place(rate):
    wave = tones(1, 0.9, rate=rate)[0]
    samples, found_rate = samples_of(address(wave, rate))
    assert (found_rate, len(samples)) == (rate, len(wave))
    assert error_db(samples, wave.numpy()) < -25.0


def test_playing_levels_are_those_that_are_scored():
    wave = tones(1, 1.0)[0]
    quiet, loud, silent = (playing_gain(x, 16000) for x in (0.1 * wave, wave, 0.0 * wave))
    assert (quiet, silent) == (pytest.approx(10 * loud, rel=1e-3), 1.0)


def test_long_curves_are_means_of_frames(results, tmp_path, monkeypatch):
    monkeypatch.setattr("torch_mapss.evaluation.page.content.MIN_CURVE_POINTS", 10)
    monkeypatch.setattr("torch_mapss.evaluation.page.content.MAX_CURVE_VALUES", 10)
    rows = page_content(results, str(tmp_path / "page.html"), 0)["rows"]
    assert all(row["curve"] is None for row in rows)  # no room at all
    assert all("no curve" in row["note"] for row in rows)
    monkeypatch.setattr("torch_mapss.evaluation.page.content.MAX_CURVE_VALUES", 1000)
    row = page_content(results, str(tmp_path / "page.html"), 0)["rows"][0]
    frames = results.frames(row["mixture"])
    values = frames.systems[row["system"]].scores["ps"][0]
    stride = round(row["curve"]["step"] / float(np.diff(frames.times)[0]))
    assert len(row["curve"]["ps"]) == -(-len(values) // stride) < 41
    assert row["curve"]["first"] == pytest.approx(frames.times[:stride].mean(), abs=1e-6)
    assert row["curve"]["ps"][0] == pytest.approx(np.nanmean(values[:stride]), rel=1e-3)


@pytest.mark.parametrize("embed_mb", [0.0, 0.12])
def test_audio_beyond_the_limit_is_linked(results, tmp_path, embed_mb):
    path = written(results, tmp_path, embed_mb=embed_mb)
    content = content_of(path)
    assert all(row["curve"] and len(row["tracks"]) == 3 for row in content["rows"])
    assert all(track["picture"] for track in content["tracks"])  # embedded or not
    linked = [track for track in content["tracks"] if not track["embedded"]]
    assert linked
    for track in linked:
        assert not {" ", "#"} & {*track["src"]}
        assert (path.parent / unquote(track["src"])).exists()
    clips = [segment["clips"] for segment in content["segments"] if segment["clips"]]
    clip_bytes = sum(len(sound) for clip in clips for sound in clip.values())
    embedded = [track for track in content["tracks"] if track["embedded"]]
    assert clip_bytes + sum(len(track["src"]) for track in embedded) <= 1e6 * embed_mb
    assert bool(clips) == (embed_mb > 0)
    assert "--embed-mb 1 embeds all" in content["embedded"]
    for segment in content["segments"][:1] if clips else ():  # a clip is its stretch
        row = content["rows"][segment["row"]]
        estimate = content["tracks"][row["tracks"]["estimate"]]["name"]
        folder = f"s{results.systems.index(row['system'])}"
        samples, rate = samples_of(segment["clips"]["estimate"])
        begin = max(0, round((segment["start"] - CONTEXT_S) * rate))
        truth = soundfile.read(Path(results.root) / folder / estimate)[0]
        assert error_db(samples, truth[begin : begin + len(samples)]) < -25.0


def test_names_are_text_and_nothing_is_fetched(page):
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert content_of(page)["rows"][2]["system"] == WILD
    layout = text[: text.index('<script type="application/json"')]
    assert not re.findall(r'(?:src|href)="(?!data:|#)', layout)


def test_missing_audio_is_reported_and_not_fatal(results, tmp_path):
    elsewhere = load_results(results.folder, root=tmp_path)
    with pytest.warns(UserWarning, match="14 of 14 audio files") as warned:
        content = content_of(written(elsewhere, tmp_path))
    for text in (str(warned[0].message), content["advice"]):
        assert repr(str(tmp_path)) in text
        assert "--audio-root DIR" in text
    assert (content["tracks"], len(content["missing"])) == ([], 14)
    assert all(segment["clips"] is None for segment in content["segments"])
    assert all(row["curve"] for row in content["rows"])


def test_command_and_its_refusals(results, tmp_path, capsys):
    path = tmp_path / "page.html"
    path.write_text("old")
    assert cli.main(["report", results.folder, "--out", str(path), "--embed-mb", "0.05"]) == OK
    output = capsys.readouterr().out
    assert str(path) in output
    assert content_of(path)["embedded"] in output
    before = path.read_bytes()
    for arguments, words in (
        ([str(tmp_path), "--out", str(path)], "is not a results folder"),
        ([results.folder, "--out", str(tmp_path)], "is a folder"),
        ([results.folder, "--out", str(path), "--embed-mb", "-1"], "embed_mb"),
    ):
        assert cli.main(["report", *arguments]) == BAD_INPUT
        assert words in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_missing_package_is_named_with_its_extra(results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"torch_mapss\[report\]"):
        written(results, tmp_path)
    assert not list(tmp_path.iterdir())


def test_notes_on_the_input_have_one_order_in_every_process():
    kinds = [f"changed in way {letter}" for letter in "fcaebd"]
    notes = "; ".join(f"file {number}: {kind}" for number in (1, 2) for kind in kinds)
    results: Any = SimpleNamespace(scores=pandas.DataFrame({"notes": [notes, notes, ""]}))
    assert input_notes(results) == [f"{kind} (2 of 3 estimates)" for kind in kinds]
