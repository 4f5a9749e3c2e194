"""What the readers of all formats share: reading within limits, errors, and checked packages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

import yaml
from packaging.utils import canonicalize_name

from builder.config.safetoml import loads
from builder.config.safeyaml import MAX_BYTES, load, read_bytes
from builder.errors import LockError, SolveError
from builder.lock.file import HEX, WORD, is_package_url
from builder.lock.urls import public
from builder.model import FIND_LINKS, LockedPackage, Manager

RESTORE = "restore the file from version control, or lock again with the tool that wrote it"


def read_text(path: Path) -> str:
    """The text of a lock file.

    Raises:
        LockError: the file is missing, is not text, or has more than 16 MiB.
    """
    try:
        raw = read_bytes(path)
    except FileNotFoundError:
        raise LockError(f"{path}: no such lock file", "check the path in the recipe's 'lock:'") from None
    except OSError as e:
        raise LockError(
            f"{path}: cannot be read: {e.strerror}", "check the path and its permissions"
        ) from None
    if len(raw) > MAX_BYTES:
        raise LockError(f"{path}: the file has more than {MAX_BYTES} bytes", RESTORE)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise LockError(f"{path}:{line}: not UTF-8 text", RESTORE) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise LockError(f"{path}:{line}: not text", RESTORE)
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the tables of a TOML file. Raises as :func:`read_text`, and for what is no TOML or too deep."""
    try:
        return loads(read_text(path))
    except ValueError as e:
        raise LockError(f"{path}: not TOML: {e}", RESTORE) from None


def read_yaml(path: Path) -> Any:
    """The data of a YAML file. Raises as :func:`read_text`, and for what is not YAML or beyond its limits."""
    text = read_text(path)
    try:
        return load(text)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise LockError(f"{path}{line}: not YAML: {getattr(e, 'problem', None) or e}", RESTORE) from None


def where(path: Path, text: str, pattern: str) -> str:
    """``FILE:LINE`` of the first line that matches a regular expression; ``FILE`` if none does."""
    match = re.search(pattern, text, re.MULTILINE)
    return f"{path}:{text.count(chr(10), 0, match.start()) + 1}" if match else str(path)


def choices(name: str, known: Sequence[str]) -> str:
    """What there is instead of a name: the nearest names, else all (at most 20)."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}? It has: {_listed(known)}"
    return f"it has: {_listed(known)}" if known else "it has none"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


class PackageMaker:
    """Makes checked packages of one lock file."""

    def __init__(self, path: Path, platform: str) -> None:
        self._path = path
        self._platform = platform

    def make(
        self,
        manager: Manager,
        name: str,
        version: str,
        url: str,
        *,
        sha256: str | None,
        md5: str | None = None,
        dependencies: Mapping[str, str] | None = None,
    ) -> LockedPackage:
        """A package whose URL has no credentials and whose fields may become file names.

        A wheel without a web address gets one in find-links folders.

        Raises:
            LockError: a name, version, URL or hash is missing or is not one.
        """
        is_conda = manager == "conda"
        name = name if is_conda else canonicalize_name(name)
        for key, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not WORD.fullmatch(value):
                raise self.error(f"package {name!r}: {key} is missing or has blanks or control characters")
        if not url.startswith(("http://", "https://", "builder://")):
            url = url if is_conda else FIND_LINKS + quote(_last(url), safe="+!")
        self._check_url(name, url, is_conda)
        try:
            url = public(url)
        except SolveError as e:
            raise self.error(e.message, e.hint) from None
        return LockedPackage(
            name=name,
            version=version,
            manager=manager,
            platform=self._platform,
            url=url,
            sha256=self._hex(name, "sha256", sha256),
            md5=self._hex(name, "md5", md5) if not sha256 or is_conda else None,
            dependencies=dict(dependencies or {}),
        )

    def _check_url(self, name: str, url: str, is_conda: bool) -> None:
        if not WORD.fullmatch(url) or not is_package_url(url, is_conda=is_conda):
            form = "SUBDIR/FILE" if is_conda else "a file name"
            raise self.error(f"package {name}: url does not end with {form}: {url[:200]!r}")

    def _hex(self, name: str, kind: Literal["sha256", "md5"], value: str | None) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str) or not HEX[kind](value.lower()):
            raise self.error(f"package {name}: {str(value)[:80]!r} is not a valid {kind}")
        return value.lower()

    def no_hash(self, name: str, url: str) -> LockError:
        """The error for a package without a hash."""
        return self.error(
            f"package {name}: {_last(url)} has no sha256",
            "without a hash a download cannot be verified: lock with an index that has hashes (simple API, "
            "PEP 691), or put the wheel into a find-links folder and lock with builder",
        )

    def error(self, message: str, hint: str = RESTORE) -> LockError:
        """An error that names the file."""
        return LockError(f"{self._path}: {message}", hint)


def _last(url: str) -> str:
    """The file name at the end of a URL or path."""
    place = url.partition("#")[0]
    if "://" in url:
        place = place.partition("?")[0]
    return unquote(place).rsplit("/", 1)[-1]


def glibc_of(virtual: Mapping[str, str]) -> int:
    """The x of the target's glibc 2.x, from its virtual packages; 28 if they do not say."""
    match = re.match(r"2\.(\d+)", virtual.get("__glibc", ""))
    return int(match[1]) if match else 28
