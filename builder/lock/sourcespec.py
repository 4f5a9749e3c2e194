"""Reads requirements of pip that name a source: git repositories, archives, and folders of the project."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from builder.config.inside import is_inside
from builder.errors import ConfigError
from builder.lock.spec import SourceSpec, Spec
from builder.model import SourceKind
from builder.redact import redact
from builder.settings import expand_home

#: Archives that builder unpacks.
ARCHIVES = (".tar.gz", ".tgz")
#: A folder with one of these is a Python project.
PROJECT_FILES = ("pyproject.toml", "setup.py")
_TRANSPORTS = ("https", "http", "ssh", "git", "file")
#: What names no package of an index: a path, or a URL.
_LOCATION = re.compile(r"\.{1,2}([/\[\s;#]|$)|[/~]|file:|[a-z]+\+[a-z]|[a-z]+://|git@|[\w.+-]+/")
_EXTRAS = re.compile(r"(.*?[^\s\[\]])\s*\[([\w.,\s-]*)\]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Git takes a revision that begins with a hyphen for an option.
_REVISION = re.compile(r"[A-Za-z0-9_.@{][^\s\x00-\x1f\x7f~^:?*\[\\]*")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a requirement is written."""

    where: str
    """``FILE:LINE``."""
    folder: Path
    """The folder of the environment file, to which paths are relative, as for pip run by conda."""
    root: Path
    """The project folder: what is outside of it is not locked."""
    file_folder: Path | None = None
    """The folder of the requirements file, where a path starts that leads to nothing from ``folder``."""


def names_source(text: str) -> bool:
    """Whether a requirement begins with a path or a URL instead of a name."""
    return _LOCATION.match(text) is not None


def read_location(text: str, place: Place, *, editable: bool = False) -> SourceSpec | Spec:
    """Reads a requirement without a name, such as ``./pkg[extra]`` or ``git+https://...``.

    Args:
        text: without comment and options.
        place: where it is written.
        editable: whether it follows ``-e``.

    Returns:
        The source; a :class:`Spec` for the URL or path of a wheel.

    Raises:
        ConfigError: it cannot be locked.
    """
    location, marker = _split_marker(text)
    extras: tuple[str, ...] = ()
    if found := _EXTRAS.fullmatch(location):
        location, extras = found[1], _extras(found[2])
    if " " in location:
        raise _error(place, text, "has a blank", "write %20 for a blank in a URL or path")
    _check_marker(marker, text, place)
    return _read(_Parts(None, location, extras, marker, editable, text), place)


def read_named(requirement: Requirement, text: str, place: Place) -> SourceSpec | Spec:
    """Reads ``NAME[EXTRA] @ URL; MARKER``. Returns and raises as :func:`read_location`."""
    name = canonicalize_name(requirement.name)
    extras = tuple(sorted(requirement.extras))
    marker = str(requirement.marker or "")
    return _read(_Parts(name, requirement.url or "", extras, marker, False, text), place)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a requirement."""

    name: str | None
    location: str
    extras: tuple[str, ...]
    marker: str
    editable: bool
    text: str


def _read(parts: _Parts, place: Place) -> SourceSpec | Spec:
    try:
        return _by_form(parts, place)
    except ValueError as e:  # of urllib: brackets that are no IPv6 address; of the system: a null character
        raise _error(
            place, parts.text, f"is not a valid URL or path: {redact(str(e))}", "correct it"
        ) from None


def _by_form(parts: _Parts, place: Place) -> SourceSpec | Spec:
    location = parts.location
    if location.startswith("git+"):
        return _git(parts, place)
    if location.startswith(("http://", "https://")):
        return _archive(parts, place)
    if location.startswith("git@") or ("://" in location and not location.startswith("file:")):
        hint = "write git+https://HOST/PATH, git+ssh://git@HOST/PATH or https://"
        raise _error(place, parts.text, "is a URL that pip does not know", hint)
    return _local(parts, place)


# git --------------------------------------------------------------------------------------------------------


def _git(parts: _Parts, place: Place) -> SourceSpec:
    url, fragment = _split_fragment(parts, place)
    url = url.removeprefix("git+")
    transport, sep, rest = url.partition("://")
    if not sep or transport not in _TRANSPORTS:
        known = ", ".join(f"git+{name}://" for name in _TRANSPORTS)
        raise _error(place, parts.text, "is no URL of git that pip knows", f"write one of {known}")
    revision = ""
    # an @ before the path belongs to the user and password
    slash = rest.find("/", rest.rfind("@") if _is_in_host(rest) else 0)
    host, path = (rest[:slash], rest[slash:]) if slash >= 0 else (rest, "")
    if "@" in path:
        path, _, revision = path.rpartition("@")
        revision = unquote(revision)
        if not _REVISION.fullmatch(revision) or ".." in revision:
            raise _error(
                place, parts.text, "names no branch, tag or commit after @", "write @BRANCH, @TAG or @COMMIT"
            )
    urlsplit(f"{transport}://{host}")  # raises ValueError
    if not path.strip("/") or path.startswith("-") or (transport != "file" and host.startswith("-")):
        raise _error(place, parts.text, "names no repository", "write git+https://HOST/OWNER/NAME.git@TAG")
    source = _source("git", f"{transport}://{host}{path}", parts, fragment, place)
    return replace(source, revision=revision, sha256="")  # pinned by its commit


def _is_in_host(rest: str) -> bool:
    """Whether the last ``@`` ends a user name; a password may have a slash, a revision follows the path."""
    return "@" in rest and "/" not in rest[: rest.rfind("@")]


# archives ---------------------------------------------------------------------------------------------------


def _archive(parts: _Parts, place: Place) -> SourceSpec | Spec:
    url, fragment = _split_fragment(parts, place)
    filename = unquote(urlsplit(url).path).rpartition("/")[2]
    if filename.endswith(".whl"):
        name = parts.name or _wheel_name(filename, parts, place)
        return Spec(_with_extras(parts, name, parts.location), name, place.where)
    if not filename.endswith(ARCHIVES):
        raise _error(
            place,
            parts.text,
            "is not the URL of a wheel or an archive",
            f"a git repository is written as git+{redact(url)}; archives end with {', '.join(ARCHIVES)}",
        )
    source = _source("archive", url, parts, fragment, place)
    return replace(source, name=source.name or _sdist_name(filename))


def _source(kind: SourceKind, url: str, parts: _Parts, fragment: _Fragment, place: Place) -> SourceSpec:
    """The source of a requirement. Its own name and extras win over those in the fragment of its URL."""
    return SourceSpec(
        kind,
        parts.name or fragment.name,
        url,
        subdirectory=fragment.subdirectory,
        extras=parts.extras or fragment.extras,
        marker=parts.marker,
        editable=parts.editable,
        sha256=fragment.sha256,
        where=place.where,
        text=parts.text,
    )


def _sdist_name(filename: str) -> str | None:
    """The name of a package in the file name of its sdist; None where it is not certain."""
    try:
        return parse_sdist_filename(filename)[0]
    except InvalidSdistFilename:
        return None


def _wheel_name(filename: str, parts: _Parts, place: Place) -> str:
    try:
        return parse_wheel_filename(filename)[0]
    except InvalidWheelFilename:
        raise _error(
            place,
            parts.text,
            f"names no wheel: {filename}",
            "a wheel's file name is NAME-VERSION-PYTHON-ABI-PLATFORM.whl",
        ) from None


def _with_extras(parts: _Parts, name: str, location: str) -> str:
    extras = f"[{','.join(parts.extras)}]" if parts.extras else ""
    marker = f" ; {parts.marker}" if parts.marker else ""
    return f"{name}{extras} @ {location}{marker}"


# folders and files of the project ---------------------------------------------------------------------------


def _local(parts: _Parts, place: Place) -> SourceSpec | Spec:
    text, fragment = _split_fragment(parts, place)
    path = _path(text, parts, place)
    if not (path.is_relative_to(place.root) and is_inside(path, place.root)):
        raise _error(
            place,
            parts.text,
            f"is outside of the project {place.root}, and a lock names no folder of one machine",
            "copy it into the project, or name its repository: git+https://... or git+file://...",
        )
    relative = path.relative_to(place.root).as_posix()
    if path.name.endswith(".whl") and path.is_file():
        name = parts.name or _wheel_name(path.name, parts, place)
        return Spec(_with_extras(parts, name, f"./{relative}"), name, place.where, path)
    is_archive = path.is_file() and path.name.endswith(ARCHIVES)
    if not is_archive:
        _check_project(path / fragment.subdirectory, parts, place)
        return _source("local", relative, parts, fragment, place)
    source = _source("archive", relative, parts, fragment, place)
    return replace(source, name=source.name or _sdist_name(path.name))


def _path(text: str, parts: _Parts, place: Place) -> Path:
    """The path of a local requirement, absolute and without ``..``."""
    if text.startswith("file:"):
        split = urlsplit(text)
        if split.netloc not in ("", "localhost"):
            raise _error(
                place,
                parts.text,
                "names another host",
                "write a path: ./NAME, or file:///PATH with 3 slashes",
            )
        text = unquote(split.path)
    folders = [place.folder, place.file_folder] if place.file_folder else [place.folder]
    found = [Path(os.path.normpath(folder.absolute() / expand_home(text))) for folder in folders]
    return next((path for path in found if path.is_file() or is_project(path)), found[0])


def is_project(path: Path) -> bool:
    """Whether a folder holds a Python project."""
    return any((path / name).is_file() for name in PROJECT_FILES)


def _check_project(path: Path, parts: _Parts, place: Place) -> None:
    if not path.exists():
        hint = f"correct the path; it is relative to {place.folder}"
        raise _error(place, parts.text, f"does not exist: {path}", hint)
    if not path.is_dir():
        hint = f"name a folder, a wheel or an archive ({', '.join(ARCHIVES)})"
        raise _error(place, parts.text, f"is neither: {path}", hint)
    if is_project(path):
        return
    hint = "name the folder with pyproject.toml; code without one is copied by files: in the recipe"
    if is_project(place.root):
        upward = os.path.relpath(place.root, place.folder)
        option = "-e " if parts.editable else ""
        hint = f"paths are relative to {place.folder}: for the project write '- {option}{upward}'"
    raise _error(place, parts.text, f"has neither pyproject.toml nor setup.py: {path}", hint)


# parts of a requirement -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fragment:
    """What follows ``#`` in a URL."""

    name: str | None = None
    extras: tuple[str, ...] = ()
    subdirectory: str = ""
    sha256: str = ""


def _split_fragment(parts: _Parts, place: Place) -> tuple[str, _Fragment]:
    """The location without its fragment, and the fragment."""
    location, _, text = parts.location.partition("#")
    values = {key: value[-1] for key, value in parse_qs(text).items()}
    egg = re.fullmatch(r"([A-Za-z0-9][\w.-]*?)(?:\[([\w.,\s-]*)\])?(?:==.*)?", values.get("egg", ""))
    subdirectory = values.get("subdirectory", "").strip("/")
    pure = PurePosixPath(subdirectory)
    if ".." in pure.parts or "\\" in subdirectory:
        raise _error(place, parts.text, "has a subdirectory with ..", "write #subdirectory=FOLDER")
    sha256 = values.get("sha256", "").lower()
    if sha256 and not _SHA256.fullmatch(sha256):
        raise _error(place, parts.text, "has a sha256 that is not 64 hex digits", "write #sha256=HASH")
    return location, _Fragment(
        canonicalize_name(egg[1]) if egg else None,
        _extras(egg[2] or "") if egg else (),
        "" if not subdirectory else str(pure),
        sha256,
    )


def _split_marker(text: str) -> tuple[str, str]:
    """A location and its marker, which pip separates by a blank and a semicolon."""
    location, _, marker = re.sub(r"\s+;", " ;", text).partition(" ;")
    return location.strip(), marker.strip()


def _check_marker(marker: str, text: str, place: Place) -> None:
    if not marker:
        return
    try:
        Requirement(f"name ; {marker}")
    except (InvalidRequirement, RecursionError):  # packaging's parser of markers is recursive
        raise _error(place, text, "has a wrong marker", "write it as ; python_version < '3.12'") from None


def _extras(text: str) -> tuple[str, ...]:
    return tuple(sorted({canonicalize_name(word.strip()) for word in text.split(",") if word.strip()}))


def _error(place: Place, text: str, problem: str, hint: str) -> ConfigError:
    return ConfigError(f"{place.where}: {redact(text)} {problem}", hint)
