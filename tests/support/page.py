"""Renders the HTML page of smoke tests, and checks what is true for every page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from builder.deliver.smoke.page import render, view

VOID = {"meta", "br", "link", "img"}


class Checked(HTMLParser):
    """Checks that every element is closed, and that no attribute loads or runs anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            assert not name.startswith("on") and name not in (
                "src",
                "srcset",
                "action",
                "formaction",
                "xlink:href",
            ), (tag, name)
            assert name != "href" or (value or "").startswith("#"), value
            assert name != "style" or "url" not in (value or ""), value
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("tr", "td", "th", "li", "p") and self.open[-1] != tag:
            while self.open[-1] in ("td", "th", "li", "p"):
                self.open.pop()
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def page(targets: Any, histories: Any = None) -> tuple[str, str]:
    """The page, and its text with single spaces; checks the invariants of every page."""
    views = [view(name, *found) for name, found in targets.items() if found[0]]
    untested = {name: problems for name, (stored, problems) in targets.items() if not stored}
    html = render(views, untested, made="2026-11-21 09:00 UTC", histories=histories or {})
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert not parser.open and not parser.seen & {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "img",
        "form",
        "base",
    }
    assert (
        "default-src 'none'" in html and "prefers-color-scheme: dark" in html and "width=device-width" in html
    )
    assert (
        not re.search(r"(https?:)?//[a-z]", re.sub(r"<title>.*?</title>", "", html))
        and "NaN" not in html
        and "nan" not in html.split("</style>")[1]
    )
    return html, " ".join(" ".join(parser.text).split())
