"""Finds wheels by file name, where pip's find-links and indexes point."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.core.redact import redact
from builder.core.settings import expand_home

from .pipconfig import pip_configuration
from .simpleindex import read_page, url_path

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)


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
        for link in (*self._find_links, *self._project_pages(filename)):
            path = as_path(link)
            if path is None:
                continue
            candidate = path if path.name == filename else path / filename
            if candidate.is_file():
                yield candidate

    def remote(self, filename: str, client: httpx2.Client) -> Iterator[str]:
        """Yield URLs of files with this name on web pages. A page that fails counts as empty."""
        for link in (*self._find_links, *self._project_pages(filename)):
            if not link.startswith(("http://", "https://")):
                continue
            for url in (link, *self._links_on_web(link, client)):
                if url_path(url).rsplit("/", 1)[-1] == filename:
                    yield url

    def _project_pages(self, filename: str) -> list[str]:
        name = canonicalize_name(filename.split("-", 1)[0])
        return [f"{index.rstrip('/')}/{name}/" for index in self._indexes]

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
