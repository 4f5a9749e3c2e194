"""Pages that list files: simple indexes (PEP 503 and 691), and the HTML pages of find-links."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

if TYPE_CHECKING:
    import httpx2

#: Links of a page in HTML: each needs up to 1 kB of memory. The largest page of PyPI has 47,000.
MAX_LINKS = 200_000
#: Characters of a tag, comment or script.
_MAX_TAG = 1 << 20
#: Bytes of a file name on Linux. A version of more than 4,300 digits is a ValueError of Python.
_MAX_NAME = 255
#: PEP 691, and HTML for the indexes that have no other answer.
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


def read_page(address: str, client: httpx2.Client) -> Iterator[dict[str, Any]]:
    """Yield the files of a page as PEP 691 describes them, with absolute URLs.

    Raises:
        ValueError: it is too large, encoded, or broken.
        httpx2.HTTPError, httpx2.InvalidURL: it cannot be downloaded.
    """
    from .answers import MAX_PAGE, load_json, read_body  # httpx2 is slow to import: not for folders

    with client.stream("GET", address, headers={"Accept": _ACCEPT}) as answer:
        data = read_body(answer.raise_for_status(), MAX_PAGE)
    if data.lstrip().startswith(b"{"):
        files = load_json(data).get("files")
    else:
        files = _of_html(data.decode(errors="replace"))  # UTF-8, as HTML 5 has to be
    for file in files if isinstance(files, list) else ():
        with contextlib.suppress(ValueError, TypeError):  # not a URL, not a file
            found = {**file, "url": urljoin(str(answer.url), str(file.get("url", "")))}
            name, path = str(file.get("filename", "")), url_path(found["url"])
            if len(name) <= _MAX_NAME and path.isprintable():  # no path has NUL or half a surrogate
                yield found


def _of_html(text: str) -> list[dict[str, Any]]:
    parser = _Links()
    try:
        for start in range(0, len(text), _MAX_TAG):
            parser.feed(text[start : start + _MAX_TAG])
            if len(parser.rawdata) > _MAX_TAG or len(parser.files) > MAX_LINKS:
                raise ValueError(f"a tag is too long, or it has more than {MAX_LINKS} links")
    except AssertionError as e:  # Python's answer to "<![x"
        raise ValueError(f"it is broken: {e}") from None
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
