"""Wheels for tests, and the files that their layers unpack to.

wheel = make_wheel(folder, "demo", files={"demo/__init__.py": "x = 1\\n"}, executable=["demo/tool"])
fetched(wheel)  # as the fetch stage returns it
"""

from __future__ import annotations

import base64
import csv
import functools
import gzip
import hashlib
import io
import posixpath
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from installer.utils import parse_wheel_filename
from packaging.utils import canonicalize_name

from builder.core.model import Fetched, Layer, LockedPackage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import LinkContext
from builder.formats.layers.wheel import wheel_entries

CONTEXT = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages")


@dataclass(frozen=True)
class WheelOptions:
    """What a test may choose about a wheel."""

    tag: str = "py3-none-any"
    purelib: bool = True
    entry_points: str = ""
    executable: Sequence[str] = ()
    stored: Sequence[str] = ()
    extra: Sequence[tuple[zipfile.ZipInfo, bytes]] = ()
    wheel_version: str = "1.0"
    record: bool = True
    requires: Sequence[str] = ()
    metadata: str = ""


def make_wheel(
    folder: Path,
    name: str = "demo",
    version: str = "1.0",
    files: Mapping[str, str | bytes] | None = None,
    **given: Any,
) -> Path:
    """Writes a wheel. The same arguments result in the same bytes.

    Args:
        files: content by name; metadata and RECORD are added.
        executable: names of members with an executable mode.
        stored: names of members that are not compressed.
        extra: members that are added unchanged, and are not in RECORD.
        record: whether the wheel has a RECORD.
        requires: the ``Requires-Dist`` texts of METADATA.
        metadata: further lines of METADATA.
    """
    options = WheelOptions(**given)
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    members: dict[str, bytes] = {k: v.encode() if isinstance(v, str) else v for k, v in (files or {}).items()}
    needs = "".join(f"Requires-Dist: {text}\n" for text in options.requires) + options.metadata
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
    wheel = f"Wheel-Version: {options.wheel_version}\nGenerator: test\n"
    wheel += f"Root-Is-Purelib: {str(options.purelib).lower()}\nTag: {options.tag}\n"
    members[f"{info}/WHEEL"] = wheel.encode()
    if options.entry_points:
        members[f"{info}/entry_points.txt"] = options.entry_points.encode()
    path = folder / f"{name}-{version}-{options.tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for member, data in members.items():
            kind = zipfile.ZIP_STORED if member in options.stored else zipfile.ZIP_DEFLATED
            archive.writestr(zip_info(member, 0o755 if member in options.executable else 0o644), data, kind)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.writerow((member, f"sha256={digest}", len(data)))
        for special, data in options.extra:
            archive.writestr(special, data)
        if options.record:
            rows.writerow((f"{info}/RECORD", "", ""))
            archive.writestr(zip_info(f"{info}/RECORD"), text.getvalue(), zipfile.ZIP_DEFLATED)
    return path


@functools.cache
def noise(seed: str, size: int) -> bytes:
    """Bytes that compress by half, always the same for a seed."""
    return b"".join(
        hashlib.sha256(f"{seed}{i}".encode()).digest() + bytes(32) for i in range(size // 64 + 1)
    )[:size]


def zip_info(name: str, mode: int = 0o644, kind: int = stat.S_IFREG) -> zipfile.ZipInfo:
    """A zip member's header with Unix mode bits."""
    info = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
    info.external_attr = (kind | mode) << 16
    info.create_system = 3
    return info


def fetched(path: Path, name: str = "") -> Fetched:
    """A wheel on disk as the fetch stage returns it."""
    names = parse_wheel_filename(path.name)
    package = LockedPackage(
        name or canonicalize_name(names.distribution),
        names.version,
        "pip",
        "linux-64",
        f"https://example.org/packages/{path.name}",
        sha256_file(path).removeprefix("sha256:"),
    )
    return Fetched(package, path, path.stat().st_size)


def tar_bytes(layer: Layer) -> bytes:
    """A layer's tar, decompressed by Python's own gzip (or zstandard)."""
    assert layer.path is not None
    data = layer.path.read_bytes()
    if layer.descriptor.media_type.endswith("gzip"):
        return gzip.decompress(data)
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def tree(layers: Iterable[Layer]) -> dict[str, tuple[str, int, bytes | str]]:
    """What layers unpack to: (kind, mode, content or target) by path, without directories.

    Asserts that no path is in two layers.
    """
    out: dict[str, tuple[str, int, bytes | str]] = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(tar_bytes(layer))) as archive:
            for member in archive:
                if member.isdir():
                    continue
                assert member.name not in out, f"{member.name} is in two layers"
                if member.issym():
                    out[member.name] = ("symlink", member.mode, member.linkname)
                else:
                    stream = archive.extractfile(member)
                    assert stream is not None
                    out[member.name] = ("file", member.mode, stream.read())
    return out


def installed(wheel: Path, root: Path, context: LinkContext = CONTEXT) -> dict[str, tuple[str, int, bytes]]:
    """What PyPA installer installs for the same prefix: (kind, mode, content) by path."""
    prefix = root / context.prefix.strip("/")
    site = context.site_packages
    names = WheelFile(zipfile.ZipFile(wheel))
    schemes = {
        "purelib": f"{context.prefix}/{site}",
        "platlib": f"{context.prefix}/{site}",
        "scripts": f"{context.prefix}/bin",
        "data": context.prefix,
        "headers": f"{context.prefix}/include/python{context.python}/{names.distribution}",
    }
    destination = SchemeDictionaryDestination(schemes, context.interpreter, "posix", destdir=str(root))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install(names, destination, {"INSTALLER": b"builder\n"})
    return {
        str(p.relative_to(root)): ("file", stat.S_IMODE(p.stat().st_mode), p.read_bytes())
        for p in prefix.rglob("*")
        if p.is_file()
    }


def assert_like_installer(wheel: Path, tmp_path: Path, context: LinkContext = CONTEXT) -> None:
    """Asserts that a wheel's layer unpacks to the files that installer installs."""
    root = tmp_path / "root"
    root.mkdir()
    expected = installed(wheel, root, context)
    store = Store(tmp_path / "store")
    layer = make_layer(
        wheel_entries(fetched(wheel), context), "w", Workspace(Settings(tmp_path, tmp_path, 1), store)
    )
    got = tree([layer])
    assert sorted(got) == sorted(expected)
    for path, (kind, mode, data) in expected.items():
        if path.endswith(".dist-info/RECORD"):
            assert _rows(got[path][2]) == _rows(data), path
            continue
        assert got[path][2] == data, path
        # installer applies the zip's mode and the umask. An image has 0755 or 0644, and scripts are
        # executable, as with pip.
        runs = mode & 0o100 or path.startswith(f"{context.prefix.strip('/')}/bin/")
        assert (got[path][0], got[path][1]) == (kind, 0o755 if runs else 0o644), path


def _rows(record: bytes | str) -> list[list[str]]:
    """The rows of RECORD with normalized paths. installer writes ``./x`` for some of them."""
    assert isinstance(record, bytes)
    return sorted([posixpath.normpath(row[0]), *row[1:]] for row in csv.reader(io.StringIO(record.decode())))
