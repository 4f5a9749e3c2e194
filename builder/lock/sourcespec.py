"""Reads requirements of pip that name a source: a git repository, an archive or a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
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

from builder.core.errors import ConfigError
from builder.core.markers import with_extras
from builder.core.model import SourceKind
from builder.core.redact import redact
from builder.core.settings import expand_home
from builder.formats.trees.inside import PROJECT_FILES, is_inside, wider_project

from .spec import SourceSpec, Spec

#: Archives that builder unpacks.
ARCHIVES = (".tar.gz", ".tgz", ".zip")
_TRANSPORTS = ("https", "http", "ssh", "git", "file")
#: The beginning of a requirement that names no package of an index, but a path or a URL.
_LOCATION = re.compile(r"\.{1,2}([/\[\s;#]|$)|[/~]|file:|[a-z]+\+[a-z]|[a-z]+://|git@|[\w.+-]+/")
_EXTRAS = re.compile(r"(.*?[^\s\[\]])\s*\[([\w.,\s-]*)\]")
_SHA256 = re.compile(r"([0-9a-f]{64})?")
#: Git takes a revision that begins with a hyphen for an option.
_REVISION = re.compile(r"[A-Za-z0-9_.@{][^\s\x00-\x1f\x7f~^:?*\[\\]*")

_OUTSIDE_HINT = (
    "copy it into the project, or name its repository: git+https://... or git+file://..."
)


@dataclass(frozen=True, slots=True)
class SpecContext:
    """Where a requirement is written."""

    where: str
    """``FILE:LINE``."""
    folder: Path
    """The folder of the environment file, to which paths are relative, as for pip run by conda."""
    root: Path
    """The project folder: nothing outside of it is locked."""
    chain: tuple[Path, ...] = ()
    """The requirements files that lead to it, the outermost first. A path that leads to nothing
    from ``folder`` starts at the folder of the last one."""
    limits: bool = False
    """Whether it is in a constraints file."""
    is_lock: bool = False
    """Whether it is in a lock, which may name wheels of the project."""

    def error(self, problem: str, hint: str) -> ConfigError:
        """Return the error for the requirement, with file and line."""
        return ConfigError(f"{self.where}: {problem}", hint)


def names_source(text: str) -> bool:
    """Return whether a requirement begins with a path or a URL instead of a name."""
    return _LOCATION.match(text) is not None


def read_location(text: str, context: SpecContext) -> SourceSpec | Spec:
    """Read a requirement without a name, such as ``./pkg[extra]`` or ``git+https://...``.

    Args:
        text: without comment and options.
        context: where it is written.

    Returns:
        The source; a :class:`Spec` for the URL of a wheel.

    Raises:
        ConfigError: it cannot be locked.
    """
    # pip separates a marker by a blank and a semicolon
    location, _, marker = (part.strip() for part in re.sub(r"\s;", " ;", text).partition(" ;"))
    extras: tuple[str, ...] = ()
    if found := _EXTRAS.fullmatch(location):
        location, names = found.groups()
        extras = _sorted_names(filter(None, map(str.strip, names.split(","))))
    written = _Written(None, location, extras, marker, text, context)
    if " " in location:
        raise written.error("has a blank", "write %20 for a blank in a URL or path")
    try:
        Requirement(f"name ; {marker}" if marker else "name")
    except (InvalidRequirement, RecursionError):  # packaging's parser of markers is recursive
        raise written.error("has a wrong marker", "write it as ; python_version < '3.12'") from None
    return written.read()


def read_named(requirement: Requirement, text: str, context: SpecContext) -> SourceSpec | Spec:
    """Read ``NAME[EXTRA] @ URL; MARKER``. Returns and raises as :func:`read_location`."""
    name = canonicalize_name(requirement.name)
    extras = tuple(sorted(requirement.extras))
    marker = str(requirement.marker or "")
    return _Written(name, requirement.url or "", extras, marker, text, context).read()


@dataclass(frozen=True, slots=True)
class _Written:
    """A requirement as it is written, in its parts."""

    name: str | None
    location: str
    extras: tuple[str, ...]
    marker: str
    text: str
    context: SpecContext

    def error(self, problem: str, hint: str) -> ConfigError:
        return self.context.error(f"{redact(self.text)} {problem}", hint)

    def read(self) -> SourceSpec | Spec:
        location, _, fragment = self.location.partition("#")
        try:
            if location.startswith("git+"):
                return self._git(location.removeprefix("git+"), fragment)
            if location.startswith(("http://", "https://")):
                return self._archive(location, fragment)
            is_url = "://" in location and not location.startswith("file:")
            if is_url or location.startswith("git@"):
                hint = "write git+https://HOST/PATH, git+ssh://git@HOST/PATH or https://"
                raise self.error("is a URL that pip does not know", hint)
            return self._local(location, fragment)
        # of urllib: brackets that are no IPv6 address; of the system: a null character
        except ValueError as e:
            problem = f"is not a valid URL or path: {redact(str(e))}"
            raise self.error(problem, "correct it") from None

    def _git(self, url: str, fragment: str) -> SourceSpec:
        transport, sep, rest = url.partition("://")
        if not sep or transport not in _TRANSPORTS:
            known = ", ".join(f"git+{name}://" for name in _TRANSPORTS)
            raise self.error("is no URL of git that pip knows", f"write one of {known}")
        host, _, path = rest.partition("/")  # an @ before the path belongs to user and password
        revision = ""
        if "@" in path:
            path, _, revision = path.rpartition("@")
            revision = unquote(revision)
            if not _REVISION.fullmatch(revision) or ".." in revision:
                hint = "write @BRANCH, @TAG or @COMMIT"
                raise self.error("names no branch, tag or commit after @", hint)
        urlsplit(f"{transport}://{host}")  # raises ValueError
        if not path.strip("/") or (transport != "file" and host.startswith("-")):
            raise self.error("names no repository", "write git+https://HOST/OWNER/NAME.git@TAG")
        return self._source("git", f"{transport}://{host}/{path}", fragment, revision)

    def _archive(self, url: str, fragment: str) -> SourceSpec | Spec:
        filename = unquote(urlsplit(url).path).rpartition("/")[2]
        if filename.endswith(".whl"):
            return self._wheel(filename)
        if filename.endswith(ARCHIVES):
            return self._source("archive", url, fragment)
        raise self.error(
            "is not the URL of a wheel or an archive",
            f"a git repository is written as git+{redact(url)}; "
            f"archives end with {', '.join(ARCHIVES)}",
        )

    def _local(self, location: str, fragment: str) -> SourceSpec:
        """Return a folder or archive of the project."""
        path, root = self._path(location), self.context.root
        if not (path.is_relative_to(root) and is_inside(path, root)):
            raise self.error(
                f"is outside of the project {root}, and a lock names no folder of one machine",
                wider_project(root, path, self.context.where) or _OUTSIDE_HINT,
            )
        relative = path.relative_to(root).as_posix()
        if path.name.endswith(".whl") and not self.context.is_lock:
            folder = os.path.relpath(path.parent, self.context.folder)
            name, version, *_ = f"{path.name.removesuffix('.whl')}-VERSION".split("-")
            line = f"write {canonicalize_name(name)}=={version}"
            hint = f"{line}, and in a line above it the folder: --find-links {folder}"
            raise self.error("is a wheel on this machine", hint)
        if path.name.endswith((*ARCHIVES, ".whl")) and path.is_file():
            return self._source("archive", relative, fragment)
        source = self._source("local", relative, fragment)
        self._check_project(path / source.subdirectory)
        return source

    def _wheel(self, filename: str) -> Spec:
        try:
            name = self.name or parse_wheel_filename(filename)[0]
        except InvalidWheelFilename:
            hint = "a wheel's file name is NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
            raise self.error(f"names no wheel: {filename}", hint) from None
        marker = f" ; {self.marker}" if self.marker else ""
        text = f"{with_extras(name, self.extras)} @ {self.location}{marker}"
        return Spec(text, name, self.context.where)

    def _source(self, kind: SourceKind, url: str, fragment: str, revision: str = "") -> SourceSpec:
        """Return the source. Its name and extras win over those in the fragment of its URL."""
        values = {key: value[-1] for key, value in parse_qs(fragment).items()}
        folder = values.get("subdirectory", "").strip("/")
        subdirectory = PurePosixPath(folder).parts
        if ".." in subdirectory or "\\" in folder:
            raise self.error("has a subdirectory with ..", "write #subdirectory=FOLDER")
        sha256 = values.get("sha256", "").lower()
        if not _SHA256.fullmatch(sha256):
            raise self.error("has a sha256 that is not 64 hex digits", "write #sha256=HASH")
        name, extras = _egg(values.get("egg", ""))
        if kind == "archive":
            name = name or _sdist_name(unquote(urlsplit(url).path).rpartition("/")[2])
        return SourceSpec(
            kind,
            self.name or name,
            url,
            revision,
            "/".join(subdirectory),
            self.extras or extras,
            self.marker,
            sha256="" if kind == "git" else sha256,  # a repository is pinned by its commit
            where=self.context.where,
            text=self.text,
        )

    def _path(self, text: str) -> Path:
        """Return the path of a local requirement, absolute and without ``..``."""
        if text.startswith("file:"):
            split = urlsplit(text)
            if split.netloc not in ("", "localhost"):
                hint = "write a path: ./NAME, or file:///PATH with 3 slashes"
                raise self.error("names another host", hint)
            text = unquote(split.path)
        path = expand_home(text)
        folders = [self.context.folder, *(file.parent for file in self.context.chain[-1:])]
        found = [Path(os.path.normpath(folder.absolute() / path)) for folder in folders]
        return next((path for path in found if path.is_file() or is_project(path)), found[0])

    def _check_project(self, path: Path) -> None:
        folder, root = self.context.folder, self.context.root
        if not path.exists():
            hint = f"correct the path; it is relative to {folder}"
            raise self.error(f"does not exist: {path}", hint)
        if not path.is_dir():
            hint = f"name a folder, a wheel or an archive ({', '.join(ARCHIVES)})"
            raise self.error(f"is neither: {path}", hint)
        if is_project(path):
            return
        hint = (
            "name the folder with pyproject.toml; "
            "code without one is copied by files: in the recipe"
        )
        if is_project(root):
            upward = os.path.relpath(root, folder)
            hint = f"paths are relative to {folder}: for the project write '- {upward}'"
        raise self.error(f"has neither pyproject.toml nor setup.py: {path}", hint)


def _sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({canonicalize_name(name) for name in names}))


def _egg(text: str) -> tuple[str | None, tuple[str, ...]]:
    """Return name and extras of ``NAME[EXTRA]``."""
    if not text:
        return None, ()
    egg = Requirement(text)
    return canonicalize_name(egg.name), _sorted_names(egg.extras)


def _sdist_name(filename: str) -> str | None:
    """Return the name of a package in the file name of its sdist; None where it is not certain."""
    try:
        return parse_sdist_filename(filename)[0]
    except InvalidSdistFilename:
        return None


def is_project(path: Path) -> bool:
    """Return whether a folder holds a Python project."""
    return any((path / name).is_file() for name in PROJECT_FILES)
