"""The page to listen to: what it holds, what is embedded, and that names stay text."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile
from separations import WILD, leaky, save_manifest, score_set, sources, wild_results, write_all

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.commands.options import BAD_INPUT, OK
from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.page.content import page_content, write_page
from torch_mapss.evaluation.page.tracks import address, playing_gain
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.worst import CONTEXT_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wild_results(tmp_path_factory.mktemp("set"))


def written(results: Results, folder: Path, **options: Any) -> Path:
    write_page(results, out := folder / "page.html", **options)
    return out


@pytest.fixture(scope="module")
def page(results: Results) -> Path:
    """Everything is embedded; the folder of the page is made."""
    return written(results, Path(results.root) / "deep")


def content_of(path: str | Path) -> dict[str, Any]:
    text = Path(path).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)
    return json.loads(found[1])


def samples_of(source: str) -> Any:
    kind, _, content = source.partition(";base64,")
    assert kind in ("data:audio/flac", "data:audio/wav")
    return soundfile.read(io.BytesIO(base64.b64decode(content)))


def check_sounds_and_curves(results: Results, content: dict[str, Any]) -> None:
    table = results.scores
    for row in content["rows"]:
        names = ["mixture_id", "system", "source"]
        own = [row["mixture"], row["system"], row["source"]]
        (given,) = table[(table[names] == own).all(axis=1)].to_dict("records")
        paths = {role: results.locate(given[role]) for role in ("reference", "estimate")}
        mixture = results.audio(row["mixture"]).mixture
        assert row["tracks"].keys() == paths.keys() | ({"mixture"} if mixture else set())
        for role, path in (paths | ({"mixture": mixture} if mixture else {})).items():
            track = content["tracks"][row["tracks"][role]]
            made, rate = samples_of(track["src"])
            truth, true_rate = soundfile.read(path)
            assert rate == true_rate
            np.testing.assert_array_equal(made, np.round(truth * 2**23) / 2**23)
            assert track["seconds"] == pytest.approx(len(truth) / rate)
        frames = results.frames(row["mixture"])
        system = frames.systems[row["system"]]
        place = system.attributed.tolist().index(given["source_index"])
        active = system.active[place]
        if not active.any():
            assert row["curve"] is None
            continue
        curve = np.array(row["curve"]["ps"], dtype=float)
        np.testing.assert_array_equal(np.isfinite(curve), active)
        np.testing.assert_allclose(curve[active], system.scores["ps"][place][active], rtol=1e-3)
        times = row["curve"]["first"] + row["curve"]["step"] * np.arange(len(curve))
        np.testing.assert_allclose(times, frames.times, atol=1e-4)


def test_sounds_are_the_files_to_the_last_bit_and_curves_the_frames(results, page):
    content = content_of(page)
    assert content["embedded"] == "14 of 14 audio files embedded"
    found = compare(results)
    assert content["answer"] == found.answer()
    assert content["pairs"] == found.shown_pairs().to_dict("records")
    assert content["scored"] == "2 mixtures, 2 s in all, by 2 systems"
    assert not any(segment["clips"] for segment in content["segments"])  # whole files have them
    scores = [float(one["value"]) for one in content["segments"] if one["title"] == "PS"]
    assert scores == sorted(scores)
    check_sounds_and_curves(results, content)


def test_estimates_behind_an_undefined_one_keep_their_curves_and_sounds(tmp_path):
    """The first of three sources is silent: its estimate has no score."""
    truth = sources(3, 0.6)
    truth[0] = 0.0
    systems = {"s": write_all(tmp_path / "s", leaky(truth, 0.1))}
    entry = {"mixture_id": "m", "systems": systems, "sources": ["none", "low", "high"]}
    entry["references"] = write_all(tmp_path / "truth", truth)
    score_set(save_manifest(tmp_path, [entry]), tmp_path / "results")
    results = load_results(tmp_path / "results")
    content = content_of(written(results, tmp_path, title="A & B"))
    assert content["title"] == "A & B"
    assert [row["source"] for row in content["rows"]] == ["none", "low", "high"]
    check_sounds_and_curves(results, content)
    sourced = {content["rows"][one["row"]]["source"] for one in content["segments"]}
    assert sourced == {"low", "high"}


@pytest.mark.parametrize(("seconds", "kind"), [(0.3, "wav"), (20.0, "flac")])
def test_sixteen_bits_stay_sixteen(seconds, kind):
    whole = (2**14 * sources(1, seconds)[0]).round()
    made = address(whole / 2**15, 16000)
    assert made.startswith(f"data:audio/{kind};base64,")
    content = io.BytesIO(base64.b64decode(made.split(",")[1]))
    assert soundfile.info(content).subtype == "PCM_16"
    content.seek(0)
    np.testing.assert_array_equal(soundfile.read(content, dtype="int16")[0], whole.numpy())


def test_playing_levels_are_those_that_are_scored():
    wave = sources(1, 1.0)[0]
    quiet, loud, silent = (playing_gain(x, 16000) for x in (0.1 * wave, wave, 0.0 * wave))
    assert (quiet, silent) == (pytest.approx(10 * loud, rel=1e-3), 1.0)


def test_long_curves_are_means_of_frames(results, tmp_path, monkeypatch):
    name = "torch_mapss.evaluation.page.content."
    monkeypatch.setattr(f"{name}_FEWEST", 10)
    monkeypatch.setattr(f"{name}_VALUES", 10)
    rows = page_content(results, str(tmp_path / "page.html"), 0)["rows"]
    assert all(row["curve"] is None for row in rows)  # no room at all
    assert all("no curve" in row["note"] for row in rows)
    monkeypatch.setattr(f"{name}_VALUES", 1000)
    row = page_content(results, str(tmp_path / "page.html"), 0)["rows"][0]
    frames = results.frames(row["mixture"])
    values = frames.systems[row["system"]].scores["ps"][0]
    share = round(row["curve"]["step"] / float(np.diff(frames.times)[0]))
    assert len(row["curve"]["ps"]) == -(-len(values) // share) < 41
    assert row["curve"]["first"] == pytest.approx(frames.times[:share].mean(), abs=1e-6)
    assert row["curve"]["ps"][0] == pytest.approx(np.nanmean(values[:share]), rel=1e-3)


@pytest.mark.parametrize("embed_mb", [0.0, 0.3])
def test_what_does_not_fit_is_linked_from_the_page(results, tmp_path, embed_mb):
    out = written(results, tmp_path, embed_mb=embed_mb)
    content = content_of(out)
    assert all(row["curve"] and len(row["tracks"]) == 3 for row in content["rows"])
    linked = [track for track in content["tracks"] if not track["embedded"]]
    assert linked
    for track in linked:
        assert not {" ", "#"} & {*track["src"]}
        assert (out.parent / unquote(track["src"])).exists()
    clips = [clip for one in content["segments"] for clip in (one["clips"] or {}).values()]
    kept = [track for track in content["tracks"] if track["embedded"]]
    used = sum(map(len, clips)) + sum(len(t["src"]) + len(t["picture"]) for t in kept)
    assert used <= 1e6 * embed_mb
    assert bool(clips) == (embed_mb > 0)
    assert "--embed-mb 1 embeds all" in content["embedded"]
    for segment in content["segments"][:1] if clips else ():  # a clip is its stretch
        row = content["rows"][segment["row"]]
        estimate = content["tracks"][row["tracks"]["estimate"]]["name"]
        folder = f"s{results.systems.index(row['system'])}"
        made, rate = samples_of(segment["clips"]["estimate"])
        first = max(0, round((segment["start"] - CONTEXT_S) * rate))
        truth = soundfile.read(Path(results.root) / folder / estimate)[0]
        np.testing.assert_allclose(made, truth[first : first + len(made)], atol=2e-7)


def test_names_are_text_and_nothing_is_fetched(page):
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert content_of(page)["rows"][2]["system"] == WILD
    ours = text[: text.index('<script type="application/json"')]
    assert not re.findall(r'(?:src|href)="(?!data:|#)', ours)


def test_audio_that_is_gone_is_said_and_not_fatal(results, tmp_path):
    elsewhere = load_results(results.folder, root=tmp_path)
    with pytest.warns(UserWarning, match="14 of 14 audio files") as told:
        content = content_of(written(elsewhere, tmp_path))
    for text in (str(told[0].message), content["advice"]):
        assert repr(str(tmp_path)) in text
        assert "--audio-root DIR" in text
    assert (content["tracks"], len(content["missing"])) == ([], 14)
    assert all(segment["clips"] is None for segment in content["segments"])
    assert all(row["curve"] for row in content["rows"])


def test_the_command_and_what_it_refuses(results, tmp_path, capsys):
    out = tmp_path / "page.html"
    out.write_text("old")
    assert cli.main(["report", results.folder, "--out", str(out), "--embed-mb", "0.05"]) == OK
    told = capsys.readouterr().out
    assert all(part in told for part in (str(out), content_of(out)["embedded"]))
    kept = out.read_bytes()
    for arguments, words in (
        ([str(tmp_path), "--out", str(out)], "no folder of results"),
        ([results.folder, "--out", str(tmp_path)], "is a folder"),
        ([results.folder, "--out", str(out), "--embed-mb", "-1"], "embed_mb"),
    ):
        assert cli.main(["report", *arguments]) == BAD_INPUT
        assert words in capsys.readouterr().err
    assert out.read_bytes() == kept


@pytest.mark.parametrize("name", ["plotly.offline", "PIL.Image"])
def test_a_missing_package_is_named_with_its_extra(results, tmp_path, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"torch_mapss\[report\]"):
        written(results, tmp_path)
    assert not list(tmp_path.iterdir())
