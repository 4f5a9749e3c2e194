"""Wheels and conda packages with every trick of the zip and tar formats.

A case that is refused has the words of its error in ``refused``; all others become layers, in which every
member lies inside the prefix.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder.build.bases.pack import pack_tar
from builder.core.errors import BuilderError
from builder.core.model import Fetched, Image, Layer, LayerOptions
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import build_layers, make_layer
from builder.formats.layers.conda import conda_entries, conda_index
from builder.formats.layers.entry import Entry, LinkContext
from builder.formats.layers.wheel import wheel_entries, wheel_index
from builder.formats.oci.layout import write_layout
from tests.support import condapackage, wheels
from tests.support.condapackage import Member, hardlink, symlink
from tests.support.image_kit import base, image_above, settings, tar_bytes
from tests.support.images import unpack
from tests.support.packagefiles import files_of
from tests.support.rootfs import make_rootfs_tar

CONTEXT = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages")
NFC = unicodedata.normalize("NFC", "caf\u00e9")
NFD = unicodedata.normalize("NFD", "caf\u00e9")
OUTSIDE = "/var/tmp/builder-sentinel"


@dataclass(frozen=True)
class Hostile:
    """One package. Its name in the archive is the name of the case."""

    name: str
    make: Callable[[Path, str], Path]
    """Called with a folder and the package's name; returns the archive."""
    refused: str = ""
    """A regular expression that the error matches; empty for a package that is accepted."""

    def fetched(self, folder: Path) -> Fetched:
        """Writes the package into a folder; returns it as the fetch stage does."""
        kind = "w" if self in WHEELS else "c"
        path = self.make(folder, f"{kind}{self.name.replace('-', '')}")
        return wheels.fetched(path) if path.suffix == ".whl" else condapackage.fetched(path)

    def layer(self, folder: Path, store: Store) -> Layer:
        """Builds the package's layer."""
        return layer_of(self.fetched(folder), folder, store)


def entries_of(package: Fetched, folder: Path) -> Iterator[Entry]:
    """The package's entries, read as a build reads them: first the index, then the content."""
    if package.path.suffix == ".whl":
        wheel_index(package, CONTEXT)
        return wheel_entries(package, CONTEXT)
    conda_index(package, CONTEXT)
    return conda_entries(package, CONTEXT, folder / "spool")


def layer_of(package: Fetched, folder: Path, store: Store) -> Layer:
    """The package's layer."""
    return make_layer(entries_of(package, folder), "hostile", Workspace(Settings(folder, folder, 1), store))


def assert_inside(layer: Layer) -> None:
    """Asserts that all members of a layer are files, links and folders inside the prefix, without setuid."""
    with tarfile.open(fileobj=io.BytesIO(wheels.tar_bytes(layer))) as tar:
        for m in tar:
            parts = m.name.split("/")
            assert parts[:2] in (["opt"], ["opt", "conda"]), m.name
            assert not {"", ".", ".."} & set(parts), m.name
            assert m.isreg() or m.isdir() or m.issym() or m.islnk(), m.name
            assert not m.mode & 0o7000 and m.uid == m.gid == 0, m.name
            if m.islnk():
                assert m.linkname.startswith("opt/conda/"), m.linkname
            if m.issym() and m.linkname.startswith("/"):
                assert m.linkname.startswith("/opt/conda"), m.linkname


# zip, byte by byte ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raw:
    """A zip member whose two headers may differ. None stands for the true value."""

    name: bytes
    data: bytes = b""
    method: int = 0
    flags: int = 0
    crc: int | None = None
    packed_size: int | None = None
    size: int | None = None
    local: dict[str, Any] = field(default_factory=dict)
    """Values of the local header that differ: ``name``, ``method``, ``crc``, ``size``."""
    extra: bytes = b""
    at: int | None = None
    """Where the central directory says that the member begins."""
    mode: int = stat.S_IFREG | 0o644


def raw_zip(members: Sequence[Raw], prefix: bytes = b"", comment: bytes = b"") -> bytes:
    """A zip file of these members, with any lie that they contain."""
    out = bytearray(prefix)
    central = bytearray()
    for m in members:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = deflate.compress(m.data) + deflate.flush() if m.method == 8 else m.data
        crc = zlib.crc32(m.data) if m.crc is None else m.crc
        packed_size = len(packed) if m.packed_size is None else m.packed_size
        size = len(m.data) if m.size is None else m.size
        start = len(out) - len(prefix) if m.at is None else m.at
        here = {"name": m.name, "method": m.method, "crc": crc, "size": size, **m.local}
        sizes = (0, 0, 0) if m.flags & 8 else (here["crc"], packed_size, here["size"])
        head = (20, m.flags, here["method"], 0, 33, *sizes)
        out += struct.pack("<4s5H3I2H", b"PK\3\4", *head, len(here["name"]), 0) + here["name"] + packed
        if m.flags & 8:
            out += struct.pack("<4s3I", b"PK\7\x08", crc, packed_size, size)
        central += struct.pack(
            "<4s6H3I5H2I",
            *(b"PK\1\2", 0x314, 20, m.flags, m.method, 0, 33, crc, packed_size, size),
            *(len(m.name), len(m.extra), 0, 0, 0, m.mode << 16, start),
        )
        central += m.name + m.extra
    end = (0, 0, len(members), len(members), len(central), len(out) - len(prefix), len(comment))
    return bytes(out + central + struct.pack("<4s4H2IH", b"PK\5\6", *end) + comment)


def wheel_of(
    *extra: Raw, info: dict[str, bytes] | None = None, **given: bytes
) -> Callable[[Path, str], Path]:
    """A wheel with these raw members after its own."""

    def make(folder: Path, name: str) -> Path:
        top = f"{name}-1.0.dist-info"
        files = {
            f"{name}/__init__.py": b"x = 1\n",
            f"{top}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
            f"{top}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{top}/RECORD": f"{name}/__init__.py,,\n".encode(),
            **{f"{top}/{k}": v for k, v in (info or {}).items()},
        }
        own = [Raw(k.encode(), v) for k, v in files.items()]
        path = folder / f"{name}-1.0-py3-none-any.whl"
        filled = [_filled(m, name) for m in extra]
        path.write_bytes(raw_zip([*own, *filled], **given))
        return path

    return make


def _with_script(lines: bytes) -> Callable[[Path, str], Path]:
    """A wheel with these lines for its programs."""
    return wheel_of(info={"entry_points.txt": b"[console_scripts]\n" + lines})


def _filled(m: Raw, name: str) -> Raw:
    """The member with the package's name in place of ``@``."""
    values = {key: getattr(m, key) for key in Raw.__dataclass_fields__}
    return Raw(**(values | {"name": m.name.replace(b"@", name.encode())}))


def _nested() -> Raw:
    """A stored member whose content is another member: header and bytes."""
    inner = (
        struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, zlib.crc32(b"evil"), 4, 4, 4, 0) + b"evil" * 2
    )
    return Raw(b"outer", inner)


def _overlapping(folder: Path, name: str) -> Path:
    """A wheel with a member inside another one."""
    outer = _nested()
    first = wheel_of(outer)(folder, name)
    start = first.read_bytes().index(outer.data)
    return wheel_of(outer, Raw(b"evil", b"evil", at=start))(folder, name)


def _zip64(folder: Path, name: str) -> Path:
    """A wheel whose members have zip64 headers, as a program writes them that does not know the size."""
    plain = wheel_of()(folder, name)
    with zipfile.ZipFile(plain) as archive:
        members = {i.filename: archive.read(i) for i in archive.infolist()}
    with zipfile.ZipFile(plain, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            with archive.open(wheels.zip_info(path), "w", force_zip64=True) as f:
                f.write(data)
    return plain


HUGE = struct.pack("<HHQQ", 1, 16, 1 << 62, 1 << 62)
_FULL = 0xFFFFFFFF
SCRIPTS = b"@-1.0.data/scripts/"

WHEELS = (
    Hostile("plain", wheel_of()),
    Hostile("same-name", wheel_of(Raw(b"a.py"), Raw(b"a.py")), "'a.py' appears twice"),
    Hostile("unicode", wheel_of(*(Raw(n.encode(), flags=0x800) for n in (NFC, NFD)))),
    Hostile("two-places", wheel_of(Raw(b"@-1.0.data/purelib/@/__init__.py")), "two members are installed to"),
    Hostile("absolute", wheel_of(Raw(OUTSIDE.encode())), "unsafe member"),
    Hostile("up", wheel_of(Raw(b"../../../../.." + OUTSIDE.encode())), "unsafe member"),
    Hostile("backslash", wheel_of(Raw(b"..\\..\\evil.py")), "backslash"),
    Hostile("nul", wheel_of(Raw(b"a.py\0.txt")), "has a NUL"),
    Hostile("no-name", wheel_of(Raw(b"")), "a member has no name"),
    Hostile("slash", wheel_of(Raw(b"folder/", b"content"))),
    Hostile("long-name", wheel_of(Raw(b"a" * 5000)), "unsafe member"),
    Hostile("newline", wheel_of(Raw(b"a\nb,sha256=x,1\n.py"))),
    Hostile("not-utf8", wheel_of(Raw(b"\xff\xfe.py", flags=0x800)), "not a wheel"),
    Hostile("symlink", wheel_of(Raw(b"link", OUTSIDE.encode(), mode=stat.S_IFLNK | 0o777)), "is a symlink"),
    Hostile("fifo", wheel_of(Raw(b"pipe", mode=stat.S_IFIFO | 0o644)), "special file"),
    Hostile("setuid", wheel_of(Raw(b"@/tool", b"#!/bin/sh\nid\n", mode=stat.S_IFREG | 0o7777))),
    Hostile("local-name", wheel_of(Raw(b"a.py", local={"name": b"b.py"})), "no separate local header"),
    Hostile("local-size", wheel_of(Raw(b"a.py", b"abc", local={"size": 2})), "in two different ways"),
    Hostile("descriptor", wheel_of(Raw(b"a.py", b"abc" * 99, method=8, flags=8))),
    Hostile("encrypted", wheel_of(Raw(b"a.py", b"abc", flags=1)), "is encrypted"),
    Hostile("zip64", _zip64),
    Hostile("huge", wheel_of(Raw(b"a", packed_size=_FULL, size=_FULL, extra=HUGE)), "unpacks to"),
    Hostile("far", wheel_of(Raw(b"a", b"abc", at=0x7FFFFFFF)), "not inside the archive"),
    Hostile("same-bytes", wheel_of(Raw(b"a", b"abc"), Raw(b"b", b"", at=0)), "no separate local header"),
    Hostile("overlap", _overlapping, "overlaps the next member|two different sizes"),
    Hostile("too-small", wheel_of(Raw(b"a", bytes(99), method=8, size=9, flags=8)), "damaged in its archive"),
    Hostile("stored-size", wheel_of(Raw(b"a", bytes(99), size=9)), "two different sizes"),
    Hostile("cut-deflate", wheel_of(Raw(b"a", b"\xff" * 9, method=8, packed_size=1, flags=8)), "damaged"),
    Hostile("bzip2", wheel_of(Raw(b"a", b"BZh9", method=12)), "compressed by method 12"),
    Hostile("prefix", wheel_of(prefix=b"#!/bin/sh\nid\n" * 99)),
    Hostile("comment-end", wheel_of(comment=b"PK\5\6" * 16000), "not a wheel"),
    Hostile("script", wheel_of(Raw(SCRIPTS + b"run", b"#!python\nprint(1)\n", mode=stat.S_IFREG | 0o6755))),
    Hostile("scheme", wheel_of(Raw(b"@-1.0.data/root/x")), "no known scheme"),
    Hostile("second-info", wheel_of(Raw(b"other-1.0.dist-info/WHEEL")), "2 .dist-info folders"),
    Hostile(
        "record",
        wheel_of(info={"RECORD": b'../../x,sha256=a,1\n/etc/passwd,,\n"a\nb",,\na,b,c,d\n,,\n'}),
    ),
    Hostile("wheel-bytes", wheel_of(info={"WHEEL": b"Wheel-Version: \xff\n"}), "is not supported"),
    Hostile("entry-slash", _with_script(b"../x = a:b\n"), "has a slash"),
    Hostile("entry-control", _with_script(b"a\x1b[2Jb = a:b\n"), "has a control character"),
    Hostile("entry-code", _with_script(b"a = os;x:b\n"), "entry_points.txt cannot be read"),
    Hostile("entry-lines", _with_script(b"a = b:c\n  d\n"), "entry_points.txt cannot be read"),
    Hostile(
        "entry-large",
        wheel_of(info={"entry_points.txt": b"[x]\n" + b"#" * (1 << 20)}),
        "at most 1048576 are allowed",
    ),
)


# conda ------------------------------------------------------------------------------------------------------


def conda_of(*members: Member, **given: Any) -> Callable[[Path, str], Path]:
    """A ``.conda`` of these members; ``given`` are options of :func:`tests.support.condapackage.pack`."""
    return lambda folder, name: condapackage.pack(folder, name, members, **given)


def conda_of_tar(tar: bytes, **given: Any) -> Callable[[Path, str], Path]:
    """A ``.conda`` whose files are this tar. Its paths.json lists ``a``, which is empty."""

    def make(folder: Path, name: str) -> Path:
        path = condapackage.pack(folder, name, [Member("a")], **given)
        info = condapackage.part_of(path, "info")
        condapackage.write_conda(path, info, tar)
        return path

    return make


def _tar(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    return tar_bytes(members, format)


def _info(name: str, **values: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(info, key, value)
    return info


def _with_pax(name: str = "b", kind: bytes = tarfile.REGTYPE, **records: str) -> Callable[[Path, str], Path]:
    """A package with an unlisted member that has these pax records."""
    pax = {key.replace("_", "."): value for key, value in records.items()}
    b = _info(name, type=kind, linkname="a", pax_headers=pax)
    return conda_of_tar(_tar((_info("a"), b""), (b, b"")))


def _listing(path: str, *members: Member, **values: Any) -> Callable[[Path, str], Path]:
    """A ``.conda`` whose paths.json has these values for one path."""
    return conda_of(
        *members, info={"paths.json": json.dumps({"paths": [{"_path": path, **values}]}).encode()}
    )


def _extended_header(flag: bytes, size: int) -> bytes:
    """A tar that declares an extended header of ``size`` bytes."""
    return _info("x", type=flag, size=size).tobuf(tarfile.GNU_FORMAT) + bytes(4096)


CONDAS = (
    Hostile("plain", conda_of(Member("lib/a", b"x"))),
    Hostile("same-name", conda_of_tar(_tar((_info("a", size=1), b"x"), (_info("a"), b"")))),
    Hostile("unicode", conda_of(Member(f"share/{NFC}", b"1"), Member(f"share/{NFD}", b"2"))),
    Hostile("absolute", conda_of(Member(OUTSIDE, b"x")), "unsafe (path|member)"),
    Hostile("up", conda_of(Member("../../up", b"x")), "unsafe (path|member)"),
    Hostile("backslash", conda_of(Member("share/..\\..\\evil", b"x"))),
    Hostile("no-name", conda_of(Member("", b"x")), "unsafe path ''"),
    Hostile("nul", _with_pax(path="a\0b"), "a path with a NUL"),
    Hostile("long-name", conda_of(Member("a" * 5000)), "unsafe path|at most 4095"),
    Hostile("newline", conda_of(Member("share/a\nb", b"x"))),
    Hostile("symlink-out", conda_of(symlink("lib/out", OUTSIDE)), "leaves the environment"),
    Hostile("symlink-in", conda_of(Member("lib/a", b"x"), symlink("lib/b", "/opt/conda/lib/a"))),
    Hostile(
        "chain",
        conda_of(symlink("lib/x", ".."), symlink("lib/y", "x/.."), symlink("z", "lib/y/../..")),
        "leaves the environment",
    ),
    Hostile("loop", conda_of(symlink("lib/a", "b"), symlink("lib/b", "a"))),
    Hostile("below-link", conda_of(symlink("lib64", "lib"), Member("lib64/x", b"x")), "has files below it"),
    Hostile("hardlink-out", conda_of(hardlink("lib/h", OUTSIDE)), "not a file of the package"),
    Hostile("hardlink-forward", conda_of(hardlink("lib/h", "lib/z"), Member("lib/z")), "not a file of"),
    Hostile("hardlink-link", conda_of(symlink("lib/s", "x"), hardlink("lib/h", "lib/s"))),
    Hostile("device", conda_of(Member("dev/null", kind="device")), "not a file, a link or a folder"),
    Hostile("setuid", conda_of(Member("bin/su", b"#!/bin/sh\nid\n", mode=0o7777))),
    Hostile("sparse", _with_pax(GNU_sparse_size="99999999999", GNU_sparse_map="0,0"), "is a sparse file"),
    Hostile("unknown-type", conda_of_tar(_tar((_info("a", type=b"V"), b""))), "not a file, a link"),
    Hostile("pax-size", _with_pax(size="-5"), "impossible size"),
    Hostile("pax-far", _with_pax(size=str(1 << 40)), "ends too early"),
    Hostile("pax-time", _with_pax(mtime="inf"), "impossible time"),
    Hostile("pax-link", _with_pax(kind=tarfile.SYMTYPE, linkpath="x\0y"), "a path with a NUL"),
    Hostile("pax-info", conda_of_tar(_extended_header(b"x", 8 << 30)), "a tar header of 8589934592 bytes"),
    Hostile("empty-tar", conda_of_tar(b""), "'a' is listed in its info/ but not in the archive"),
    Hostile("no-tar", conda_of_tar(b"not a tar" * 99), "not a tar"),
    Hostile("entry-slash", conda_of(noarch="python", entry_points=["../x = a:b"]), "entry point"),
    Hostile("entry-code", conda_of(noarch="python", entry_points=["a = os;x:b"]), "entry point"),
    Hostile("entry-type", conda_of(noarch="python", entry_points=[{"a": 1}]), "entry point"),  # type: ignore[list-item]
    Hostile("name-up", conda_of(index={"build": "../../x"}), "unsafe name, version or build"),
    Hostile("name-type", conda_of(index={"version": {"a": 1}}), "version in its info/index.json is not text"),
    Hostile("index-deep", conda_of(info={"index.json": b"[" * 200_000}), "cannot be read"),
    Hostile("index-large", conda_of(info={"index.json": b" " * (1 << 21)}), "at most 1048576 are allowed"),
    Hostile("paths-type", conda_of(info={"paths.json": b'{"paths": [7]}'}), "has no name"),
    Hostile("paths-size", _listing("a", size_in_bytes=math.inf), "has the size inf"),
    Hostile("paths-negative", _listing("a", size_in_bytes=-1), "has the size -1"),
    Hostile("paths-sha", _listing("a", sha256="zz"), "has the sha256 'zz'"),
    Hostile("paths-placeholder", _listing("a", prefix_placeholder=[1]), "prefix placeholder"),
    Hostile("wrong-sha", _listing("lib/a", Member("lib/a", b"evil"), sha256="0" * 64), "lib/a.*sha256"),
)


# images -----------------------------------------------------------------------------------------------------


def hostile_image(folder: Path) -> tuple[Image, Settings, Store]:
    """Builds an image with a shell and every package that is accepted, and tries to build all others."""
    given = settings(folder)
    store = Store(given.cache)
    packages = folder / "packages"
    packages.mkdir(parents=True)
    accepted = []
    for case in (*WHEELS, *CONDAS):
        package = case.fetched(packages)
        if not case.refused:
            accepted.append(package)
            continue
        with contextlib.suppress(BuilderError):
            layer_of(package, folder / "refused", store)
    built = build_layers(files_of(accepted, given), LayerOptions(), budget=100)
    bottom = pack_tar([make_rootfs_tar(folder).read_bytes()], store, 2, "bottom")
    image = image_above(base(bottom), built.layers, cmd=["sh", "-c", "ls /opt/conda"])
    return image, given, store


def build_and_unpack(folder: Path) -> str:
    """Builds the image in a folder, writes it as a layout, unpacks it; returns the packages' layers."""
    image, _, store = hostile_image(folder)
    write_layout(image, folder / "dist", "hostile", store)
    unpack(image, folder / "unpacked", store)
    return package_layers(image)


def package_layers(image: Image) -> str:
    """The digests of an image's layers above the base, which is made of this host's programs."""
    return " ".join(layer.diff_id for layer in image.layers[1:])


def assert_handled(case: Hostile, folder: Path, most: int) -> None:
    """Asserts that a package is refused by name in one line of less than ``most`` characters, or that all its
    files lie inside the prefix.
    """
    package = case.fetched(folder)
    if not case.refused:
        assert_inside(layer_of(package, folder, Store(folder / "store")))
        return
    with pytest.raises(BuilderError, match=case.refused) as caught:
        layer_of(package, folder, Store(folder / "store"))
    assert "\n" not in caught.value.message and len(caught.value.message) < most and caught.value.hint
