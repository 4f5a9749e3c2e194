"""Conda packages written member by member, with everything that a real or malicious archive can contain."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zstandard

from builder.core.model import Fetched, LockedPackage
from builder.formats.layers.content import read_whole
from builder.formats.layers.entry import Entry

#: The placeholder for the prefix in the files of a package, as long as conda-build writes it.
PLACEHOLDER = ("/opt/build/" + "placehold_" * 25)[:255]
Extension = Literal[".conda", ".tar.bz2"]


@dataclass(frozen=True)
class Member:
    """A member of the package's tar."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    kind: Literal["file", "symlink", "hardlink", "dir", "device"] = "file"
    target: str = ""
    prefix: Literal["", "text", "binary"] = ""
    """How the placeholder in it is replaced; empty for a file without one."""
    listed: bool = True
    """Whether ``paths.json`` lists it."""


def symlink(path: str, target: str) -> Member:
    return Member(path, kind="symlink", target=target, mode=0o777)


def hardlink(path: str, target: str, **more: Any) -> Member:
    return Member(path, kind="hardlink", target=target, **more)


@dataclass(frozen=True)
class PackOptions:
    """What a test may choose about a conda package."""

    noarch: Literal["", "python", "generic"] = ""
    entry_points: Sequence[str] = ()
    extension: Extension = ".conda"
    index: Mapping[str, Any] | None = None
    subdir: str = "linux-64"
    info: Mapping[str, bytes] | None = None


def pack(
    channel: Path,
    name: str,
    members: Sequence[Member] = (),
    version: str = "1.0",
    build: str = "0",
    depends: Sequence[str] = (),
    **given: Any,
) -> Path:
    """Writes a package into its subdir of a channel."""
    options = PackOptions(**given)
    subdir = "noarch" if options.noarch else options.subdir
    record: dict[str, Any] = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": 0,
        "depends": list(depends),
        "subdir": subdir,
        "timestamp": 1714521600000,
        "license": "BSD-3-Clause",
        **({"noarch": options.noarch} if options.noarch else {"arch": "x86_64", "platform": "linux"}),
        **(options.index or {}),
    }
    record = {key: value for key, value in record.items() if value is not None}
    by_path = {m.path: m for m in members}
    listed = [m for m in members if m.listed]
    files: dict[str, bytes] = {"index.json": _json(record), "about.json": b"{}"}
    files["files"] = "".join(f"{m.path}\n" for m in listed).encode()
    files["paths.json"] = _json({"paths": [_path(m, by_path) for m in listed], "paths_version": 1})
    if options.noarch == "python":
        files["link.json"] = _json(
            {
                "noarch": {"type": "python", "entry_points": list(options.entry_points)},
                "package_metadata_version": 1,
            }
        )
    files |= options.info or {}
    inner = [Member(f"info/{n}", data) for n, data in files.items()]
    target = channel / subdir / f"{name}-{version}-{build}{options.extension}"
    target.parent.mkdir(parents=True, exist_ok=True)
    if options.extension == ".tar.bz2":
        target.write_bytes(tar_of([*inner, *members], "bz2"))
        return target
    write_conda(target, tar_of(inner), tar_of(members))
    return target


def write_conda(target: Path, info: bytes, pkg: bytes) -> None:
    """Writes a ``.conda`` from its two tars. The same tars result in the same bytes."""
    stem = target.name.removesuffix(".conda")
    compress = zstandard.ZstdCompressor(level=3).compress
    parts = {
        "metadata.json": b'{"conda_pkg_format_version": 2}',
        f"pkg-{stem}.tar.zst": compress(pkg),
        f"info-{stem}.tar.zst": compress(info),
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as out:
        for name, data in parts.items():
            out.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), data)


def part_of(path: Path, part: Literal["info", "pkg"]) -> bytes:
    """One of the two tars of a ``.conda``."""
    with zipfile.ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.startswith(f"{part}-")]
        return zstandard.ZstdDecompressor().stream_reader(archive.read(name)).read()


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


def _path(m: Member, by_path: Mapping[str, Member]) -> dict[str, Any]:
    if m.kind == "dir":
        return {"_path": m.path, "path_type": "directory"}
    first = m
    for _ in by_path:
        first = by_path.get(first.target, first) if first.kind == "hardlink" else first
    out: dict[str, Any] = {
        "_path": m.path,
        "path_type": "softlink" if first.kind == "symlink" else "hardlink",
        "sha256": hashlib.sha256(first.data).hexdigest(),
        "size_in_bytes": len(first.data),
    }
    if m.prefix:
        out |= {"file_mode": m.prefix, "prefix_placeholder": PLACEHOLDER}
    return out


def tar_of(members: Iterable[Member], compression: str = "") -> bytes:
    """The members as a tar, in their order."""
    types = {
        "symlink": tarfile.SYMTYPE,
        "hardlink": tarfile.LNKTYPE,
        "dir": tarfile.DIRTYPE,
        "device": tarfile.CHRTYPE,
    }
    out = io.BytesIO()
    mode: Any = f"w:{compression}" if compression else "w"
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.GNU_FORMAT) as tar:
        for m in members:
            member = tarfile.TarInfo(m.path)
            member.mode, member.linkname, member.mtime = m.mode, m.target, 1714521600
            if m.kind == "file":
                member.size = len(m.data)
                tar.addfile(member, io.BytesIO(m.data))
            else:
                member.type = types[m.kind]
                tar.addfile(member)
    return out.getvalue()


def fetched(path: Path, name: str | None = None, **more: Any) -> Fetched:
    """A package file as fetching returns it; the name is the file's unless one is given."""
    stem = path.name.removesuffix(".conda").removesuffix(".tar.bz2")
    own, version, _ = stem.rsplit("-", 2)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    values: dict[str, Any] = {
        "name": name or own,
        "version": version,
        "manager": "conda",
        "platform": "linux-64",
        "url": f"https://conda.example/channel/{path.parent.name}/{path.name}",
        "sha256": digest,
    }
    return Fetched(LockedPackage(**(values | more)), path, path.stat().st_size)


def write_tree(entries: Iterable[Entry], root: Path) -> None:
    """Writes entries into a folder as unpacking their layer would; later entries replace earlier ones."""
    for e in entries:
        path = root / e.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if e.kind == "dir":
            path.mkdir(exist_ok=True)
            path.chmod(e.mode)
            continue
        path.unlink(missing_ok=True)
        if e.kind == "symlink":
            path.symlink_to(e.target)
        elif e.kind == "hardlink":
            path.hardlink_to(root / e.target)
        else:
            path.write_bytes(read_whole(e))
            path.chmod(e.mode)
