"""Writing conda packages (``.conda``, format 2) with the same bytes on every machine."""

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

#: All members' time: 2023-06-10, Debian bookworm's release.
EPOCH = 1686355200


@dataclass(frozen=True)
class File:
    """One file of a package: content, or a symlink's text."""

    data: bytes = b""
    executable: bool = False
    link: str = ""


@dataclass(frozen=True)
class CondaPackage:
    """A package to be written. ``files`` by path below the prefix."""

    name: str
    version: str
    build: str = "0"
    build_number: int = 0
    subdir: str = "linux-64"
    depends: Sequence[str] = ()
    files: Mapping[str, File] = field(default_factory=dict)
    noarch: str = ""
    entry_points: Sequence[str] = ()
    license: str = ""
    summary: str = ""
    timestamp: int = EPOCH
    """When it was built, in seconds since 1970."""

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-{self.build}.conda"


def write_package(package: CondaPackage, channel: Path) -> Path:
    """Writes a package into its subdir of a channel folder; gives the file."""
    paths = [_path(name, f) for name, f in sorted(package.files.items())]
    index: dict[str, Any] = {
        "arch": None if package.noarch else "x86_64",
        "build": package.build,
        "build_number": package.build_number,
        "depends": list(package.depends),
        "license": package.license or None,
        "name": package.name,
        "platform": None if package.noarch else "linux",
        "subdir": package.subdir,
        "timestamp": package.timestamp * 1000,
        "version": package.version,
    }
    info: dict[str, Any] = {
        "about.json": {"summary": package.summary},
        "paths.json": {"paths": paths, "paths_version": 1},
    }
    if package.noarch:
        index["noarch"] = package.noarch
        link: dict[str, Any] = {"type": package.noarch}
        if package.noarch == "python":
            link["entry_points"] = list(package.entry_points)
        info["link.json"] = {"noarch": link, "package_metadata_version": 1}
    info["index.json"] = {k: v for k, v in index.items() if v is not None}
    members = {f"info/{n}": File(json.dumps(v, indent=2, sort_keys=True).encode()) for n, v in info.items()}
    members["info/files"] = File("".join(f"{p['_path']}\n" for p in paths).encode())
    folder = channel / package.subdir
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / package.filename
    stem = package.filename.removesuffix(".conda")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        parts = {
            "metadata.json": b'{"conda_pkg_format_version": 2}',
            f"pkg-{stem}.tar.zst": _compressed(package.files),
            f"info-{stem}.tar.zst": _compressed(members),
        }
        for name, data in parts.items():
            entry = zipfile.ZipInfo(name, (2023, 6, 10, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return target


def _path(name: str, f: File) -> dict[str, Any]:
    content = b"" if f.link else f.data
    return {
        "_path": name,
        "path_type": "softlink" if f.link else "hardlink",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_in_bytes": len(content),
    }


def _compressed(files: Mapping[str, File]) -> bytes:
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
