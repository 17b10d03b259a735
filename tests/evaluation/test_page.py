"""The page to listen to: what it holds, what is embedded, and that names stay text."""

from __future__ import annotations

import base64
import html
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
import torch
from separations import (
    WILD,
    leaky,
    save_manifest,
    score_set,
    sources,
    wild_results,
    write_all,
)

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.commands.options import BAD_INPUT, OK
from torch_mapss.evaluation.comparison import compare
from torch_mapss.evaluation.page import write_page
from torch_mapss.evaluation.page.content import page_content
from torch_mapss.evaluation.page.sound import address, playing_gain, read_sound
from torch_mapss.evaluation.page.tracks import Budget
from torch_mapss.evaluation.results import Results, load_results
from torch_mapss.evaluation.worst import CONTEXT_S


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load_results(wild_results(tmp_path_factory.mktemp("set")))


@pytest.fixture(scope="module")
def undefined(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Three sources, the first of which is silent: its estimate comes first and has no score."""
    folder = tmp_path_factory.mktemp("undefined")
    truth = sources(3, 0.6)
    truth[0] = 0.0
    made = leaky(truth, 0.1)
    entry: dict[str, Any] = {"mixture_id": "m", "systems": {"s": write_all(folder / "s", made)}}
    entry |= {"references": write_all(folder / "truth", truth), "sources": ["none", "low", "high"]}
    score_set(save_manifest(folder, [entry]), folder / "results")
    return load_results(folder / "results")


def content_of(path: str | Path) -> dict[str, Any]:
    text = Path(path).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def samples_of(source: str) -> Any:
    kind, _, content = source.partition(";base64,")
    assert kind in ("data:audio/flac", "data:audio/wav")
    return soundfile.read(io.BytesIO(base64.b64decode(content)))


def paths_of(results: Results, row: dict[str, Any]) -> dict[str, str | None]:
    """The files of a row by another way than the page's: the rows of the table."""
    table = results.scores
    (own,) = table[
        (table["mixture_id"] == row["mixture"])
        & (table["system"] == row["system"])
        & (table["source"] == row["source"])
    ].to_dict("records")
    given = {role: results.locate(own[role]) for role in ("reference", "estimate")}
    return given | {"mixture": results.audio(row["mixture"]).mixture}


def test_embedded_sound_is_the_file_to_the_last_bit(results: Results, tmp_path: Path) -> None:
    content = content_of(write_page(results, tmp_path / "deep" / "page.html").path)
    assert content["embedded"] == "14 of 14 audio files embedded"
    assert not any(segment["clips"] for segment in content["segments"])  # whole files have them
    for row in content["rows"]:
        for role, path in paths_of(results, row).items():
            track = content["tracks"][row["tracks"][role]]
            assert path is not None
            made, rate = samples_of(track["src"])
            truth, true_rate = soundfile.read(path)
            assert rate == true_rate
            np.testing.assert_array_equal(made, np.round(truth * 2**23) / 2**23)
            assert track["seconds"] == pytest.approx(len(truth) / rate)


@pytest.mark.parametrize(("seconds", "kind"), [(0.3, "wav"), (20.0, "flac")])
def test_sixteen_bits_stay_sixteen(tmp_path: Path, seconds: float, kind: str) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, 0.5 * sources(1, seconds)[0].numpy(), 16000, subtype="PCM_16")
    made = address(read_sound(str(path)))
    assert made.startswith(f"data:audio/{kind};base64,")
    found, _ = soundfile.read(io.BytesIO(base64.b64decode(made.split(",")[1])), dtype="int16")
    np.testing.assert_array_equal(found, soundfile.read(path, dtype="int16")[0])


def test_playing_levels_are_those_that_are_scored() -> None:
    wave = sources(1, 1.0)[0]
    assert playing_gain(0.1 * wave, 16000) == pytest.approx(
        10 * playing_gain(wave, 16000), rel=1e-3
    )
    assert playing_gain(torch.zeros(16000), 16000) == 1.0


def check_curves(results: Results, content: dict[str, Any]) -> None:
    for row in content["rows"]:
        frames = results.frames(row["mixture"])
        system = frames.systems[row["system"]]
        place = system.attributed.tolist().index(row["index"])
        active = system.active[place]
        if not active.any():
            assert row["curve"] is None
            continue
        made = np.array(row["curve"]["ps"], dtype=float)
        np.testing.assert_array_equal(np.isfinite(made), active)
        np.testing.assert_allclose(made[active], system.ps[place][active], rtol=1e-3)
        times = row["curve"]["first"] + row["curve"]["step"] * np.arange(len(made))
        np.testing.assert_allclose(times, frames.times, atol=1e-4)


def test_curves_are_the_frames_of_the_results(results: Results, tmp_path: Path) -> None:
    content = page_content(results, str(tmp_path / "page.html"), 10**9, 3)
    check_curves(results, content)
    scores = [float(one["text"]) for one in content["segments"] if one["label"] == "PS"]
    assert scores == sorted(scores)
    assert len(scores) == 3


def test_estimates_behind_an_undefined_one_keep_their_curves_and_sounds(
    undefined: Results, tmp_path: Path
) -> None:
    content = content_of(write_page(undefined, tmp_path / "page.html").path)
    check_curves(undefined, content)
    assert [row["source"] for row in content["rows"]] == ["none", "low", "high"]
    for row in content["rows"]:
        for role, path in paths_of(undefined, row).items():
            if path is not None:
                made, _ = samples_of(content["tracks"][row["tracks"][role]]["src"])
                np.testing.assert_allclose(made, soundfile.read(path)[0], atol=2e-7)
    sourced = {content["rows"][one["row"]]["source"] for one in content["segments"]}
    assert sourced == {"low", "high"}


def test_long_curves_are_means_of_frames(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_mapss.evaluation.page.content._VALUES", 1)
    monkeypatch.setattr("torch_mapss.evaluation.page.content._FEWEST", 10)
    content = page_content(results, str(tmp_path / "page.html"), 0, 1)
    assert all(row["curve"] is None for row in content["rows"])  # no room at all
    assert all("no curve" in row["note"] for row in content["rows"])
    monkeypatch.setattr("torch_mapss.evaluation.page.content._VALUES", 1000)
    row = page_content(results, str(tmp_path / "page.html"), 0, 1)["rows"][0]
    frames = results.frames(row["mixture"])
    values = frames.systems[row["system"]].ps[0]
    share = round(row["curve"]["step"] / float(np.diff(frames.times)[0]))
    assert len(row["curve"]["ps"]) == -(-len(values) // share) < 41
    assert row["curve"]["first"] == pytest.approx(frames.times[:share].mean(), abs=1e-6)
    assert row["curve"]["ps"][0] == pytest.approx(np.nanmean(values[:share]), rel=1e-3)


@pytest.mark.parametrize("embed_mb", [0.0, 0.05, 0.3])
def test_what_does_not_fit_is_linked_from_the_page(
    results: Results, tmp_path: Path, embed_mb: float
) -> None:
    page = Path(write_page(results, tmp_path / "page.html", embed_mb=embed_mb).path)
    content = content_of(page)
    assert all(
        set(row["tracks"]) == {"reference", "estimate", "mixture"} for row in content["rows"]
    )
    assert all(row["curve"] for row in content["rows"])
    linked = [track for track in content["tracks"] if not track["embedded"]]
    assert linked
    for track in linked:
        assert " " not in track["src"]
        assert "#" not in track["src"]
        assert (page.parent / unquote(track["src"])).exists()
    clips = [clip for one in content["segments"] for clip in (one["clips"] or {}).values()]
    used = sum(len(clip["src"]) for clip in clips)
    used += sum(len(t["src"]) for t in content["tracks"] if t["embedded"])
    used += sum(len(t["picture"]) for t in content["tracks"] if t["picture"])
    assert used <= 1e6 * embed_mb
    assert bool(clips) == (embed_mb > 0.1)
    enough = re.search(r"--embed-mb (\d+) embeds all", content["embedded"])
    assert enough is not None
    whole = write_page(results, tmp_path / "all.html", embed_mb=float(enough[1]))
    assert whole.embedded == "14 of 14 audio files embedded"


def test_a_clip_is_its_stretch(results: Results, tmp_path: Path) -> None:
    content = content_of(write_page(results, tmp_path / "page.html", embed_mb=0.3).path)
    segment = next(one for one in content["segments"] if one["clips"])
    path = paths_of(results, content["rows"][segment["row"]])["estimate"]
    assert path is not None
    made, rate = samples_of(segment["clips"]["estimate"]["src"])
    first = max(0, round((segment["start"] - CONTEXT_S) * rate))
    truth = soundfile.read(path)[0][first : first + len(made)]
    np.testing.assert_allclose(made, truth, atol=2e-7)


def test_the_budget_is_never_exceeded() -> None:
    budget = Budget(10)
    assert [budget.take(size) for size in (6, 5, 4, 1)] == [True, False, True, False]
    assert budget.left == 0


def test_names_are_text_and_nothing_is_fetched(results: Results, tmp_path: Path) -> None:
    page = Path(write_page(results, tmp_path / "page.html", title=WILD).path)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    escaped = html.escape(WILD, quote=False)
    assert f"<h1>{escaped}" in text.replace("&#39;", "'").replace("&#34;", '"')
    assert content_of(page)["rows"][2]["system"] == WILD
    ours = text[: text.index('<script type="application/json"')]
    assert not re.findall(r'(?:src|href)="(?!data:|#)', ours)


def test_the_answer_is_that_of_compare(results: Results, tmp_path: Path) -> None:
    text = html.unescape(Path(write_page(results, tmp_path / "p.html").path).read_text("utf-8"))
    assert compare(results).answer() in text
    assert "2 mixtures, 2 s in all, by 2 systems" in text


def test_audio_that_is_gone_is_said_and_not_fatal(results: Results, tmp_path: Path) -> None:
    elsewhere = load_results(results.folder, root=tmp_path)
    with pytest.warns(UserWarning, match="14 of 14 audio files") as told:
        content = content_of(write_page(elsewhere, tmp_path / "page.html").path)
    for text in (str(told[0].message), (tmp_path / "page.html").read_text(encoding="utf-8")):
        assert repr(str(tmp_path)) in html.unescape(text)
        assert "--audio-root DIR" in text
    assert content["tracks"] == []
    assert len(content["missing"]) == 14
    assert all(segment["clips"] is None for segment in content["segments"])
    assert all(row["curve"] for row in content["rows"])


def test_the_command_and_what_it_refuses(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    assert cli.main(["report", results.folder, "--out", str(out), "--embed-mb", "0.3"]) == OK
    told = capsys.readouterr().out
    assert str(out) in told
    assert content_of(out)["embedded"] in told
    kept = out.read_bytes()
    for arguments, words in (
        ([str(tmp_path), "--out", str(out)], "no folder of results"),
        ([results.folder, "--out", str(tmp_path)], "is a folder"),
        ([results.folder, "--out", str(out), "--embed-mb", "-1"], "embed_mb"),
    ):
        assert cli.main(["report", *arguments]) == BAD_INPUT
        assert words in capsys.readouterr().err
    assert out.read_bytes() == kept


@pytest.mark.parametrize("name", ["plotly.offline", "jinja2", "PIL"])
def test_a_missing_package_is_named_with_its_extra(
    results: Results, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"torch_mapss\[report\]"):
        write_page(results, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
