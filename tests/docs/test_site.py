"""The site as a reader has it: built without a warning, opened from the disk in a browser that has no network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentfly_lib.envs.miniwob.chromium import Chromium, find_browser
from agentfly_lib.errors import SandboxUnavailableError
from tests.docs.pages import PAGES, REPOSITORY, page_name

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: make docs"),
]
SECONDS = 120.0
"""Limit of one answer of the browser, and of what a page does by itself."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_every_page_is_there_and_in_the_contents(site):
    home = (site / "index.html").read_text()
    for page in PAGES:
        if page.name == "README.md":
            continue
        built = page.relative_to(REPOSITORY / "docs").with_suffix(".html")
        assert (site / built).exists(), page_name(page)
        assert f'href="{built}"' in home or built.name == "index.html", f"{page_name(page)} is not in the contents"


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\"\s>]+)", page.read_text())
        fetched += re.findall(r"<link[^>]+href=\"?(https?:[^\"\s>]+)", page.read_text())
        assert fetched == [], page
    assert not re.search(r"(?:url\(|@import)[\s\"']*https?:", "".join(p.read_text() for p in site.rglob("*.css")))


def test_docstrings_are_in_the_reference(site):
    agents = (site / "reference" / "api" / "agents.html").read_text()
    assert "Lets the agent work on each conversation" in agents
    store = (site / "reference" / "api" / "store.html").read_text()
    assert "Every collected group with its rewards" in store


class Browser:
    """Chromium in its cage, with the site at `/site` and no network."""

    def __init__(self, site: Path) -> None:
        self._chromium = Chromium({"/site": site}, seconds=SECONDS)
        self._call("Page.enable")

    def close(self) -> None:
        self._chromium.close()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._chromium.tools.call(method, self._chromium.session, **parameters)

    def size(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, page: str) -> None:
        self._chromium.tools.forget()
        self._call("Page.navigate", url=f"file:///site/{page}")
        self._chromium.tools.wait_for("Page.loadEventFired")

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def value(self, expression: str) -> Any:
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_until(self, expression: str) -> Any:
        """The expression's value, once it is true."""
        deadline = time.monotonic() + SECONDS
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            self.value("new Promise(resolve => setTimeout(resolve, 50))")
        return value


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[Browser]:
    try:
        find_browser()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    browser = Browser(site)
    yield browser
    browser.close()


@pytest.mark.parametrize("width", [1300, 420])
def test_no_page_is_wider_than_its_window(browser, site, width):
    """Tables and code that are too wide scroll inside the page."""
    browser.size(width, 900)
    wide = []
    for name in ("index", "from/verl", "data", "reference/recipes", "reference/cli", "reference/api/store", "security"):
        browser.open(f"{name}.html")
        if browser.value("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append(name)
    assert wide == []


def test_search_works_from_the_disk(browser):
    browser.size(1300, 900)
    browser.open("index.html")
    browser.value("document.querySelector('.md-search__input').focus()")
    browser.type("flush_seconds")
    links = browser.wait_until(
        "(() => { const found = [...document.querySelectorAll('.md-search-result__link')].map(link => link.href);"
        " return found.length ? found : null; })()"
    )
    assert any("reference/recipes" in link for link in links)
