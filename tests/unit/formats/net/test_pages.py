"""Pages of package indexes and of find-links, from servers that nobody trusts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from types import ModuleType

import httpx2
import pytest

from builder.formats.net import answers, findlinks
from builder.formats.net.findlinks import read_page

PAGE = "https://h.example/simple/"
LINK = b"<a href='a.whl'>"


def names(body: bytes, headers: Mapping[str, str] = {}) -> list[object]:
    """The names of the files of a page."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=headers, content=iter([body]))

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        return [file.get("filename") for file in read_page(PAGE, client)]


def listing(*files: object) -> bytes:
    return json.dumps({"files": files}).encode()


@pytest.mark.parametrize("page", [LINK, listing({"filename": "a.whl"})], ids=["HTML", "JSON"])
def test_encoded(page: bytes) -> None:
    """An encoding that was not asked for is refused before it is undone: few bytes may become many."""
    assert names(page) == names(page, {"Content-Encoding": "identity"}) == ["a.whl"]
    for encoding in ("gzip", "GZIP, gzip", "br", "x-unknown"):
        with pytest.raises(ValueError, match=f"its Content-Encoding is '{encoding}', which was not asked"):
            names(gzip.compress(page), {"Content-Encoding": encoding})


@pytest.mark.parametrize(
    ("module", "limit", "value", "page", "message"),
    [
        (answers, "MAX_PAGE", len(LINK) - 1, LINK, "more than 15 bytes"),
        (answers, "MAX_VALUES", 5, b'{"files": [[], [], []]}', "more than 5 values"),
        (answers, "MAX_VALUES", 5, b'{"files": [1, 1, 1, 1, 1]}', "more than 5 values"),
        (answers, "MAX_VALUES", 5, b'{"files": [{}, {}, {}]}', "more than 5 values"),
        (findlinks, "MAX_LINKS", 2, LINK * 3, "more than 2 links"),
        (findlinks, "_MAX_TAG", 20, b"<a " + b"x " * 30 + b">", "a tag is too long"),
    ],
    ids=["bytes", "lists", "numbers", "objects", "links", "attributes"],
)
def test_limits(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    limit: str,
    value: int,
    page: bytes,
    message: str,
) -> None:
    """What a page costs is counted before it is parsed, or while it is."""
    names(page)
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(ValueError, match=message):
        names(page)


def test_parts_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags that begin in one part of a page and end in the next one are found."""
    page = b"<!-- a comment -->" + LINK + b"text &amp; text</a>\n" + LINK
    for size in range(len(b"<!-- a comment -->"), len(page)):
        monkeypatch.setattr(findlinks, "_MAX_TAG", size)
        assert names(page) == ["a.whl", "a.whl"], size


def test_broken_declarations() -> None:
    """A page that Python's parser gives up (3.11), or reads to its end (3.14): no link is lost silently."""
    try:
        assert names(LINK + b"<![x y>" + LINK) == ["a.whl", "a.whl"]
    except ValueError as e:
        assert "it is broken" in str(e)


@pytest.mark.parametrize(
    "page",
    [b"{", b'{"files": ' + b"[" * 100_000, b'{"files": ' + b"9" * 5000 + b"}"],
    ids=["end", "deep", "digits"],
)
def test_broken_json(page: bytes) -> None:
    with pytest.raises(ValueError):
        names(page)


def test_files_that_are_none() -> None:
    """Names and paths that no disk has are left out; so is what is no file."""
    odd: list[object] = [
        {"filename": f"a-{'9' * 5000}.tar.gz"},
        *({"filename": "a", "url": url} for url in ("file:///%00", "file:///\ud800", "http://[::1/a")),
        *("text", 3, None, []),
    ]
    assert names(listing(*odd, {"filename": "a.whl", "url": 3}, {"filename": None})) == ["a.whl", None]
    assert names(b'{"files": {}}') == names(b"{}") == []


def test_other_charsets() -> None:
    """The server's word for the encoding of characters is not used: Python has codecs that are no charset."""
    for charset in ("rot13", "punycode", "undefined", "utf-7", "latin-1"):
        assert names(LINK + b"\xff", {"Content-Type": f"text/html; charset={charset}"}) == ["a.whl"]
