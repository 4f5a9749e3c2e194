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

from builder.lock.markers import ARCHITECTURES

#: The time of the package and all members: 2023-06-10, the release of Debian bookworm.
EPOCH = 1686355200


@dataclass(frozen=True)
class File:
    """One file of a package, or a symbolic link."""

    data: bytes = b""
    executable: bool = False
    link: str = ""
    """The target of a symbolic link; empty for a file."""


@dataclass(frozen=True)
class CondaPackage:
    """A conda package of one platform to write. It needs no other package."""

    name: str
    version: str
    build: str
    subdir: str
    files: Mapping[str, File]
    """By path below the prefix."""
    license: str
    summary: str

    @property
    def filename(self) -> str:
        """``NAME-VERSION-BUILD.conda``."""
        return f"{self.name}-{self.version}-{self.build}.conda"

    def info(self) -> dict[str, Any]:
        """Return the JSON files in ``info/`` by name: what the package is, and what it contains."""
        paths = [_path(name, f) for name, f in sorted(self.files.items())]
        return {
            "index.json": self._index(),
            "about.json": {"summary": self.summary},
            "paths.json": {"paths": paths, "paths_version": 1},
        }

    def _index(self) -> dict[str, Any]:
        """Return the package's record in the channel."""
        return {
            "arch": ARCHITECTURES.get(self.subdir),
            "build": self.build,
            "build_number": 0,
            "depends": [],
            "license": self.license,
            "name": self.name,
            "platform": "linux",
            "subdir": self.subdir,
            "timestamp": EPOCH * 1000,
            "version": self.version,
        }


def write_package(package: CondaPackage, channel: Path) -> Path:
    """Write a package into its subdir of a channel's folder; returns the file."""
    folder = channel / package.subdir
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / package.filename
    stem = package.filename.removesuffix(".conda")
    parts = {
        "metadata.json": b'{"conda_pkg_format_version": 2}',
        f"pkg-{stem}.tar.zst": _compressed(package.files),
        f"info-{stem}.tar.zst": _compressed(_info(package)),
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            entry = zipfile.ZipInfo(name, (2023, 6, 10, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return target


def _info(package: CondaPackage) -> dict[str, File]:
    """Return the files in ``info/``."""
    files = {f"info/{name}": File(_json(value)) for name, value in package.info().items()}
    files["info/files"] = File("".join(f"{name}\n" for name in sorted(package.files)).encode())
    return files


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


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
