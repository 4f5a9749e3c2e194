"""Pages that list files: simple indexes (PEP 503 and 691), and the HTML pages of find-links."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

if TYPE_CHECKING:
    import httpx2

#: Bytes of a page. The largest of PyPI have some MB.
MAX_PAGE = 64 << 20
#: PEP 691, and HTML for the indexes that have no other answer.
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


def read_page(address: str, client: httpx2.Client) -> Iterator[dict[str, Any]]:
    """Yield the files of a page as PEP 691 describes them, with absolute URLs.

    Raises:
        ValueError, httpx2.HTTPError, httpx2.InvalidURL: it is too large, or cannot be downloaded.
    """
    data = bytearray()
    with client.stream("GET", address, headers={"Accept": _ACCEPT}) as answer:
        answer.raise_for_status()
        for chunk in answer.iter_bytes():
            data += chunk
            if len(data) > MAX_PAGE:
                raise ValueError(f"it has more than {MAX_PAGE} bytes")
    if data.lstrip().startswith(b"{"):
        files = _of_json(bytes(data))
    else:
        files = _of_html(data.decode(answer.encoding or "utf-8", errors="replace"))
    for file in files:
        with contextlib.suppress(ValueError):  # not a URL
            yield {**file, "url": urljoin(str(answer.url), str(file.get("url", "")))}


def _of_json(data: bytes) -> list[dict[str, Any]]:
    try:
        files = json.loads(data)["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []


def _of_html(text: str) -> list[dict[str, Any]]:
    parser = _Links()
    with contextlib.suppress(AssertionError):  # Python's answer to "<![x"
        parser.feed(text)
    return parser.files


class _Links(HTMLParser):
    """The links of a page of PEP 503, as PEP 691 describes files."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        href = values.get("href")
        if tag != "a" or not href:
            return
        url, _, fragment = href.partition("#")
        kind, _, digest = fragment.partition("=")
        self.files.append(
            {
                "filename": url_path(url).rsplit("/", 1)[-1],
                "url": url,
                "hashes": {kind: digest},
                "requires-python": values.get("data-requires-python"),
                "yanked": "data-yanked" in values,
            }
        )


def url_path(url: str) -> str:
    """Return the path of a URL; empty if it is not a URL."""
    try:
        return unquote(urlsplit(url).path)
    except ValueError:
        return ""
