"""The documentation in a real browser, opened from a disk: its search, and its tables on a phone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import Chromium, chromium
from tests.support.docsite import build_site

pytestmark = pytest.mark.heavy
PHONE = 390
#: Opens the search, types a text, and lets the page know.
_SEARCH = """{
    document.querySelector('[for=__search]').click()
    const query = document.forms.search.query
    query.value = %r
    for (const name of ['focus', 'keyup', 'input']) query.dispatchEvent(new Event(name, {bubbles: true}))
}"""
_FOUND = "Array.from(document.querySelectorAll('.md-search-result__link'), link => link.href)"
#: The cells of the reference's tables that reach beyond the screen.
_OUTSIDE = """
    Array.from(document.querySelectorAll('.rows :is(table, td)'), cell => cell.getBoundingClientRect())
    .filter(({right, left}) => right > innerWidth || left < 0).length"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("docs") / "site")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as started:
        yield started


def found(browser: Chromium, text: str) -> list[Any]:
    """Search for a text; return the addresses of what is found."""
    browser.ask(_SEARCH % text)
    end = time.monotonic() + 120
    while not (links := browser.ask(_FOUND)):
        assert time.monotonic() < end, browser.ask("document.querySelector('.md-search-result').innerText")
        time.sleep(0.05)
    return list(links)


@pytest.mark.parametrize("width", [PHONE, 1280])
@pytest.mark.parametrize("page", ["index.html", "howto/inputs.html"])
def test_search_from_a_disk(site: Path, browser: Chromium, page: str, width: int) -> None:
    """The search works in a page that is a file, and asks no other host."""
    browser.show(site / page, width=width)
    links = found(browser, "proxy certificate")
    assert links[0].startswith(f"{site.as_uri()}/tls.html"), links
    assert [url for url in browser.fetched if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", ["commands", "errors", "keys", "report"])
def test_reference_on_a_phone(site: Path, browser: Chromium, name: str) -> None:
    """No column of the reference is beside the screen; its tables are tables on a desktop."""
    page = site / f"reference/{name}.html"
    browser.show(page, width=PHONE)
    assert browser.ask("document.querySelectorAll('.rows td').length") > 20
    assert browser.ask(_OUTSIDE) == 0
    browser.show(page, width=1280)
    assert browser.ask("getComputedStyle(document.querySelector('.rows thead')).display") != "none"


def test_no_page_scrolls_sideways(site: Path, browser: Chromium) -> None:
    """On a phone and on a desktop; wide tables scroll inside the page."""
    wide = []
    for page in sorted(site.rglob("*.html")):
        if "repository" not in page.relative_to(site).parts:
            browser.show(page, width=PHONE)
            if browser.ask("document.documentElement.scrollWidth > innerWidth"):
                wide.append(page.name)
    assert not wide
