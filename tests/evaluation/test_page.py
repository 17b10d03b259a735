"""The page to listen to: what it holds, what is embedded, and that names stay text."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile
import torch
from separations import WILD, environment, sources, wild_results

from torch_mapss.evaluation import cli
from torch_mapss.evaluation.commands.options import BAD_INPUT, OK
from torch_mapss.evaluation.page import write_page
from torch_mapss.evaluation.page.content import Budget, Wanted, page_content
from torch_mapss.evaluation.page.sound import flac, playing_gain, read_sound
from torch_mapss.evaluation.results import Results, load_results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load_results(wild_results(tmp_path_factory.mktemp("set")))


def content_of(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def samples_of(source: str) -> Any:
    assert source.startswith("data:audio/flac;base64,")
    return soundfile.read(io.BytesIO(base64.b64decode(source.split(",", 1)[1])))


def test_embedded_sound_is_the_file_to_the_last_bit(results: Results, tmp_path: Path) -> None:
    page = Path(write_page(results, tmp_path / "deep" / "page.html"))
    content = content_of(page)
    row = content["rows"][0]
    detail = content["details"][row["detail"]]
    paths = results.audio(row["mixture"])
    expected = {
        "reference": paths.references[0],
        "estimate": paths.estimates[row["system"]][0],
        "mixture": paths.mixture,
    }
    for role, path in expected.items():
        track = content["tracks"][detail["tracks"][role]]
        assert path is not None
        assert track["embedded"]
        made, rate = samples_of(track["src"])
        truth, true_rate = soundfile.read(path)
        assert rate == true_rate
        np.testing.assert_array_equal(made, np.round(truth * 2**23) / 2**23)
        assert track["seconds"] == pytest.approx(len(truth) / rate)


def test_sixteen_bits_stay_sixteen(tmp_path: Path) -> None:
    wave = 0.5 * sources(1, 0.3)[0]
    path = tmp_path / "a.wav"
    soundfile.write(path, wave.numpy(), 16000, subtype="PCM_16")
    sound = read_sound(str(path))
    made, _ = soundfile.read(io.BytesIO(flac(sound)), dtype="int16")
    truth, _ = soundfile.read(path, dtype="int16")
    assert sound.subtype == "PCM_16"
    np.testing.assert_array_equal(made, truth)
    cut, _ = soundfile.read(io.BytesIO(flac(sound, 0.1, 0.2)), dtype="int16")
    np.testing.assert_array_equal(cut, truth[1600:3200])


def test_playing_levels_are_those_that_are_scored() -> None:
    wave = sources(1, 1.0)[0]
    assert playing_gain(0.1 * wave, 16000) == pytest.approx(
        10 * playing_gain(wave, 16000), rel=1e-3
    )
    assert playing_gain(torch.zeros(16000), 16000) == 1.0


def test_curves_are_the_frames_of_the_results(results: Results, tmp_path: Path) -> None:
    content = page_content(results, str(tmp_path / "page.html"), Wanted(10**9, 3))
    for row in content["rows"]:
        detail = content["details"][row["detail"]]
        frames = results.frames(row["mixture"])
        system = frames.systems[row["system"]]
        active = system.active[row["place"]]
        made = np.array(detail["ps"], dtype=float)
        np.testing.assert_array_equal(np.isfinite(made), active)
        np.testing.assert_allclose(made[active], system.ps[row["place"]][active], rtol=1e-3)
        times = detail["first"] + detail["step"] * np.arange(len(made))
        np.testing.assert_allclose(times, frames.times, atol=1e-4)
    assert [one["score"] for one in content["segments"][:3]] == sorted(
        one["score"] for one in content["segments"][:3]
    )


def test_what_does_not_fit_is_linked_from_the_page(results: Results, tmp_path: Path) -> None:
    page = Path(write_page(results, tmp_path / "page.html", embed_mb=0.05))
    content = content_of(page)
    tracks = content["tracks"]
    assert tracks
    assert not any(track["embedded"] for track in tracks)
    for track in tracks:
        assert " " not in track["src"]
        assert "#" not in track["src"]
        assert (page.parent / unquote(track["src"])).exists()
    embedded = sum(
        len(clip["src"]) for s in content["segments"] for clip in (s["clips"] or {}).values()
    )
    assert embedded <= 50_000
    none = content_of(Path(write_page(results, tmp_path / "none.html", embed_mb=0.0)))
    assert not any(segment["clips"] for segment in none["segments"])


def test_the_budget_is_never_exceeded() -> None:
    budget = Budget(10)
    assert [budget.take(size) for size in (6, 5, 4, 1)] == [True, False, True, False]
    assert budget.left == 0


def test_names_are_text_and_nothing_is_fetched(results: Results, tmp_path: Path) -> None:
    page = Path(write_page(results, tmp_path / "page.html", title=WILD))
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert f"<h1>{html.escape(WILD, quote=False)}" in text.replace("&#39;", "'").replace(
        "&#34;", '"'
    )
    assert content_of(page)["rows"][2]["system"] == WILD
    ours = text[: text.index('<script type="application/json"')]
    assert not re.findall(r'(?:src|href)="(?!data:|#)', ours)


def test_audio_that_is_gone_is_said_and_not_fatal(results: Results, tmp_path: Path) -> None:
    elsewhere = load_results(results.folder, root=tmp_path)
    with pytest.warns(UserWarning, match="14 of 14 audio files cannot be read") as told:
        content = content_of(Path(write_page(elsewhere, tmp_path / "page.html")))
    for text in (str(told[0].message), (tmp_path / "page.html").read_text(encoding="utf-8")):
        assert f"expected below {str(tmp_path)!r}" in html.unescape(text)
        assert "--audio-root DIR" in text
    assert content["tracks"] == []
    assert content["missing"]
    assert all(segment["clips"] is None for segment in content["segments"])
    assert "was not found" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_command_and_what_it_refuses(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    assert cli.main(["report", results.folder, "--out", str(out), "--n", "0"]) == OK
    assert content_of(out)["segments"] == []
    assert str(out) in capsys.readouterr().out
    kept = out.read_bytes()
    for arguments, words in (
        ([str(tmp_path), "--out", str(out)], "no folder of results"),
        ([results.folder, "--out", str(tmp_path)], "is a folder"),
        ([results.folder, "--out", str(out), "--embed-mb", "-1"], "embed_mb must lie"),
        ([results.folder, "--out", str(out), "--n", "-1"], "worst must be"),
    ):
        assert cli.main(["report", *arguments]) == BAD_INPUT
        assert words in capsys.readouterr().err
    assert out.read_bytes() == kept


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["half", "whole"])
def test_a_kill_while_it_is_written_leaves_the_old_page(
    results: Results, tmp_path: Path, moment: str
) -> None:
    """Ended with SIGKILL when half of the page is on the disk, or all of it and not yet moved."""
    out = tmp_path / "page.html"
    old = b"<p>the old page</p>" * 1000
    out.write_bytes(old)
    code = f"""
import sys, time
from torch_mapss.evaluation import cli, files

def stop():
    print("now", flush=True)
    time.sleep(300)

def half(name, content):
    with open(name, "wb") as file:
        file.write(content[: len(content) // 2])
    stop()

if {moment!r} == "half":
    files._dump = half
else:
    files._synced = lambda name: stop()
cli.main(["report", *sys.argv[1:], "--n", "1"])
"""
    command = [results.folder, "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command], env=environment(), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert out.read_bytes() == old
    begun = [path for path in tmp_path.iterdir() if path != out]
    assert [path.stat().st_size > 1_000_000 for path in begun] == [True]
    assert cli.main(["report", *command, "--n", "1", "--quiet"]) == OK
    assert content_of(out)["rows"]
    assert [*tmp_path.iterdir()] == [out]  # nor what was begun


@pytest.mark.parametrize("name", ["plotly.offline", "jinja2", "PIL"])
def test_a_missing_package_is_named_with_its_extra(
    results: Results, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"torch_mapss\[report\]"):
        write_page(results, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
