"""Writes conda packages (``.conda``, format 2) with the same bytes on every machine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

#: The time of the package and all members: 2023-06-10, the release of Debian bookworm.
EPOCH = 1686355200


@dataclass(frozen=True)
class File:
    """One file of a package, or a symbolic link."""

    data: bytes = b""
    executable: bool = False
    link: str = ""
    """The target of a symbolic link; empty for a file."""


def write_package(folder: Path, info: Mapping[str, Any], files: Mapping[str, File]) -> Path:
    """Write a package into a folder, such as a channel's subdir; return the file.

    Args:
        folder: where.
        info: values of JSON files in ``info/`` by name; ``index.json`` names the package.
        files: what it installs, by path below the prefix.
    """
    index = info["index.json"]
    stem = f"{index['name']}-{index['version']}-{index['build']}"
    parts = {
        "metadata.json": b'{"conda_pkg_format_version": 2}',
        f"pkg-{stem}.tar.zst": _compressed(files),
        f"info-{stem}.tar.zst": _compressed(_info(info, files)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{stem}.conda"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            entry = zipfile.ZipInfo(name, (2023, 6, 10, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return target


def _info(info: Mapping[str, Any], files: Mapping[str, File]) -> dict[str, File]:
    """Return the files in ``info/``."""
    paths = [_path(name, f) for name, f in sorted(files.items())]
    values = {**info, "paths.json": {"paths": paths, "paths_version": 1}}
    texts = {name: json.dumps(value, indent=2, sort_keys=True) for name, value in values.items()}
    texts["files"] = "".join(f"{name}\n" for name in sorted(files))
    return {f"info/{name}": File(text.encode()) for name, text in texts.items()}


def _path(name: str, f: File) -> dict[str, Any]:
    """Return the entry of a file in ``paths.json``."""
    content = b"" if f.link else f.data
    return {
        "_path": name,
        "path_type": "softlink" if f.link else "hardlink",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_in_bytes": len(content),
    }


def _compressed(files: Mapping[str, File]) -> bytes:
    """Return a ``.tar.zst`` with the files in the order of their names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, f in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.mtime = EPOCH
            member.mode, member.size = 0o755 if f.executable else 0o644, len(f.data)
            if f.link:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, f.link, 0o777
            tar.addfile(member, None if f.link else io.BytesIO(f.data))
    return zstandard.ZstdCompressor(level=3).compress(out.getvalue())
