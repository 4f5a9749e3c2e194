"""Squashfs file systems, SIFs and layers with changed bytes."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.build.bases.image import WantedBase
from builder.build.bases.pack import pack_tar
from builder.build.bases.resolve import open_base, resolve_base
from builder.core.errors import BuilderError
from builder.core.store.blobs import Store
from builder.core.store.walk import remove_tree
from builder.core.workspace import Workspace
from builder.formats.sif.read import open_sif
from builder.formats.sif.write import write_sif
from builder.formats.trees.member import Kind, Member
from builder.formats.trees.squashfs.format import SUPERBLOCK, Superblock
from builder.formats.trees.squashfs.reader import Squashfs
from builder.formats.trees.squashfs.writer import SquashfsWriter
from tests.support.compare import image_tree
from tests.support.fuzz import Sample, fuzz, only_builder_errors
from tests.support.image_kit import EPOCH, image, member, settings, tar_bytes
from tests.support.images import unpack
from tests.support.sif_place import Place


class Stored(SquashfsWriter):
    """Compresses nothing: so a changed byte is a changed field, and not only a damaged block."""

    def _compress(self, data: bytes | memoryview) -> bytes:
        return bytes(data) + b"."


def squashfs(path: Path, kind: type[SquashfsWriter]) -> bytes:
    """A file system with a member of each kind."""
    files = [(f"d/{i}", random.Random(i).randbytes(20 * i) + bytes(100)) for i in range(9)]
    files.append(("large", bytes(300_000)))
    with path.open("wb") as out, kind(out, "zstd", 1, EPOCH) as writer:
        for name, data in files:
            writer.add(Member(name, Kind.FILE, 0o644, 0, 7, len(data), EPOCH), [data])
        writer.add(Member("link", Kind.SYMLINK, target="d/1"))
        writer.add(Member("again", Kind.HARDLINK, target="d/2"))
        writer.add(Member("d/e/f", Kind.DIRECTORY, 0o700))
        writer.add(Member("gone", Kind.WHITEOUT))
        writer.add(Member("pipe", Kind.FIFO))
        writer.finish()
    return path.read_bytes()


def sample(data: bytes) -> Sample:
    """A file system in which the superblock and the tables may be changed: there are the numbers."""
    block = Superblock(*SUPERBLOCK.unpack_from(data))
    return Sample(data, [*range(SUPERBLOCK.size), *range(block.inode_table, block.size)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trees")


@pytest.fixture(scope="module", params=["stored", "compressed"])
def whole(folder: Path, request: pytest.FixtureRequest) -> Sample:
    return sample(squashfs(folder / "whole", Stored if request.param == "stored" else SquashfsWriter))


@fuzz(150)
@given(data=st.data())
def test_squashfs(folder: Path, whole: Sample, data: st.DataObject) -> None:
    """All members and their content are read, or there is one error."""
    path = folder / "damaged"
    path.write_bytes(data.draw(whole.damaged()))
    with only_builder_errors(), Squashfs(path) as tree:
        for _, content in tree.members():
            for _ in content:
                pass
        list(tree.members("d/e"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("sifs"))


@pytest.fixture(scope="module")
def whole_sif(place: Place) -> Sample:
    """A SIF in which header, descriptors, JSON objects and partitions may be changed."""
    data = place.sif(place.image(), "good.sif", layout="layered").path.read_bytes()
    return Sample(data, [*range(128), *range(4096, 4096 + 10 * 585), *range(32176, len(data))])


@fuzz(40)
@given(data=st.data())
def test_sif(place: Place, whole_sif: Sample, data: st.DataObject) -> None:
    """A SIF is a base, is compared and converted, or there is one error."""
    bad = place.folder / "bad.sif"
    bad.write_bytes(data.draw(whole_sif.damaged()))
    with only_builder_errors():
        locked = resolve_base(
            "sif:bad.sif", WantedBase("amd64", root=place.folder), Workspace(place.settings, place.store)
        )
        open_base(locked, WantedBase("amd64", root=place.folder), Workspace(place.settings, place.store))
        sif = open_sif(bad, place.store)
        image_tree(sif, place.store)
        place.sif(place.image(), "above.sif", layout="layered", base=sif)


def layer_tar() -> bytes:
    """A layer with a member of each kind and headers of each form."""
    long = member("long/" * 30 + "name", b"x")
    pax = member("pax", b"x" * 600)
    pax[0].pax_headers = {"mtime": "1000000000.5", "uid": "70000", "comment": "x"}
    members = [
        member("d/"),
        member("d/file", b"text"),
        member("d/link", target="file"),
        member("d/hard", kind=tarfile.LNKTYPE, target="d/file"),
        member("pipe", kind=tarfile.FIFOTYPE, mode=0o4666),
        member("null", kind=tarfile.CHRTYPE),
        member("d/.wh.gone", b""),
        member("e/.wh..wh..opq", b""),
        long,
        pax,
    ]
    gnu = tar_bytes([member("gnu/" * 40 + "name", b"x"), member("l", target="t" * 200)], tarfile.GNU_FORMAT)
    return tar_bytes(members)[: -2 * 512] + gnu


def with_checksums(tar: bytearray) -> bytes:
    """The tar with right checksums of all blocks that look like headers."""
    for at in range(0, len(tar) - 511, 512):
        block = tar[at : at + 512]
        if block[257:262] == b"ustar" or any(block[148:155]):
            block[148:156] = b" " * 8
            tar[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return bytes(tar)


LAYER = Sample(layer_tar())


@fuzz(60)
@given(data=st.data())
def test_layer(folder: Path, data: st.DataObject) -> None:
    """A layer is unpacked and written as a SIF, or there is one error; nothing else appears in the folder."""
    tar = with_checksums(bytearray(data.draw(LAYER.damaged())))
    place = folder / "layers"
    store = Store(folder / "cache")
    try:
        made = image(store, pack_tar([tar], store, 1, "fuzz"))
    except BuilderError:
        return
    place.mkdir(exist_ok=True)
    with only_builder_errors():
        unpack(made, place / "root", store)
    if (place / "root").exists():
        remove_tree(place / "root")
    with only_builder_errors():
        write_sif(made, place / "a.sif", Workspace(settings(folder), store))
    (place / "a.sif").unlink(missing_ok=True)
    assert list(place.iterdir()) == []
