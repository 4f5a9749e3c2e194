"""squashfs: builder and other programs read what is written, and the bytes are always the same."""

from __future__ import annotations

import io
import os
import random
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard

from builder.core.errors import ImageError
from builder.core.model import Compression
from builder.formats.trees.member import Kind, Member
from builder.formats.trees.squashfs import reader
from builder.formats.trees.squashfs.format import BLOCK_SIZE, SUPERBLOCK, Superblock
from builder.formats.trees.squashfs.reader import Squashfs
from builder.formats.trees.squashfs.writer import SquashfsWriter
from tests.support.parts import need
from tests.support.programs import run_program

EPOCH = 315532800
Content = list[tuple[Member, bytes]]


def file(
    path: str, data: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0, mtime: int = 1000
) -> tuple[Member, bytes]:
    return Member(path, Kind.FILE, mode, uid, gid, len(data), mtime, ""), data


def other(path: str, kind: Kind, target: str = "", mode: int = 0o755, uid: int = 0) -> tuple[Member, bytes]:
    return Member(path, kind, mode, uid, 0, 0, 2000, target), b""


def write(path: Path, content: Content, compression: Compression = "zstd", jobs: int = 2) -> Path:
    with path.open("wb") as out, SquashfsWriter(out, compression, jobs, EPOCH) as writer:
        for member, data in content:
            writer.add(member, [data[i : i + 50000] for i in range(0, len(data), 50000)])
        assert writer.finish() == out.seek(0, io.SEEK_END)
    return path


def read(path: Path) -> dict[str, tuple[Member, bytes]]:
    with Squashfs(path) as squashfs:
        return {m.path: (m, b"".join(c)) for m, c in squashfs.members()}


def everything() -> Content:
    """All kinds of members; files around the block size; a directory of several blocks."""
    r = random.Random(7)
    sizes = [0, 1, 4095, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE + 17, 60000, 60000, 60000]
    content = [
        file(f"data/size-{n}-{i}", r.randbytes(n // 2) + bytes(n - n // 2), uid=i * 70000)
        for i, n in enumerate(sizes)
    ]
    content += [
        file(f"many/a rather long name, so that listings grow {i:05d}", b"%d" % i) for i in range(3000)
    ]
    content += [
        other("links/first", Kind.HARDLINK, "data/size-1-1"),  # before what it links to, too
        other("links/big", Kind.HARDLINK, f"data/size-{BLOCK_SIZE + 1}-5"),
        other("links/soft", Kind.SYMLINK, "../data/é"),
        other("pipe", Kind.FIFO, mode=0o600),
        other("gone", Kind.WHITEOUT, mode=0),
        file("sétuid", b"x", mode=0o4755, uid=1, gid=2, mtime=0xFFFFFFFF),
        other("links", Kind.DIRECTORY, mode=0o1777, uid=5),  # after what is in it
        other("", Kind.DIRECTORY, mode=0o751, uid=4),
        other("empty", Kind.DIRECTORY, mode=0o700),
    ]
    return [content[0], *content[10:], *content[1:10]]


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_write_and_read(tmp_path: Path, compression: Compression) -> None:
    """The reader returns the members and content that the writer was given."""
    content = everything()
    found = read(write(tmp_path / "a", content, compression))
    for member, data in content:
        got, got_data = found[member.path]
        if member.kind is Kind.HARDLINK or got.kind is Kind.HARDLINK:
            twin = found[got.target] if got.kind is Kind.HARDLINK else (got, got_data)
            assert twin[1] == next(
                d for m, d in content if m.path in (member.path, member.target) and m.kind is Kind.FILE
            )
            continue
        assert got_data == data
        assert (got.kind, got.uid, got.gid, got.mtime, got.target) == (
            member.kind,
            member.uid,
            member.gid,
            member.mtime,
            member.target,
        )
        assert got.mode == (0o777 if member.kind is Kind.SYMLINK else member.mode)
    parents = {"data", "many"}
    assert found.keys() == {m.path for m, _ in content} | parents
    assert all(found[p][0].mode == 0o755 and found[p][0].mtime == EPOCH for p in parents)


def test_unsquashfs_reads_it(tmp_path: Path) -> None:
    """unsquashfs lists and unpacks what the writer wrote."""
    (unsquashfs,) = need("unsquashfs")
    content = everything()
    path = write(tmp_path / "a", content)
    listing = run_program([unsquashfs, "-UTC", "-lln", path], os.environ).stdout
    assert "drwxr-x--x 4/0" in listing.splitlines()[0]
    assert "crwx------" not in listing and "c---------" in listing
    assert "-rwsr-xr-x 1/2" in listing and "2106-02-07" in listing
    folders = ("data", "many", "links")
    run_program([unsquashfs, "-q", "-n", "-d", tmp_path / "out", path, *folders], os.environ)
    for member, data in content:
        if member.kind is Kind.FILE and "/" in member.path:
            assert (tmp_path / "out" / member.path).read_bytes() == data
    assert (tmp_path / "out/links/first").stat().st_ino == (tmp_path / "out/data/size-1-1").stat().st_ino


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_reads_mksquashfs(tmp_path: Path, compression: str) -> None:
    """The reader reads what mksquashfs wrote, in each compression."""
    (mksquashfs,) = need("mksquashfs")
    tree = tmp_path / "tree"
    r = random.Random(3)
    (tree / "deep/er").mkdir(parents=True)
    contents = {
        f"deep/er/file {i}": r.randbytes(r.choice([10, 5000, 200000])) + bytes(1000) for i in range(40)
    }
    contents["holes"] = bytes(2 * BLOCK_SIZE) + b"end"
    for name, data in contents.items():
        (tree / name).write_bytes(data)
    (tree / "deep/link").hardlink_to(tree / "deep/er/file 0")
    (tree / "deep/soft").symlink_to("nowhere")
    options = ["-comp", compression, "-always-use-fragments", "-no-progress", "-quiet"]
    run_program([mksquashfs, tree, tmp_path / "a", *options], os.environ)
    found = read(tmp_path / "a")
    for name, data in contents.items():
        member, got = found[name]
        assert (got if member.kind is Kind.FILE else found[member.target][1]) == data
    assert found["deep/soft"][0].target == "nowhere"
    assert {found["deep/link"][0].kind, found["deep/er/file 0"][0].kind} == {Kind.FILE, Kind.HARDLINK}


# bombs ------------------------------------------------------------------------------------------------------


class Bomb(SquashfsWriter):
    """Stores blocks of a size as blocks of 1,000 times that size."""

    of = BLOCK_SIZE

    def _compress(self, data: bytes) -> bytes:
        if len(data) != self.of:
            return super()._compress(data)
        content = bytes(1000 * self.of)
        if self._compression == "gzip":
            return zlib.compress(content)
        return self.frame(content)

    def frame(self, content: bytes) -> bytes:
        return zstandard.ZstdCompressor().compress(content)


class UnknownSize(Bomb):
    """The same; the frames do not state the size of their content."""

    def frame(self, content: bytes) -> bytes:
        return zstandard.ZstdCompressor(write_content_size=False).compress(content)


class TableBomb(Bomb):
    of = 8192


class UnknownSizeTableBomb(UnknownSize):
    of = 8192


@pytest.mark.parametrize("kind", [Bomb, UnknownSize, TableBomb, UnknownSizeTableBomb])
@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_blocks_that_are_too_large(tmp_path: Path, kind: type[Bomb], compression: Compression) -> None:
    """A block has at most the block size, whatever it states; no more memory is used."""
    content = [file("zeros", bytes(BLOCK_SIZE)), *(file(f"file-{i:05}", b"x") for i in range(400))]
    with (tmp_path / "a").open("wb") as out, kind(out, compression, 1, EPOCH) as writer:
        for member, data in content:
            writer.add(member, [data])
        writer.finish()
    assert (tmp_path / "a").stat().st_size < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=f"{tmp_path / 'a'}: the squashfs is damaged"):
            read(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("limit", [3 * 8192, 8192])
def test_tables_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """The tables have a bound, because 8 KiB of them need only a few bytes of the file."""
    path = write(tmp_path / "a", [file(f"file-{i:05}", b"") for i in range(4000)])
    read(path)
    monkeypatch.setattr(reader, "MAX_TABLE", limit)
    with pytest.raises(ImageError, match=f"a table of more than {limit} bytes"):
        read(path)


def test_fragments_and_names_that_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of fragments is what a file says, and is not trusted. Neither is the number of names."""
    path = write(tmp_path / "a", [file(f"file-{i:05}", b"x") for i in range(400)])
    patch(path, fragment_count=(1 << 32) - 1)
    with pytest.raises(ImageError, match="a table of 68719476720 bytes, at most 268435456 are allowed"):
        read(path)
    patch(path, fragment_count=1)
    monkeypatch.setattr("builder.formats.trees.bounds.MAX_NAMES", 10_000)
    with pytest.raises(ImageError, match=r"the names of its files need more than 10\.0 kB"):
        read(path)


def patch(path: Path, **changes: int) -> None:
    """Changes fields of the superblock."""
    data = path.read_bytes()
    block = Superblock(*SUPERBLOCK.unpack_from(data))
    path.write_bytes(SUPERBLOCK.pack(*block._replace(**changes)) + data[SUPERBLOCK.size :])


def test_directories_in_circles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that contains itself, or a tree that is too deep, ends the walk."""
    path = write(tmp_path / "a", [file("d/" * 257 + "f", b"x")])
    with pytest.raises(ImageError, match="257 folders deep, at most 256 are allowed"):
        read(path)
    path = write(tmp_path / "a", [other("x", Kind.DIRECTORY)])
    real = reader.read_listing
    monkeypatch.setattr(
        reader,
        "read_listing",
        lambda table, listing: [("x", r) for _, r in real(table, listing)] or [("x", 0)],
    )
    with pytest.raises(ImageError, match="the directory '/x/x' appears twice"):
        read(path)


def test_long_symlinks(tmp_path: Path) -> None:
    """A link target of more than 4096 bytes, or with a NUL, is damage."""
    for target in ("x" * 4097, "a\0b"):
        path = write(tmp_path / "a", [other("link", Kind.SYMLINK, target)])
        with pytest.raises(ImageError, match="a link target of"):
            read(path)
