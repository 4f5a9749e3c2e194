"""pip's own configuration, and wheels found by their name where find-links points."""

from __future__ import annotations

import functools
import html
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx
from packaging.utils import canonicalize_name

from builder.fetch.http import make_client


@dataclass(frozen=True, slots=True)
class PipConfiguration:
    """What pip's configuration files and PIP_* variables say about where packages come from."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    no_index: bool = False


@functools.cache
def pip_configuration() -> PipConfiguration:
    """pip's configuration for this Python, as ``pip config list`` gives it; empty when there is no pip."""
    values: dict[str, str] = {}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )  # fmt: skip
        lines = done.stdout.splitlines() if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        lines = []
    for order in ("global.", "install.", "download.", ":env:."):
        for line in lines:
            key, _, value = line.partition("=")
            if key.startswith(order):
                values[key[len(order) :]] = value.strip("'\"")
    for key in ("index-url", "extra-index-url", "find-links", "cert", "no-index"):
        if value := os.environ.get(f"PIP_{key.replace('-', '_').upper()}"):
            values[key] = value
    return PipConfiguration(
        values.get("index-url"),
        _words(values.get("extra-index-url", "")),
        _words(values.get("find-links", "")),
        values.get("cert"),
        values.get("no-index", "").lower() in ("1", "true", "yes", "on"),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(w for w in shlex.split(text.replace("\\n", " ")) if w)


def local_file(places: Sequence[str], filename: str, indexes: Sequence[str] = ()) -> Path | None:
    """The file of this name in the local folders of find-links, or in simple indexes on this disk, or None."""
    for index in indexes:
        root = _folder(index)
        if root is not None:
            page = root / canonicalize_name(filename.split("-", 1)[0]) / "index.html"
            for link in _hrefs(page.read_text()) if page.is_file() else ():
                path = Path(unquote(urlsplit(urljoin(page.as_uri(), link)).path))
                if path.name == filename and path.is_file():
                    return path
    for place in places:
        folder = _folder(place)
        if folder is None:
            continue
        if folder.name == filename and folder.is_file():
            return folder
        if (folder / filename).is_file():
            return folder / filename
    return None


def _folder(place: str) -> Path | None:
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if "://" in place else Path(place).expanduser()


def remote_urls(places: Sequence[str], filename: str, indexes: Sequence[str] = ()) -> list[str]:
    """Where the web pages of find-links, or of simple indexes, offer a file of this name."""
    out = []
    name = canonicalize_name(filename.split("-", 1)[0])
    for place in (*places, *(f"{i.rstrip('/')}/{name}/" for i in indexes)):
        if not place.startswith(("http://", "https://")):
            continue
        out += [u for u in _links(place) if unquote(urlsplit(u).path).rsplit("/", 1)[-1] == filename]
    return out


@functools.cache
def _links(page: str) -> tuple[str, ...]:
    try:
        with make_client(2) as client:
            answer = client.get(page)
            answer.raise_for_status()
    except httpx.HTTPError:
        return ()
    base = str(answer.url)
    return tuple(urljoin(base, link) for link in _hrefs(answer.text))


def _hrefs(page: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r"""href=["']([^"'#]+)""", page)]
