"""Reads ``info/`` of a conda package: its files, their prefixes, and entry points.

The part is read only as far as needed. Packages without ``info/paths.json`` are refused:
conda-build before
2.1 (2017) made them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from builder.core.model import Fetched, LockedPackage
from builder.formats.layers import bounds

from .conda_archive import damage, open_part, read_part
from .entry import Kind
from .tar import is_safe
from .zips import UNSUPPORTED, check_size, fault

#: Files that are read, and the most bytes of each.
_WANTED = {
    "info/index.json": bounds.MAX_METADATA,
    "info/paths.json": bounds.MAX_LISTING,
    "info/link.json": bounds.MAX_METADATA,
}
_REQUIRED = {"info/index.json", "info/paths.json"}
#: Bytes of a placeholder: Linux takes no longer paths.
_MAX_PLACEHOLDER = 4096
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

Noarch = Literal["", "python", "generic"]
_KINDS: Mapping[str, Kind] = {"hardlink": "file", "softlink": "symlink", "directory": "dir"}


@dataclass(frozen=True, slots=True)
class PathInfo:
    """A path of the package, as ``info/paths.json`` describes it."""

    path: str
    kind: Kind
    size: int | None = None
    """Bytes; None if an old package does not record it."""
    sha256: str = ""
    """In hex; empty if an old package does not record it."""
    no_link: bool = False
    """Whether conda copies the file, instead of linking it."""
    placeholder: str = ""
    """The build-time prefix to replace in the file; empty for none."""
    binary: bool = False
    """Whether the placeholder is replaced in C strings."""


@dataclass(frozen=True, slots=True)
class PackageInfo:
    """The metadata of a package that linking needs."""

    index: Mapping[str, Any]
    """The content of ``info/index.json``."""
    paths: tuple[PathInfo, ...]
    noarch: Noarch
    entry_points: tuple[tuple[str, str, str], ...]
    """``(command, module, function)``."""


def read_info(fetched: Fetched) -> PackageInfo:
    """Return the metadata in a package's ``info/``.

    Raises:
        LayerError: the package is damaged, unsafe, or not the one that the lock names.
    """
    files, package = _info_files(fetched), fetched.package
    with damage(fetched):
        index = _index(package, files)
        if "info/paths.json" not in files:
            raise fault(package, "no info/paths.json: it was made before 2017", UNSUPPORTED)
        paths = tuple(map(_path, json.loads(files["info/paths.json"])["paths"]))
        noarch, points = _noarch(index, files)
    if len(paths) > bounds.MAX_MEMBERS:
        what = f"{len(paths)} paths; at most {bounds.MAX_MEMBERS} are allowed"
        raise fault(package, what, UNSUPPORTED)
    for p in paths:
        if not is_safe(p.path):
            raise fault(package, f"unsafe path {p.path!r}")
    try:
        return PackageInfo(index, paths, noarch, tuple(_entry_point(p) for p in points))
    except ValueError as e:
        raise fault(package, f"entry point {e}") from None


def read_index_file(fetched: Fetched) -> Mapping[str, Any]:
    """Return the content of a package's ``info/index.json``.

    Raises:
        LayerError: the package is damaged, unsafe, or not the one that the lock names.
    """
    files = _info_files(fetched)
    with damage(fetched):
        return _index(fetched.package, files)


def _info_files(fetched: Fetched) -> dict[str, bytes]:
    """Return the wanted files of ``info/``.

    In a ``.tar.bz2`` they precede the content, which is not read then.
    """
    found: dict[str, bytes] = {}
    with open_part(fetched, "info") as reader:
        for member in read_part(fetched, reader):
            if found.keys() >= _REQUIRED and not member.path.startswith("info/"):
                break
            most = _WANTED.get(member.path)
            if most is None or member.kind != "file":
                continue
            check_size(fetched.package, member.path, member.size, most)
            found[member.path] = reader.read_exactly(member.size)
    return found


def _index(package: LockedPackage, files: Mapping[str, bytes]) -> dict[str, Any]:
    index = json.loads(files["info/index.json"]) if "info/index.json" in files else None
    if not isinstance(index, dict):
        raise fault(package, "no info/index.json")
    name = index.get("name")
    for key in ("name", "version", "build"):
        if not isinstance(index.get(key, ""), str | int | float):
            raise fault(package, f"{key} in its info/index.json is not text")
    wanted = package.name
    if str(name).lower() != wanted.lower():
        what = f"its info/index.json is that of {name!r}, but the lock names {wanted!r}"
        raise fault(package, what)
    return index


def _path(item: Any) -> PathInfo:
    """Return a path of ``paths.json``. Raises ValueError or TypeError for another form."""
    if not isinstance(item, dict) or not isinstance(path := item.get("_path"), str):
        raise ValueError("a path in paths.json has no name")
    kind = _KINDS.get(str(item.get("path_type") or "hardlink").lower())
    size = item.get("size_in_bytes")
    if kind is None:
        raise ValueError(f"{path!r} in paths.json has the unknown type {item['path_type']!r}")
    if size is not None and (type(size) is not int or size < 0):
        raise ValueError(f"{path!r} in paths.json has the size {size!r}")
    return PathInfo(
        path=path,
        kind=kind,
        size=size,
        sha256=_sha256(path, kind, item.get("sha256") or ""),
        no_link=bool(item.get("no_link")),
        placeholder=_placeholder(item.get("prefix_placeholder") or ""),
        binary=item.get("file_mode") == "binary",
    )


def _sha256(path: str, kind: Kind, text: Any) -> str:
    if not isinstance(text, str) or (kind == "file" and text and not _SHA256.fullmatch(text)):
        raise ValueError(f"{path!r} in paths.json has the sha256 {text!r}")
    return text


def _placeholder(text: Any) -> str:
    if not isinstance(text, str) or len(text.encode()) > _MAX_PLACEHOLDER or "\0" in text:
        raise ValueError("a prefix placeholder is not a path")
    return text


def _noarch(index: Mapping[str, Any], files: Mapping[str, bytes]) -> tuple[Noarch, tuple[str, ...]]:
    """Return the kind of noarch, and the entry points of a noarch python package."""
    noarch = index.get("noarch")
    if noarch not in (None, False, "", True, "python", "generic"):
        raise ValueError(f"noarch is {noarch!r}")
    if noarch not in (True, "python"):
        return ("generic" if noarch else ""), ()
    link = json.loads(files.get("info/link.json") or b"{}")
    return "python", tuple((link.get("noarch") or {}).get("entry_points") or ())


def _entry_point(text: str) -> tuple[str, str, str]:
    """Parse ``command = module:function``. Strict, because the words become part of a program."""
    command, equals, rest = map(str.strip, str(text).partition("="))
    module, colon, function = map(str.strip, rest.partition(":"))
    words = [*module.split("."), *function.split(".")]
    dotted = all(word.isidentifier() and word.isascii() for word in words)
    plain = is_safe(command) and command.isprintable() and not re.search(r"^\.|[/\\]", command)
    if not (equals and colon and dotted and plain):
        raise ValueError(f"{text!r} is not COMMAND = MODULE:FUNCTION")
    return command, module, function
