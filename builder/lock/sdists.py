"""The source distributions of a package on the indexes of a target, if it has no usable wheel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidSdistFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from builder.core.errors import FetchError
from builder.core.redact import redact
from builder.formats.net.findlinks import as_path, read_page
from builder.formats.net.http import make_client, why_unreachable
from builder.formats.net.trust import network_hint
from builder.formats.net.urlvariables import expanded

from .config.recipe import Recipe
from .indexes import Indexes
from .request import SolveRequest
from .spec import SourceSpec
from .urls import named_url
from .wheels import tags_of, target_tags


def find_sdists(
    name: str, request: SolveRequest, python: str, indexes: Indexes
) -> dict[Version, SourceSpec]:
    """Return the source distributions of a package for a Python version, one for each version.

    Their URLs are as a lock may have them: public, or paths of the project. A ``sha256`` is empty
    if the index does not say it.

    Args:
        name: the package, normalised.
        request: the environment; files newer than ``request.newest`` are ignored.
        python: the version of the target's Python.
        indexes: indexes and find-links.

    Raises:
        FetchError: an index does not answer.
    """
    if request.settings.offline:
        return {}
    found: dict[Version, SourceSpec] = {}
    for file in _all_files(name, request, indexes):
        if sdist := _sdist(file, name, request, python, indexes.urls):
            found.setdefault(*sdist)
    return found


def find_wheels(
    name: str, request: SolveRequest, indexes: Indexes
) -> Callable[[Recipe, str], set[Version]]:
    """Read the files of a package once, as :func:`find_sdists`.

    Returns:
        A function from a target and a version of Python to the versions with a wheel for them.
    """
    files = [] if request.settings.offline else list(_all_files(name, request, indexes))

    def versions(recipe: Recipe, python: str) -> set[Version]:
        tags = frozenset(target_tags(recipe, python))
        names = [str(file.get("filename")) for file in files if _is_offered(file, python)]
        usable = [file for file in names if tags_of(file) & tags]
        wheels = map(parse_wheel_filename, usable)
        return {version for project, version, *_ in wheels if project == name}

    return versions


def _all_files(name: str, request: SolveRequest, indexes: Indexes) -> Iterator[dict[str, Any]]:
    """Yield the files of a package on the indexes that may have it, and of the find-links."""
    with make_client(1) as client:
        for url in indexes.pages_of(name):
            files = list(_files(f"{url.rstrip('/')}/{name}/", request, client))
            yield from files
            if files and request.environment.takes_first_index:
                break
        for page in indexes.find_links:
            yield from _files(page, request, client)


def _files(page: str, request: SolveRequest, client: httpx2.Client) -> Iterator[dict[str, Any]]:
    """Yield the files of a page or folder, as PEP 691 describes them, with absolute URLs."""
    folder = as_path(page)
    if folder is not None:
        paths = sorted(folder.iterdir()) if folder.is_dir() else ()
        for path in filter(Path.is_file, paths):
            yield {"filename": path.name, "url": path.as_uri()}
        return
    try:
        yield from read_page(expanded(page, str(request.environment.path)), client)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as e:
        if isinstance(e, httpx2.HTTPStatusError) and e.response.status_code in (403, 404, 410):
            return
        problem = f"{redact(page)} cannot be read ({why_unreachable(e)})"
        raise FetchError(problem, network_hint(problem)) from None


def _sdist(
    file: dict[str, Any], name: str, request: SolveRequest, python: str, sources: Sequence[str]
) -> tuple[Version, SourceSpec] | None:
    """Return version and source of a file; None if it is none of the package, or not allowed."""
    try:
        found, version = parse_sdist_filename(str(file.get("filename", "")))
    except InvalidSdistFilename:
        return None
    if found != name or not _is_offered(file, python):
        return None
    path = as_path(file["url"])
    if path:
        url = _in_project(path, request.recipe.root)
    else:
        url = named_url(file["url"], request.settings, sources)
    if not url or (path is None and _is_too_new(file.get("upload-time"), request.newest)):
        return None
    hashes = file.get("hashes")
    sha256 = hashes.get("sha256", "") if isinstance(hashes, dict) else ""
    text = f"{name}=={version}"
    return version, SourceSpec("sdist", name, url, sha256=sha256, text=text, where=text)


def _is_offered(file: dict[str, Any], python: str) -> bool:
    """Return whether a file is not yanked, and is for this version of Python."""
    try:
        allowed = SpecifierSet(file.get("requires-python") or "")
    except (InvalidSpecifier, TypeError):
        return False
    return not file.get("yanked") and allowed.contains(python.rstrip("t"), prereleases=True)


def _is_too_new(uploaded: Any, newest: datetime | None) -> bool:
    """Return whether a file was uploaded after a time; as for uv, also if it is not known when."""
    if newest is None:
        return False
    try:
        time = datetime.fromisoformat(uploaded)
    except (TypeError, ValueError):
        return True
    return (time if time.tzinfo else time.replace(tzinfo=UTC)) > newest


def _in_project(path: Path, root: Path) -> str:
    """Return the path of a file of the project as a lock has it; empty for any other file."""
    relative = os.path.relpath(path.resolve(), root.resolve())
    return "" if relative.startswith("..") else Path(relative).as_posix()
