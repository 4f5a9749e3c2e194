"""Wheels found by their file name where pip's find-links and indexes point."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx
from packaging.utils import canonicalize_name

from builder.net.pipconfig import PipConfiguration, pip_configuration

__all__ = ["FindLinks", "PipConfiguration", "as_path", "pip_configuration"]


class FindLinks:
    """Places of files, by file name: folders, files and HTML pages on this disk and on the web, and simple indexes (PEP 503).

    ``places`` come first, then what pip's configuration names. Each web page is asked for once.
    """

    def __init__(self, places: Sequence[str] = ()) -> None:
        configured = pip_configuration()
        indexes = (configured.index_url, *configured.extra_index_urls)
        self._places = (*places, *configured.find_links)
        self._indexes = () if configured.no_index else tuple(i for i in indexes if i)
        self._pages: dict[str, list[str]] = {}

    def local(self, filename: str) -> Iterator[Path]:
        """Files of this name on this disk; not verified."""
        for place in (*self._places, *self._project_pages(filename)):
            path = as_path(place)
            if path is None:
                continue
            if path.suffix in (".html", ".htm") or (path / "index.html").is_file():
                page = path / "index.html" if path.is_dir() else path
                for url in self._links(page.as_uri(), None) if page.is_file() else ():
                    target = as_path(url)
                    if target is not None and target.name == filename and target.is_file():
                        yield target
            candidate = path if path.name == filename else path / filename
            if candidate.is_file():
                yield candidate

    def remote(self, filename: str, client: httpx.Client) -> Iterator[str]:
        """URLs of files of this name that the web pages link to; a page that does not answer has none."""
        for place in (*self._places, *self._project_pages(filename)):
            if not place.startswith(("http://", "https://")):
                continue
            for url in (place, *self._links(place, client)):
                if unquote(urlsplit(url).path).rsplit("/", 1)[-1] == filename:
                    yield url

    def _project_pages(self, filename: str) -> list[str]:
        name = canonicalize_name(filename.split("-", 1)[0])
        return [f"{index.rstrip('/')}/{name}/" for index in self._indexes]

    def _links(self, page: str, client: httpx.Client | None) -> list[str]:
        if page not in self._pages:
            try:
                if client is None:
                    path = as_path(page)
                    assert path is not None
                    base, text = page, path.read_text(errors="replace")
                else:
                    answer = client.get(page)
                    answer.raise_for_status()
                    base, text = str(answer.url), answer.text
                hrefs = re.findall(r"""<a\s[^>]*?href\s*=\s*["']([^"'#]+)""", text, re.I)
                self._pages[page] = [urljoin(base, html.unescape(href)) for href in hrefs]
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError):
                self._pages[page] = []
        return self._pages[page]


def as_path(place: str) -> Path | None:
    """The local path of a ``file:`` URL or of a plain path, absolute, else None."""
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if "://" in place else Path(place).expanduser().absolute()
