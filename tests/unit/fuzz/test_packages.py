"""Damaged wheels, conda packages and tars."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from builder.core.model import Fetched
from builder.core.store.blobs import Store
from builder.core.tarheaders import BLOCK, TarError
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.libraries import recorded_libraries
from builder.formats.layers.wheel import wheel_entries
from builder.formats.trees.reader import TarReader
from tests.support import condapackage, wheels
from tests.support.condapackage import (
    PLACEHOLDER,
    Member,
    hardlink,
    pack,
    part_of,
    symlink,
    tar_of,
    write_conda,
)
from tests.support.elf import elf
from tests.support.fuzz import Sample, fuzz, mutated, only_builder_errors
from tests.support.hostile import assert_inside, layer_of, wheel_of
from tests.support.image_kit import settings, tar_bytes


def build(package: Fetched, folder: Path) -> None:
    """Builds a package's layer, which lies inside the prefix, or ends in a BuilderError of one line."""
    with only_builder_errors():
        assert_inside(layer_of(package, folder, Store(folder / "store")))


# tars -------------------------------------------------------------------------------------------------------


def _tar(format: int) -> bytes:
    infos = [tarfile.TarInfo(name) for name in ("a", "b" * 150, "caf\u00e9", "big")]
    infos[0].size = 600
    infos[1].type, infos[1].linkname = tarfile.SYMTYPE, "c" * 150
    infos[3].uid, infos[3].mtime = 1 << 30, 1.5
    return tar_bytes([(info, bytes(600)[: info.size]) for info in infos], format)


def _sparse(records: dict[str, str], content: bytes) -> bytes:
    """A tar with a sparse file of GNU tar's pax formats."""
    info = tarfile.TarInfo("GNUSparseFile.0/a")
    info.pax_headers, info.size = {"GNU.sparse.name": "a", **records}, len(content)
    return tar_bytes([(info, content)])


TARS = [Sample(_tar(format)) for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)]
TARS += [
    Sample(_sparse({"GNU.sparse.map": "1,3,700,5", "GNU.sparse.size": "900"}, bytes(8))),
    Sample(
        _sparse(
            {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "900"},
            b"2\n1\n3\n700\n5\n".ljust(BLOCK, b"\0") + bytes(8),
        )
    ),
]


def read_tar(data: bytes, fix: bool) -> None:
    """Reads all headers. ``fix`` corrects the checksums of all blocks, so that other fields are reached."""
    if fix:
        blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
        data = b"".join(map(_with_checksum, blocks))
    reader = TarReader(io.BytesIO(data), 1 << 30)
    with contextlib.suppress(TarError):
        for header in reader.members():
            assert 0 <= header.size < 1 << 63 and "\0" not in header.path + header.target
            assert 0 <= header.uid < 1 << 32 and abs(header.mtime) < 1 << 41
            if header.size < 1 << 20:
                assert sum(map(len, reader.content(header))) == header.size


def _with_checksum(block: bytes) -> bytes:
    if len(block) < BLOCK or not any(block) or block[257:262] != b"ustar":
        return block
    total = sum(block[:148]) + 256 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


@fuzz(200)
@given(st.sampled_from(TARS).flatmap(Sample.damaged), st.booleans())
@example(tarfile.TarInfo("x").tobuf()[:124] + b"\xff" * 12 + bytes(376), True)  # a negative size
@example(b"0 a=b\n".ljust(BLOCK), False)
def test_tar(data: bytes, fix: bool) -> None:
    """A damaged tar ends in a TarError."""
    read_tar(data, fix)


# wheels -----------------------------------------------------------------------------------------------------


@cache
def wheel() -> bytes:
    with TemporaryDirectory() as folder:
        files = {"demo/__init__.py": "x = 1\n" * 50, "demo-1.0.data/scripts/run": "#!python\nprint(1)\n"}
        path = wheels.make_wheel(
            Path(folder), files=files, entry_points="[console_scripts]\nd = demo:main\n", stored=["demo/b"]
        )
        return path.read_bytes()


@fuzz(100)
@given(st.data())
def test_wheel(tmp_path: Path, data: st.DataObject) -> None:
    """A damaged wheel."""
    sample = Sample(wheel())
    central = Sample(wheel(), range(wheel().index(b"PK\1\2"), len(wheel())))
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(data.draw(sample.damaged() | central.damaged()))
    build(wheels.fetched(path), tmp_path)


DOCUMENTS = {
    "entry_points.txt": [
        *(b"[console_scripts]", b"[gui_scripts]", b"a = b:c", b"a=b", b"%(x)s = y:z", b"=:", b" x", b"["),
        b"a = b:c [d]",
    ],
    "RECORD": [b"demo/__init__.py,sha256=x,1", b'"', b"a,b", b",,,", b"\r"],
    "WHEEL": [b"Wheel-Version: 1.0", b"Wheel-Version:", b"\xff: 1", b" x"],
}


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file of a wheel's metadata, and lines that are nearly right."""
    name = draw(st.sampled_from(sorted(DOCUMENTS)))
    line = st.sampled_from(DOCUMENTS[name]) | st.binary(max_size=20)
    return name, b"\n".join(draw(st.lists(line)))


@fuzz(150)
@given(documents())
@example(("entry_points.txt", b"[console_scripts]\na = b:c\na = b:d\n"))
@example(("entry_points.txt", b"[DEFAULT]\na = b\n[console_scripts]\n"))
@example(("entry_points.txt", b"[console_scripts]\n\xc2\x85 = b:c\n"))
@example(("RECORD", b'"' + b"x" * 140_000))
@example(("WHEEL", b"Wheel-Version: 1\xff\n"))
def test_documents(tmp_path: Path, document: tuple[str, bytes]) -> None:
    """Any metadata of a wheel."""
    name, text = document
    build(wheels.fetched(wheel_of(info={name: text})(tmp_path, "demo")), tmp_path)


# ELF files --------------------------------------------------------------------------------------------------


ELVES = [Sample(elf(["libGL.so.1", "libz.so.1"], strings_last=last)) for last in (False, True)]


@fuzz(200)
@given(st.sampled_from(ELVES).flatmap(Sample.damaged))
def test_elf(tmp_path: Path, data: bytes) -> None:
    """A damaged library is laid as it is, and what it needs are names of files."""
    package = wheels.fetched(wheels.make_wheel(tmp_path, "demo", files={"demo/x.so": data}))
    store = Store(tmp_path / "store")
    layer = make_layer(wheel_entries(package, wheels.CONTEXT), "t", Workspace(settings(tmp_path), store))
    (needed,) = recorded_libraries(layer.descriptor.digest, store).values()
    assert not any("/" in name or len(name.encode()) > 256 for name in needed)


# conda packages ---------------------------------------------------------------------------------------------


@cache
def conda() -> tuple[bytes, bytes]:
    """The two tars of a package with every kind of member."""
    with TemporaryDirectory() as folder:
        path = pack(Path(folder), "thing", MEMBERS, noarch="python", entry_points=["a = b:c"])
        return part_of(path, "info"), part_of(path, "pkg")


MEMBERS = [
    Member("lib/a", b"x" * 700),
    Member("bin/run", f"#!{PLACEHOLDER}/bin/python\n".encode(), prefix="text", mode=0o755),
    symlink("lib/link", "a"),
    hardlink("lib/again", "lib/a"),
    Member("site-packages/x/__init__.py", b""),
]


def build_conda(info: bytes, pkg: bytes, folder: Path) -> None:
    path = folder / "noarch" / "thing-1.0-0.conda"
    path.parent.mkdir(exist_ok=True)
    write_conda(path, info, pkg)
    build(condapackage.fetched(path), folder)


@fuzz(100)
@given(st.data(), st.booleans())
def test_conda_tars(tmp_path: Path, data: st.DataObject, in_info: bool) -> None:
    """Damaged tars in a conda package."""
    info, pkg = conda()
    if in_info:
        info = data.draw(Sample(info).damaged())
    else:
        pkg = data.draw(Sample(pkg).damaged())
    build_conda(info, pkg, tmp_path)


@cache
def documents() -> dict[str, Any]:
    """The JSON files in ``info/`` of the package."""
    with tarfile.open(fileobj=io.BytesIO(conda()[0])) as tar:
        texts = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    return {name: json.loads(text) for name, text in texts.items() if name.endswith(".json")}


@fuzz(150)
@given(st.data())
def test_conda_documents(tmp_path: Path, data: st.DataObject) -> None:
    """JSON files of a conda package with values of the wrong types."""
    name = data.draw(st.sampled_from(["info/paths.json", "info/index.json", "info/link.json"]))
    changed = documents() | {name: data.draw(mutated(documents()[name]))}
    members = [Member(path, json.dumps(value).encode()) for path, value in changed.items()]
    build_conda(tar_of(members), conda()[1], tmp_path)
