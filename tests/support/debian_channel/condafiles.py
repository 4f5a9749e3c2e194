"""Writes the conda packages (``.conda``, format 2) of the Debian channel, with the same bytes everywhere."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

#: The time of the package and all members: 2023-06-10, the release of Debian bookworm.
EPOCH = 1686355200

#: What ``arch`` in a package's record is, by its subdir.
_MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


@dataclass(frozen=True)
class File:
    """One file of a package, or a symbolic link."""

    data: bytes = b""
    executable: bool = False
    link: str = ""
    """The target of a symbolic link; empty for a file."""


@dataclass(frozen=True)
class CondaPackage:
    """A conda package to write."""

    name: str
    version: str
    build: str = "0"
    subdir: str = "linux-64"
    depends: Sequence[str] = ()
    files: Mapping[str, File] = field(default_factory=dict)
    """By path below the prefix."""
    noarch: str = ""
    """``python``, ``generic``, or empty for a package of one platform."""
    entry_points: Sequence[str] = ()
    """``NAME = MODULE:FUNCTION``; for ``noarch: python`` only."""
    license: str = ""
    summary: str = ""

    @property
    def filename(self) -> str:
        """``NAME-VERSION-BUILD.conda``."""
        return f"{self.name}-{self.version}-{self.build}.conda"


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
    """Return the files in ``info/``: what the package is, and what it contains."""
    paths = [_path(name, f) for name, f in sorted(package.files.items())]
    info: dict[str, Any] = {
        "index.json": _index(package),
        "about.json": {"summary": package.summary},
        "paths.json": {"paths": paths, "paths_version": 1},
    }
    if package.noarch:
        link: dict[str, Any] = {"type": package.noarch}
        if package.noarch == "python":
            link["entry_points"] = list(package.entry_points)
        info["link.json"] = {"noarch": link, "package_metadata_version": 1}
    files = {f"info/{name}": File(_json(value)) for name, value in info.items()}
    files["info/files"] = File("".join(f"{path['_path']}\n" for path in paths).encode())
    return files


def _index(package: CondaPackage) -> dict[str, Any]:
    """Return ``info/index.json``: the package's record in the channel."""
    index: dict[str, Any] = {
        "arch": None if package.noarch else _MACHINES[package.subdir],
        "build": package.build,
        "build_number": 0,
        "depends": list(package.depends),
        "license": package.license or None,
        "name": package.name,
        "noarch": package.noarch or None,
        "platform": None if package.noarch else "linux",
        "subdir": package.subdir,
        "timestamp": EPOCH * 1000,
        "version": package.version,
    }
    return {key: value for key, value in index.items() if value is not None}


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
            member.mode = 0o755 if f.executable else 0o644
            if f.link:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, f.link, 0o777
            else:
                member.size = len(f.data)
            tar.addfile(member, None if f.link else io.BytesIO(f.data))
    return zstandard.ZstdCompressor(level=3).compress(out.getvalue())
