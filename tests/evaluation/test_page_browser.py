"""The page in a real browser: it loads, sorts, plays, follows, and asks nothing of a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from separations import WILD, sources, wild_results

from torch_mapss.evaluation.page.content import write_page
from torch_mapss.evaluation.page.tracks import address

browser = pytest.importorskip("browser", reason="the browser test needs websockets")

absent = browser.executable() is None and os.environ.get("CI") != "true"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(absent, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wild_results(tmp_path_factory.mktemp("set"))


@pytest.fixture
def start(tmp_path: Path) -> Any:
    opened: list[Any] = []

    def begin(page: Path | str, width: int = 1280) -> Any:
        opened.append(browser.Browser(tmp_path / f"profile{len(opened)}", width=width))
        opened[-1].open(page if isinstance(page, str) else page.as_uri())
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


def column(opened: Any, name: str) -> list[str]:
    cells = f"document.querySelectorAll('#table td[data-name={name}]')"
    return opened.run(f"[...{cells}].map((td) => td.textContent)")


def clock(opened: Any) -> float:
    return opened.run("parseFloat(document.getElementById('clock').textContent)")


def is_playing(opened: Any) -> bool:
    return opened.run("[...document.querySelectorAll('audio')].some((a) => !a.paused)")


def pause(opened: Any) -> None:
    opened.run("document.activeElement.blur()")
    if is_playing(opened):
        opened.key(" ")
        opened.until(lambda: not is_playing(opened))


@pytest.mark.parametrize("width", [1280, 400])
def test_page(folder, start, width):
    page = folder.parent / f"page {width}#.html"
    write_page(folder, page)
    opened = start(page, width)
    opened.until(lambda: opened.run("document.querySelectorAll('#table tbody tr').length") == 8)
    # It fits the window, its charts are drawn, names are text.
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")
    counts = {"#boxes .boxlayer .trace": 2, "#boxes .errorbar": 2, "#boxes .annotation": 2}
    counts |= {"#pairs tbody tr": 1, "#curves image": 3, "td script, td i": 0}
    for what, count in counts.items():
        assert opened.run(f"document.querySelectorAll('{what}').length") == count, what
    assert WILD in column(opened, "system")
    # Every number of a table is in the window, where rows are cards as well.
    assert opened.run(
        "[...document.querySelectorAll('#table td, #worst td')].every((td) => {"
        " const r = td.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth; })"
    )
    # A header sorts, a second click the other way round, and says so.
    button = "document.querySelector('#table th[data-name=pm] button')"
    opened.run(f"{button}.click()")
    up = [float(text) for text in column(opened, "pm")]
    opened.run(f"{button}.click()")
    down = [float(text) for text in column(opened, "pm")]
    assert up == sorted(up)
    assert down == sorted(up, reverse=True)
    assert opened.run(f"{button}.parentNode.getAttribute('aria-sort')") == "descending"
    # The filter.
    opened.run(
        "{ const f = document.getElementById('filter'); f.value = 'm1 good';"
        " f.dispatchEvent(new Event('input')); }"
    )
    assert column(opened, "mixture") == ["m1", "m1"]
    # A worst moment plays at its time, and the playhead follows.
    shown = opened.run("document.querySelector('#worst td[data-name=start]').textContent")
    begin = 60.0 * float(shown.split(":")[0]) + float(shown.split(":")[1])
    opened.run("document.querySelector('#worst tbody button').click()")
    opened.until(lambda: is_playing(opened))
    began = clock(opened)
    assert max(0.0, begin - 0.25) - 0.02 <= began <= begin + 0.6
    place = opened.run("parseFloat(document.getElementById('head').style.left)")
    opened.until(lambda: clock(opened) > began + 0.1)
    assert opened.run("parseFloat(document.getElementById('head').style.left)") > place
    assert opened.run("document.getElementById('head').style.display") == "block"
    # A key switches to the reference at the same instant.
    pause(opened)
    before = clock(opened)
    opened.key("r")
    pressed = "document.querySelector('[data-role=reference]').ariaPressed"
    opened.until(lambda: opened.run(pressed) == "true")
    at = opened.run("document.querySelector('audio[data-role=reference]').currentTime")
    assert at == pytest.approx(before, abs=0.05)
    opened.key(" ")
    opened.until(lambda: is_playing(opened))
    pause(opened)
    # A click into the chart goes there.
    spot = opened.run(
        "{ document.getElementById('stage').scrollIntoView({block: 'center'});"
        " const p = document.getElementById('curves'), r = p.getBoundingClientRect(),"
        " l = p._fullLayout; [r.left + l._size.l + l.xaxis.l2p(0.5), r.top + r.height / 2] }"
    )
    opened.click(*spot)
    opened.until(lambda: abs(clock(opened) - 0.5) < 0.03)
    # Nothing was complained of, and nothing left the file.
    assert opened.complaints() == []
    assert opened.requests() == [page.as_uri()]


def test_linked_sounds_play_and_a_file_that_comes_back_is_loaded_again(folder, start):
    page = folder.parent / "linked.html"
    write_page(folder, page, embed_mb=0.0)
    there = folder.parent / "s1"
    away = there.rename(folder.parent / "away")
    try:
        opened = start(page)
        opened.run("document.querySelector('#worst tbody button').click()")
        told = "document.getElementById('what').textContent"
        opened.until(lambda: "where this page links it" in opened.run(told))
    finally:
        away.rename(there)
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
    failed += await new Promise((done) => {
      sound.onseeked = () => done(0);
      sound.onerror = () => done(1);
      sound.currentTime = sound.duration * k / 13;
    });
  }
  return failed;
})()
"""


def test_embedded_sounds_can_be_played_from_any_place(start):
    """Chromium cannot seek in short FLAC files."""
    opened = start("data:text/html,<p>sounds</p>")
    for rate in (8000, 16000, 44100):
        for seconds in (1.0, 2.0, 3.0, 12.0):
            wave = sources(1, seconds, rate=rate)[0].mul(2**15).round().div(2**15)
            failed = opened.run(SEEK % address(wave, rate))
            assert failed == 0, (rate, seconds)
