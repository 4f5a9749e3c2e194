"""The files in ``conda-meta``, which conda and rattler read: package records, history."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from builder.core.model import Fetched, LockedPackage
from builder.core.redact import redact

from .conda_archive import PackageInfo, PathInfo
from .conda_layout import CondaLayout
from .entry import Content, Entry, Inline, LinkContext

#: Fields of ``info/index.json`` that the record repeats: those of a package record, as rattler
#: defines it.
_RECORD_FIELDS = """
arch build build_number constrains depends features license license_family name noarch platform
purls python_site_packages_path run_exports subdir timestamp track_features version
"""
_PATH_TYPES = {"file": "hardlink", "symlink": "softlink", "dir": "directory"}


class InstalledFile(NamedTuple):
    """A regular file as it is installed, after its prefix is replaced."""

    sha256: str
    """In hex."""
    size: int
    """Bytes."""
    packed: str
    """The sha256 of the file in the archive, before its prefix is replaced, in hex."""
    content: Content


def package_record(
    fetched: Fetched, info: PackageInfo, layout: CondaLayout, installed: Mapping[str, InstalledFile]
) -> Entry:
    """Return the package's record in ``conda-meta``.

    It depends on the package and its paths alone, so that it does not change with other packages:
    files that lose a conflict are listed too.

    Args:
        fetched: the package.
        info: the metadata in its ``info/``.
        layout: where its files go.
        installed: its regular files, by image path.
    """
    package, index = fetched.package, info.index
    items = layout.paths.items()
    paths = [_path_record(layout.relative(p), item, installed.get(p)) for p, item in items]
    paths += [_entry_point_record(layout, e) for e in layout.entry_points]
    url = recorded_url(package.url)

    record = {
        **{key: index.get(key) for key in _RECORD_FIELDS.split()},
        "channel": url.rsplit("/", 2)[0] + "/",
        "files": [p["_path"] for p in paths],
        "fn": package.filename,
        "link": {"source": "", "type": 3},
        "md5": package.md5 or None,
        "paths_data": {"paths": paths, "paths_version": 1},
        "requested_spec": package.name if layout.is_requested else None,
        "requested_specs": [package.name] if layout.is_requested else [],
        "sha256": package.sha256 or None,
        "size": fetched.size,
        "subdir": package.subdir or index.get("subdir", ""),
        "url": url,
    }
    data = json.dumps(_known(record), sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return Entry.of(layout.record_path, data)


def _path_record(path: str, item: PathInfo, installed: InstalledFile | None) -> dict[str, Any]:
    file_mode = "binary" if item.binary else "text"
    record = {
        "_path": path,
        "path_type": _PATH_TYPES[item.kind],
        "no_link": item.no_link or None,
        "sha256": item.sha256 or None,
        "sha256_in_prefix": installed and installed.sha256,
        "size_in_bytes": installed.size if installed else item.size,
        "file_mode": file_mode if item.placeholder else None,
        "prefix_placeholder": item.placeholder or None,
    }
    return _known(record)


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what conda writes of a record: it leaves out what is not known."""
    return {key: value for key, value in record.items() if value is not None}


def _entry_point_record(layout: CondaLayout, script: Entry) -> dict[str, Any]:
    assert isinstance(script.content, Inline)
    digest = hashlib.sha256(script.content.data).hexdigest()
    return {
        "_path": layout.relative(script.path),
        "path_type": "unix_python_entry_point",
        "sha256": digest,
        "sha256_in_prefix": digest,
        "size_in_bytes": script.size,
    }


def history_entry(packages: Iterable[LockedPackage], context: LinkContext) -> Entry:
    """Return ``conda-meta/history``: without it, conda does not take the prefix for its own.

    Args:
        packages: the conda packages.
        context: prefix of the environment, and the names in the environment file.
    """
    lines = ["==> 1980-01-01 00:00:00 <==", "# cmd: builder build"]
    for p in sorted(packages, key=lambda p: p.name):
        channel = recorded_url(p.url).rpartition("/")[0].removeprefix("https://conda.anaconda.org/")
        lines.append(f"+{channel}::{p.filename.removesuffix('.conda').removesuffix('.tar.bz2')}")
    if context.requested:
        lines.append(f"# update specs: {json.dumps(sorted(context.requested))}")
    data = ("\n".join(lines) + "\n").encode()
    path = f"{context.prefix.strip('/')}/conda-meta/history"
    return Entry.of(path, data)


def recorded_url(url: str) -> str:
    """Return a package's URL as conda records it, without credentials and ``/t/<token>``."""
    parts = urlsplit(redact(url))
    path = re.sub(r"^/t/[^/]+/", "/", parts.path)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
