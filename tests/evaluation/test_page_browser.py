"""The page in a real browser: buttons, filters, seeking, light and dark, and no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from separations import WILD, save_manifest, score_set, wild_results, write_all
from waveforms import leaky, tones

from torch_mapss import evaluate_set
from torch_mapss.evaluation.page.content import write_page
from torch_mapss.evaluation.page.tracks import address, lossless_address

browser = pytest.importorskip("browser", reason="the browser test needs websockets")

absent = browser.executable() is None and os.environ.get("CI") != "true"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(absent, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wild_results(tmp_path_factory.mktemp("set"))


@pytest.fixture
def open_page(tmp_path: Path) -> Any:
    browsers: list[Any] = []

    def begin(page: Path | str, width: int = 1280, scheme: str = "light") -> Any:
        profile = tmp_path / f"profile{len(browsers)}"
        browsers.append(browser.Browser(profile, width=width, scheme=scheme))
        browsers[-1].open(page if isinstance(page, str) else page.as_uri())
        return browsers[-1]

    yield begin
    for opened in browsers:
        opened.close()


def column(opened: Any, name: str) -> list[str]:
    cells = f"document.querySelectorAll('#table td[data-name={name}]')"
    return opened.run(f"[...{cells}].map((td) => td.textContent)")


def text_of(opened: Any, selector: str) -> str:
    return opened.run(f"document.querySelector('{selector}').textContent")


def clock(opened: Any) -> float:
    return opened.run("parseFloat(document.getElementById('clock').textContent)")


def is_playing(opened: Any) -> bool:
    return opened.run("[...document.querySelectorAll('audio')].some((a) => !a.paused)")


def pause(opened: Any) -> None:
    opened.run("document.activeElement.blur()")
    if is_playing(opened):
        opened.key(" ")
        opened.until(lambda: not is_playing(opened))


# Contrast of text and background as in WCAG 2, of elements whose own background is opaque.
CONTRAST = """
((selector) => {
  const node = document.querySelector(selector);
  const parse = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const opaque = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    const clear = colour === "rgba(0, 0, 0, 0)" && node.parentElement;
    return clear ? opaque(node.parentElement) : colour;
  };
  const luminance = (colour) => parse(colour).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const pair = [getComputedStyle(node).color, opaque(node)].map(luminance).sort((a, b) => b - a);
  return (pair[0] + 0.05) / (pair[1] + 0.05);
})(%r)
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_buttons_are_legible_under_the_pointer_too(folder, open_page, scheme):
    page = folder.parent / f"{scheme}.html"
    write_page(folder, page)
    opened = open_page(page, scheme=scheme)
    paper = opened.run("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 23, 29)"}[scheme]
    selectors = (
        "body",
        "#meaning",
        "#ranking td",
        "#scores button",
        "#roles button",
        "tr.chosen td",
    )
    for selector in selectors:
        assert opened.run(CONTRAST % selector) > 4.5, selector
    for pressed in ("#scores [aria-pressed=true]", "#roles [aria-pressed=true]"):
        opened.point_at(pressed)
        opened.until(
            lambda pressed=pressed: opened.run(
                f"document.querySelector('{pressed}').matches(':hover')"
            )
        )
        assert opened.run(CONTRAST % pressed) > 4.5, pressed


def check_layout(opened: Any) -> None:
    """It fits the window, its charts are drawn, names are text."""
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")
    counts = {"#ranking .mean": 2, "#ranking .interval": 2, "#pairs tbody tr": 1}
    counts |= {"#panels img.picture": 3, "td script, td i": 0, "#panels path[data-score=pm]": 1}
    for selector, count in counts.items():
        number = opened.run(f"document.querySelectorAll('{selector}').length")
        assert number == count, selector
    assert WILD in column(opened, "system")
    # Every number of a table is in the window, where rows are cards as well.
    assert opened.run(
        "[...document.querySelectorAll('#table td, #pairs td, #ranking td.n')].every((td) => {"
        " const r = td.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth + 1; })"
    )
    # Every axis has at least three labelled values.
    assert opened.run(
        "[...document.querySelectorAll('.ticks')].every((t) => t.children.length > 2)"
    )
    # No name is split by the letter: a name is wider than it is high.
    assert opened.run(
        "[...document.querySelectorAll('#pairs tbody th, #ranking tbody th')].every((th) => {"
        " const r = th.getBoundingClientRect(); return r.width > r.height; })"
    )


def check_buttons(opened: Any) -> None:
    """A score's button shows its ranking, sources and pairs; headers sort."""
    opened.run("document.querySelector('#scores [data-score=log_pm]').click()")
    assert "log PM" in text_of(opened, "#meaning")
    assert text_of(opened, "#ranking-axis-name") == "log PM"
    labels = "[...document.querySelectorAll('#ranking-axis text')].length"
    assert opened.run(labels) >= 3
    assert opened.run("document.querySelectorAll('#sources tbody tr').length") == 2
    decimals = (
        "[...document.querySelectorAll('#ranking td[data-label=mean]')].map((td) => td.textContent)"
    )
    assert all(text[-3] == "." for text in opened.run(decimals))
    button = "document.querySelector('#table th[data-name=pm] button')"
    opened.run(f"{button}.click()")
    ascending = [float(text) for text in column(opened, "pm")]
    opened.run(f"{button}.click()")
    descending = [float(text) for text in column(opened, "pm")]
    assert ascending == sorted(ascending)
    assert descending == sorted(ascending, reverse=True)
    assert opened.run(f"{button}.parentNode.getAttribute('aria-sort')") == "descending"
    # A list per score, the five worst until all are asked for.
    lists = opened.run("[...document.querySelectorAll('#worst table')].map((t) => t.dataset.score)")
    assert {"clearance", "fidelity", "ps", "log_pm"} <= {*lists}
    rows = "document.querySelectorAll('#worst table[data-score=ps] tbody tr').length"
    assert opened.run(rows) == 5
    opened.run("document.querySelector('#worst h3 button[aria-label$=PS]').click()")
    assert opened.run(rows) > 5


def check_filter(opened: Any) -> None:
    opened.run(
        "{ const f = document.getElementById('filter'); f.value = 'm1 good';"
        " f.dispatchEvent(new Event('input')); }"
    )
    assert column(opened, "mixture") == ["m1", "m1"]


def check_playing(opened: Any) -> None:
    """A worst moment plays at its time, the playhead follows, keys and clicks seek."""
    shown = text_of(opened, "#worst td[data-name=start]").split(" ")[0]
    begin = 60.0 * float(shown.split(":")[0]) + float(shown.split(":")[1])
    opened.run("document.querySelector('#worst tbody button').click()")
    opened.until(lambda: is_playing(opened))
    time = clock(opened)
    assert max(0.0, begin - 0.25) - 0.02 <= time <= begin + 0.6
    head = "document.getElementById('head')"
    left = opened.run(f"{head}.getBoundingClientRect().left")
    opened.until(lambda: clock(opened) > time + 0.1)
    assert opened.run(f"{head}.getBoundingClientRect().left") > left
    assert opened.run("document.getElementById('marked').getBoundingClientRect().width") > 5
    # A key switches to the reference at the same instant.
    pause(opened)
    before = clock(opened)
    opened.key("r")
    pressed = "document.querySelector('[data-role=reference]').ariaPressed"
    opened.until(lambda: opened.run(pressed) == "true")
    reference_time = opened.run("document.querySelector('audio[data-role=reference]').currentTime")
    assert reference_time == pytest.approx(before, abs=0.05)
    opened.key(" ")
    opened.until(lambda: is_playing(opened))
    pause(opened)
    # A click into the chart goes there, and the pointer reads the scores.
    x, y = opened.run(
        "{ document.getElementById('stage').scrollIntoView({block: 'center'});"
        " const r = document.getElementById('overlay').getBoundingClientRect();"
        " [r.left + 0.5 * r.width / player.end, r.top + r.height / 2] }"
    )
    opened.click(x, y)
    opened.until(lambda: abs(clock(opened) - 0.5) < 0.03)
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    opened.until(lambda: text_of(opened, "#readout").startswith("0.5"))
    assert "PS " in text_of(opened, "#readout")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page(folder, open_page, width, scheme):
    page = folder.parent / f"page {width}#.html"
    write_page(folder, page)
    opened = open_page(page, width, scheme)
    opened.until(lambda: opened.run("document.querySelectorAll('#table tbody tr').length") == 8)
    check_layout(opened)
    check_buttons(opened)
    check_filter(opened)
    check_playing(opened)
    # Nothing was complained of, and nothing left the file.
    assert opened.complaints() == []
    assert opened.requests() == [page.as_uri()]


def test_hidden_references_are_listed_when_asked_for(open_page, tmp_path):
    truth = tones(2, 0.6)
    estimates = {"ours": leaky(truth, 0.1), "control:anchor": leaky(truth, 1.0)}
    files = {name: write_all(tmp_path / name.split(":")[-1], x) for name, x in estimates.items()}
    references = write_all(tmp_path / "truth", truth)
    entry = {"mixture_id": "m", "references": references, "systems": files}
    score_set(save_manifest(tmp_path, [entry]), tmp_path / "results")
    write_page(tmp_path / "results", tmp_path / "page.html")
    opened = open_page(tmp_path / "page.html")
    assert {*column(opened, "system")} == {"ours"}
    assert text_of(opened, "#controls tbody th") == "anchor"
    opened.run("document.getElementById('controls-too').click()")
    assert {*column(opened, "system")} == {"ours", "anchor"}
    assert opened.complaints() == []


def test_linked_sounds_play_and_a_file_that_comes_back_is_loaded_again(folder, open_page):
    page = folder.parent / "linked.html"
    write_page(folder, page, embed_mb=0.0)
    home = folder.parent / "s1"
    away = home.rename(folder.parent / "away")
    try:
        opened = open_page(page)
        assert opened.run("document.querySelectorAll('#panels img.picture').length") == 3
        opened.run("document.querySelector('#worst tbody button').click()")
        opened.until(lambda: "which this page links to" in text_of(opened, "#what"))
    finally:
        away.rename(home)
    opened.run("document.getElementById('play').click()")
    opened.until(lambda: is_playing(opened) and clock(opened) > 0.0)
    pause(opened)
    opened.run("document.querySelectorAll('#worst tbody button')[2].click()")
    opened.until(lambda: is_playing(opened))


SEEK = """
(async () => {
  let failed = 0;
  for (let k = 1; k <= 12; k++) {
    const sound = new Audio();
    sound.preload = "auto";
    sound.src = "%s";
    await new Promise((done) => { sound.onloadedmetadata = done; sound.onerror = done; });
    if (Math.abs(sound.duration - %s) > 0.08) failed += 1;
    failed += await new Promise((done) => {
      sound.onseeked = () => done(0);
      sound.onerror = () => done(1);
      sound.currentTime = sound.duration * k / 13;
    });
  }
  return failed;
})()
"""


@pytest.mark.parametrize("encode", [address, lossless_address])
def test_embedded_sounds_can_be_played_from_any_place(open_page, encode):
    """Chromium cannot seek in short FLAC files."""
    opened = open_page("data:text/html,<p>sounds</p>")
    for rate in (8000, 16000, 44100):
        for seconds in (1.0, 2.0, 3.0, 12.0):
            wave = tones(1, seconds, rate=rate)[0].mul(2**15).round().div(2**15)
            failed = opened.run(SEEK % (encode(wave, rate), seconds))
            assert failed == 0, (rate, seconds)


PEAK = """
(async () => {
  const content = await (await fetch("%s")).arrayBuffer();
  const sound = await new OfflineAudioContext(1, 16000, 16000).decodeAudioData(content);
  const samples = sound.getChannelData(0);
  let peak = 0;
  samples.forEach((x, k) => { if (Math.abs(x) > Math.abs(samples[peak])) peak = k; });
  return peak / 16000;
})()
"""


def test_compressed_sounds_are_in_time(open_page):
    """The encoder's delay, some 30 ms, is removed by whoever plays."""
    wave = 0.01 * tones(1, 1.0)[0]
    wave[8000:8032] += 0.8
    opened = open_page("data:text/html,<p>sounds</p>")
    assert opened.run(PEAK % address(wave, 16000)) == pytest.approx(0.501, abs=0.004)


def test_channels_of_systems_and_of_the_open_estimate(tmp_path, open_page):
    """The channels of a stereo set, in a table per system and one of the estimate that is open."""
    truth = tones(2, 0.8, seed=1)
    references = torch.stack([truth, truth], 1)
    made = torch.stack([leaky(truth, 0.05), leaky(truth, 0.6)], 1)  # worse on the right
    entry = {"mixture_id": "m", "references": write_all(tmp_path / "truth", references)}
    entry |= {"systems": {"one": write_all(tmp_path / "made", made)}}
    how = {"encoder": "mel", "measures": "decomposition", "channels": "each"}
    results = evaluate_set([entry], out=tmp_path / "results", **how)
    write_page(results, tmp_path / "page.html")
    opened = open_page(tmp_path / "page.html", width=390)
    cells = "[...document.querySelectorAll('%s td')].map((td) => Number(td.textContent))"
    left, right = opened.run(cells % "#channels")
    assert left > right + 0.1
    rows = opened.run(cells % "#row-channels")  # two channels of three scores
    assert len(rows) == 6
    assert rows[0] > rows[3] + 0.1
    assert opened.run("document.documentElement.scrollWidth") <= 390
    assert not opened.complaints()
