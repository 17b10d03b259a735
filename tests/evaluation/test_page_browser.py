"""The page in a real browser: it loads, sorts, plays, follows, and asks nothing of a network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from separations import WILD, wild_results

from torch_mapss.evaluation.page import write_page

browser = pytest.importorskip("browser", reason="the browser test needs websockets")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        browser.executable() is None and os.environ.get("CI") != "true",
        reason="no Chromium on this machine",
    ),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    return Path(write_page(wild_results(folder), folder / "page 1#.html"))


@pytest.fixture(params=[1280, 400])
def open_page(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[object]:
    opened = browser.Browser(tmp_path / "profile", width=request.param)
    opened.open(page.as_uri())
    opened.until(lambda: opened.run("document.querySelectorAll('#table tbody tr').length") == 8)
    yield opened
    opened.close()


def column(opened, name: str) -> list[str]:
    place = opened.run(
        "[...document.querySelectorAll('#table th')].findIndex((th) => th.dataset.name === "
        f"'{name}') + 1"
    )
    return opened.run(
        f"[...document.querySelectorAll('#table tbody td:nth-child({place})')]"
        ".map((td) => td.textContent)"
    )


def time_heard(opened) -> float:
    return opened.run("parseFloat(document.getElementById('clock').textContent)")


def is_playing(opened) -> bool:
    return opened.run("[...document.querySelectorAll('audio')].some((a) => !a.paused)")


def test_page(open_page, page: Path) -> None:
    opened = open_page
    # It fits the window, its charts are drawn, names are text.
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")
    assert opened.run("document.querySelectorAll('#boxes .boxlayer .trace').length") == 2
    assert opened.run("document.querySelectorAll('#curves image').length") == 3
    assert WILD in column(opened, "system")
    assert opened.run("document.querySelectorAll('td script, td i').length") == 0

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
    start = opened.run(
        "parseFloat(document.querySelector('#worst tbody td:nth-child(4)').textContent)"
    )
    opened.run("document.querySelector('#worst tbody button').click()")
    opened.until(lambda: is_playing(opened))
    began = time_heard(opened)
    assert max(0.0, start - 0.2) - 0.02 <= began <= start + 0.6
    place = opened.run("parseFloat(document.getElementById('head').style.left)")
    opened.until(lambda: time_heard(opened) > began + 0.1)
    assert opened.run("parseFloat(document.getElementById('head').style.left)") > place
    assert opened.run("document.getElementById('head').style.display") == "block"

    # A key switches to the reference at the same instant.
    opened.run("document.activeElement.blur()")
    if is_playing(opened):
        opened.key(" ")
        opened.until(lambda: not is_playing(opened))
    before = time_heard(opened)
    opened.key("r")
    opened.until(
        lambda: opened.run("document.querySelector('[data-role=reference]').ariaPressed") == "true"
    )
    assert opened.run(
        "document.querySelector('audio[data-role=reference]').currentTime"
    ) == pytest.approx(before, abs=0.05)
    opened.key(" ")
    opened.until(lambda: is_playing(opened))
    opened.key(" ")
    opened.until(lambda: not is_playing(opened))

    # A click into the chart goes there.
    spot = opened.run(
        "{ document.getElementById('stage').scrollIntoView({block: 'center'});"
        " const p = document.getElementById('curves'), r = p.getBoundingClientRect(),"
        " l = p._fullLayout; [r.left + l._size.l + l.xaxis.l2p(0.5), r.top + r.height / 2] }"
    )
    opened.click(*spot)
    opened.until(lambda: abs(time_heard(opened) - 0.5) < 0.03)

    # Nothing was complained of, and nothing left the file.
    assert opened.complaints() == []
    assert opened.requests() == [page.as_uri()]
