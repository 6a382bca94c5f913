"""The pages in a real browser: nothing complains, nothing overflows, everything has a size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kalstream.report import write_comparison, write_report
from report import synthetic
from report.browser import EXECUTABLE, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="no chromium or chrome is installed"),
]

# What is wider than the page, less what scrolls in a box of its own.
OVERFLOW = """
[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  const own = e.closest('.scroll') || e.closest('svg.inner');
  return box.right > innerWidth + 1 && box.width > 0 && !own;
}).map(e => e.tagName + '.' + e.getAttribute('class') + ' ' + e.textContent.slice(0, 40))
"""
SIZES = """
[...document.querySelectorAll('figure, svg.chart, table')].filter(
  e => !e.closest('details')
).map(e => {
  const box = e.getBoundingClientRect();
  return [e.getAttribute('class'), box.width, box.height];
})
"""
COLOURS = """
(() => {
  const of = (e, what) => getComputedStyle(e)[what];
  const line = document.querySelector('path.line.model, path.line.r0');
  return [of(document.body, 'backgroundColor'), of(document.body, 'color'), of(line, 'stroke')];
})()
"""
POINT = """
(() => {
  const svg = [...document.querySelectorAll('svg.chart')][%d];
  svg.scrollIntoView({block: 'center', behavior: 'instant'});
  const box = svg.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    evil = ["<script>alert(1)</script>", "a" * 300, "0"]
    runs = {
        "binary": synthetic.classification(root / "binary"),
        "many": synthetic.many_classes(root / "many"),
        "learned": synthetic.classification(root / "learned", half_life="learned"),
        "regression": synthetic.regression(root / "regression"),
        "one": synthetic.classification(root / "one", rows=150),
        "hostile": synthetic.classification(root / "hostile", labels=evil, name="x" * 200),
    }
    pages = {name: write_report(run) for name, run in runs.items()}
    pair = [runs["binary"], runs["learned"]]
    pages["comparison"] = write_comparison(pair, root / "comparison.html")
    return pages


PAGES = ("binary", "many", "learned", "regression", "one", "hostile", "comparison")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_page(browser: Browser, files: dict[str, Path], name: str, width: int, dark: bool) -> None:
    browser.open(files[name], width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [files[name].resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERFLOW) == []
    sizes = browser.run(SIZES)
    assert len(sizes) > 4
    assert all(wide > 20 and tall > 10 for _, wide, tall in sizes), sizes
    back, ink, line = browser.run(COLOURS)
    assert (brightness(back) < 60) == dark
    assert abs(brightness(back) - brightness(ink)) > 150
    assert abs(brightness(back) - brightness(line)) > 80


def brightness(colour: str) -> float:
    return sum(float(part) for part in colour[4:-1].split(",")) / 3


def point(browser: Browser, number: int) -> Any:
    x, y = browser.run(POINT % number)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    return browser.run("(document.querySelector('.readout') || {}).innerText")


def test_pointing_at_a_curve_reads_it_out(browser: Browser, files: dict[str, Path]) -> None:
    folder = files["binary"].parent
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    browser.open(files["binary"], 1200)
    titles = browser.run(
        "[...document.querySelectorAll('svg.chart')].map(e => e.getAttribute('aria-label'))"
    )
    texts = point(browser, titles.index("Accuracy over all rows so far"))
    row = int(texts.split("row ")[1].split("\n")[0].replace(",", ""))
    line = next(line for line in lines if abs(line["row"] - row) <= 20)
    assert f"{100 * line['total']['accuracy']:.1f}%" in texts
    assert "no-change" in texts
    # one crosshair for all figures of time
    assert browser.run("document.querySelectorAll('.cross').length") > 5
    texts = point(
        browser,
        next(i for i, t in enumerate(titles) if t.startswith("Probability of each half-life")),
    )
    assert "never forgets" in texts
    assert "%" in texts
    assert browser.complaints() == []


def test_the_switch_turns_day_into_night(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["binary"], 1200)
    day = browser.run(COLOURS)
    browser.run("document.querySelector('button.theme').click()")
    night = browser.run(COLOURS)
    assert brightness(day[0]) > 200 > 60 > brightness(night[0])
    browser.run("document.querySelector('button.theme').click()")
    assert browser.run(COLOURS) == day


def test_arrow_keys_move_the_crosshair(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["binary"], 1200)
    browser.run("document.querySelector('svg.chart').focus()")
    texts = []
    for _ in range(2):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
        texts.append(browser.run("document.querySelector('.readout').innerText"))
    assert texts[0] != texts[1]
    assert browser.complaints() == []


def test_the_page_is_complete_without_script(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["many"], 1200, script=False)
    sizes = browser.run(SIZES)
    assert browser.run("document.querySelectorAll('button').length") == 0
    assert len(sizes) > 10
    assert all(wide > 20 and tall > 10 for _, wide, tall in sizes)


def test_it_prints_in_ink_on_paper(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["binary"], 1000, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    back, ink, _ = browser.run(COLOURS)
    browser.call("Emulation.setEmulatedMedia", media="")
    assert brightness(back) > 250 or back == "rgba(0, 0, 0, 0)"
    assert brightness(ink) < 60
