"""Finds wheels by file name, where pip's find-links and indexes point.

Pages that list files are simple indexes (PEP 503 and 691), and the HTML pages of find-links.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import canonicalize_name

from builder.core.redact import redact
from builder.core.settings import expand_home

from .pipconfig import pip_configuration

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)

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


class FindLinks:
    """Folders and files on this disk; HTML pages and simple indexes (PEP 503) on the web.

    ``links`` come first, then those of pip's configuration. Each web page is requested once.
    """

    def __init__(self, links: Sequence[str] = ()) -> None:
        configured = pip_configuration()
        indexes = (configured.index_url, *configured.extra_index_urls)
        self._find_links = (*links, *configured.find_links)
        self._indexes = () if configured.no_index else tuple(i for i in indexes if i)
        self._pages: dict[str, list[str]] = {}

    def local(self, filename: str) -> Iterator[Path]:
        """Yield files with this name on this disk. Their content is not checked."""
        for path in filter(None, map(as_path, self._links(filename))):
            candidate = path if path.name == filename else path / filename
            if candidate.is_file():
                yield candidate

    def remote(self, filename: str, client: httpx2.Client) -> Iterator[str]:
        """Yield URLs of files with this name on web pages. A page that fails counts as empty."""
        for link in self._links(filename):
            on_web = link.startswith(("http://", "https://"))
            for url in (link, *self._links_on_web(link, client)) if on_web else ():
                if url_path(url).rsplit("/", 1)[-1] == filename:
                    yield url

    def _links(self, filename: str) -> list[str]:
        """Return the find-links, and the page of each index for the project of a file."""
        name = canonicalize_name(filename.split("-", 1)[0])
        return [*self._find_links, *(f"{index.rstrip('/')}/{name}/" for index in self._indexes)]

    def _links_on_web(self, page: str, client: httpx2.Client) -> list[str]:
        import httpx2  # slow: not for folders

        if page not in self._pages:
            try:
                self._pages[page] = [file["url"] for file in read_page(page, client)]
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as e:
                log.info("no wheels from %s: %s", redact(page), redact(str(e)))
                self._pages[page] = []
        return self._pages[page]


def as_path(link: str) -> Path | None:
    """Return the absolute path of a ``file:`` URL or of a plain path; None for other URLs."""
    if link.startswith("file:"):
        path = url_path(link)
        return Path(path) if path else None
    return None if "://" in link else expand_home(link).absolute()
