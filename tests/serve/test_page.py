"""The page at / in a browser: what it shows, what it asks, and that texts of clients stay texts."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from kalstream.runs.options import Options
from kalstream.serve.page import page
from kalstream.serve.tokens import Tokens, make_token
from report.browser import EXECUTABLE, Browser
from serve.running import running

EVIL = "<img src=x onerror=alert(1)>"


class Address:
    """What `Browser.open` takes for a page that is not a file."""

    def __init__(self, address: str) -> None:
        self.address = address

    def resolve(self) -> "Address":
        return self

    def as_uri(self) -> str:
        return self.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if EXECUTABLE is None:
        pytest.skip("no Chromium is installed")
    opened = Browser()
    yield opened
    opened.close()


def teach(url: str, headers: dict[str, str] | None = None) -> None:
    rng = np.random.default_rng(0)
    with httpx2.Client(base_url=url, headers=headers) as client:
        for k in range(5):
            sign = 1.0 if k < 3 else -1.0
            events: list[dict[str, Any]] = [
                {"row": {"x": x, "<b>y</b>": "red"}, "label": EVIL if sign * x > 0 else "down"}
                for x in rng.standard_normal(100).tolist()
            ]
            answer = client.post("/models/default/learn", json={"rows": events})
            answer.raise_for_status()
        waiting = {"rows": [{"row": {"x": 1.0}, "id": k} for k in range(7)]}
        client.post("/models/default/predict", json=waiting).raise_for_status()


def until(browser: Browser, expression: str) -> Any:
    """The value of an expression as soon as it is true."""
    end = time.monotonic() + 20.0
    while not (value := browser.run(expression)):
        assert time.monotonic() < end, (expression, browser.run("document.body.innerText"))
        time.sleep(0.05)
    return value


def test_the_page_asks_nobody_else_and_writes_no_markup() -> None:
    content = page()
    assert "--model" in content  # the style sheet of the report
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "@import"):
        assert word not in content
    addresses = content.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in addresses
    assert "https://" not in addresses


def test_what_the_page_shows(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path / "data", Options(features="raw", window=50)) as url:
        browser.open(Address(url), 1200)
        assert "/models/default/learn" in until(
            browser, "!document.getElementById('empty').hidden && document.body.innerText"
        )
        teach(url)
        text = until(
            browser,
            "document.body.innerText.includes('507 events') && document.body.innerText",
        )
        for words in ("499 rows scored", "no-change", "log-loss so far", "waiting\n7\n"):
            assert words in text, text
        assert browser.run("document.querySelectorAll('#charts .line').length") == 6
        assert browser.run("document.querySelectorAll('.heat rect').length") > 20
        browser.run("document.querySelector('#row input').value = '2.5'")
        browser.run("document.querySelector('#row button').click()")
        assert EVIL in until(browser, "document.getElementById('made').innerText")
        labels = "[...document.querySelectorAll('#row label')].map((e) => e.textContent)"
        assert browser.run(labels) == ["x", "<b>y</b>"]
        assert browser.run("document.querySelectorAll('img, b b, #row b').length") == 0
        assert browser.complaints() == []
        assert all(asked.startswith(url) for asked in browser.requests())
        browser.open(Address("about:blank"), 400)
        browser.open(Address(url), 400, dark=True)
        until(browser, "document.querySelectorAll('#charts .line').length")
        assert browser.run("document.documentElement.scrollWidth") == 400
        browser.open(Address("about:blank"), 400)


def test_the_page_asks_for_a_token(browser: Browser, tmp_path: Path) -> None:
    token = make_token(tmp_path, "me", ["read", "learn", "predict"])
    with running(tmp_path / "data", tokens=Tokens.read(tmp_path)) as url:
        teach(url, {"authorization": f"Bearer {token}"})
        browser.open(Address(url), 400)
        until(browser, "!document.getElementById('login').hidden")
        assert browser.run("document.getElementById('shown').hidden")
        browser.run(f"document.getElementById('token').value = '{token}'")
        browser.run("document.querySelector('#login button').click()")
        until(browser, "!document.getElementById('shown').hidden")
        assert browser.run("document.getElementById('login').hidden")
        browser.open(Address("about:blank"), 400)
