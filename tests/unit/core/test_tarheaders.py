"""Headers of tars: those of tarfile are read alike, hostile ones are refused before memory is used."""

from __future__ import annotations

import io
import itertools
import tarfile
import time
from typing import Any

import pytest

from builder.core.tarheaders import BLOCK, MAX_EXTENDED, TarError, TarHeader, TarLimit, read_headers
from builder.formats.trees.reader import TarReader
from tests.support.image_kit import tar_bytes


def info(name: str, **values: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(made, key, value)
    return made


def read(data: bytes) -> list[TarHeader]:
    return list(TarReader(io.BytesIO(data), 1 << 30).members())


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_like_tarfile(format: int) -> None:
    """Names, links, owners, times and sizes are those that tarfile reads."""
    members = [
        info("a", size=600, mode=0o4755, uid=1 << 22, mtime=1714521600),
        info("folder", type=tarfile.DIRTYPE, mode=0o1777),
        info("x" * 90 + "/" + "y" * 150, size=1),
        info("caf\u00e9\udcff"),
        info("link", type=tarfile.SYMTYPE, linkname="z" * 200),
        info("again", type=tarfile.LNKTYPE, linkname="a"),
        info("old", mtime=-5),
        info("pipe", type=tarfile.FIFOTYPE),
    ]
    data = tar_bytes([(m, bytes(m.size)) for m in members], format)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(m.name, m.type, m.mode, m.uid, m.size, m.mtime, m.linkname) for m in tar]
    found = [(h.path.rstrip("/"), h.flag, h.mode, h.uid, h.size, h.mtime, h.target) for h in read(data)]
    assert found == expected


def test_xattrs() -> None:
    """Extended attributes are kept; other pax records are not."""
    records = {"SCHILY.xattr.user.x": "1", "comment": "long", "LIBARCHIVE.creationtime": "1"}
    (header,) = read(tar_bytes([(info("a", pax_headers=records), b"")]))
    assert header.xattrs == {"SCHILY.xattr.user.x": "1"}


@pytest.mark.parametrize("flag", [b"x", b"g", b"L", b"K"])
def test_large_headers(flag: bytes) -> None:
    """An extended header over 1 MiB is refused before it is read; many smaller ones count together."""
    one = info("x", type=flag, size=MAX_EXTENDED + 1).tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(TarError, match="a tar header of 1048577 bytes; at most 1048576 are allowed"):
        read(one)
    body = b"600000 comment=" + b"x" * (600000 - 16) + b"\n" if flag in b"xg" else bytes(600000)
    half = info("x", type=flag, size=600000).tobuf(tarfile.GNU_FORMAT) + body + bytes(-600000 % BLOCK)
    with pytest.raises(TarError, match="a tar header of 600000 bytes"):
        read(half * 2 + tarfile.TarInfo("a").tobuf() + bytes(1024))


def test_endless_headers() -> None:
    """Empty extended headers without a member end in an error too."""

    block = info("x", type=b"x").tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(TarError, match="a tar header"):
        list(read_headers(lambda size: block[:size]))


def test_many_records() -> None:
    """A pax header of very many records is read in linear time."""
    body = b"6 a=b\n" * (MAX_EXTENDED // 6)
    data = info("x", type=b"x", size=len(body)).tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % BLOCK)
    before = time.process_time()
    read(data + tarfile.TarInfo("a").tobuf() + bytes(1024))
    assert time.process_time() - before < 5


def sparse_tar(form: str, name: str, size: int, pieces: dict[int, bytes]) -> bytes:
    """A sparse file as GNU tar writes it: ``pieces`` by their offsets, the rest are holes."""
    numbers = [number for offset, data in pieces.items() for number in (offset, len(data))]
    content = b"".join(pieces.values())
    records = {"GNU.sparse.size": str(size), "GNU.sparse.numblocks": str(len(pieces))}
    if form == "0.0":
        pairs = zip(itertools.cycle(("GNU.sparse.offset", "GNU.sparse.numbytes")), numbers, strict=False)
        body = b"".join(pax_record(key, str(value)) for key, value in [*records.items(), *pairs])
        extended = info("x", type=b"x", size=len(body)).tobuf(tarfile.USTAR_FORMAT) + padded(body)
        return extended + info(name, size=len(content)).tobuf() + padded(content)
    records["GNU.sparse.name"] = name
    if form == "0.1":
        records["GNU.sparse.map"] = ",".join(map(str, numbers))
    else:
        records |= {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
        del records["GNU.sparse.size"]
        content = padded("".join(f"{n}\n" for n in (len(pieces), *numbers)).encode()) + content
    header = info("GNUSparseFile.0/x", size=len(content), pax_headers=records)
    return header.tobuf(tarfile.PAX_FORMAT) + padded(content)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def pax_record(key: str, value: str) -> bytes:
    rest = f" {key}={value}\n".encode()
    length = len(rest) + 2 + (len(rest) + 2 > 99)
    return b"%d%b" % (length, rest)


PIECES = {
    "few": (1 << 20, {5: b"five", 700_000: b"here" * 200}),
    "many": (9000 * 60, {i * 9000: b"%d" % i for i in range(60)}),
    "hole": (300_000, {300_000: b""}),
    "full": (3, {0: b"abc"}),
}


@pytest.mark.parametrize("form", ["0.0", "0.1", "1.0"])
@pytest.mark.parametrize("name", PIECES)
def test_sparse(form: str, name: str) -> None:
    """A sparse file has its name, its full size and its content with zeros in the holes."""
    size, pieces = PIECES[name]
    data = sparse_tar(form, "data/" + "n" * 90, size, pieces)
    reader = TarReader(io.BytesIO(data + tar_bytes([(info("b", size=2), b"bb")])), 1 << 30)
    found = [(h.path, h.size, b"".join(map(bytes, reader.content(h)))) for h in reader.members()]
    expected = bytearray(size)
    for offset, piece in pieces.items():
        expected[offset : offset + len(piece)] = piece
    assert found == [("data/" + "n" * 90, size, bytes(expected)), ("b", 2, b"bb")]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        first = tar.next()
        content = tar.extractfile(first) if first else None
        assert content is not None and content.read() == expected
    with pytest.raises(TarError, match="is a sparse file, which is not supported"):
        list(TarReader(io.BytesIO(data), 1 << 30).members(sparse=False))


@pytest.mark.parametrize("form", ["0.0", "0.1", "1.0"])
@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (10, {5: b"behind the end"}),
        (100, {50: b"back", 10: b"wards"}),
        (100, {0: b"over", 2: b"lap"}),
        (1 << 63, {0: b"too large"}),
    ],
)
def test_damaged_map(form: str, size: int, pieces: dict[int, bytes]) -> None:
    """A map that no file can have is refused."""
    with pytest.raises(TarError, match="damaged map of its holes"):
        read(sparse_tar(form, "a", size, pieces))


def test_endless_map() -> None:
    """A map over 1 MiB is refused before more of it is read."""
    data = info("a", size=1 << 30, pax_headers={"GNU.sparse.major": "1"}).tobuf(tarfile.PAX_FORMAT)
    more = (b"9999999\n" + b"1\n" * 248).ljust(BLOCK, b"\1") * (MAX_EXTENDED // 500)
    with pytest.raises(TarLimit, match="a map of holes with more than 1048576 bytes"):
        read(data + more)


def test_sparse_without_pax() -> None:
    """GNU tar's own format, its default, is refused by name, as in all engines.

    Docker 28.5.2 (both stores) and podman 5.8.6 say "unhandled tar header type 83", umoci 0.6.0
    "unknown typeflag '\\x53'", although Go's archive/tar reads it.
    """
    with pytest.raises(TarError, match="'a' is a sparse file of tar's GNU format, which no engine unpacks"):
        read(info("a", type=b"S").tobuf(tarfile.GNU_FORMAT))


def test_no_sparse_file() -> None:
    """An unknown version, a size alone and a folder are no sparse files, as for Go's archive/tar."""
    for records in ({"GNU.sparse.major": "2"}, {"GNU.sparse.size": "10"}):
        (header,) = read(tar_bytes([(info("a", size=3, pax_headers=records), b"abc")]))
        assert (header.size, header.extents) == (3, None)
    folder = info("a", type=tarfile.DIRTYPE, pax_headers={"GNU.sparse.map": "0,5", "GNU.sparse.size": "5"})
    assert read(tar_bytes([(folder, b"")]))[0].size == 0


@pytest.mark.parametrize("cut", [0, 512, 1024, 1024 + 500])
def test_missing_end(cut: int) -> None:
    """Zero blocks at the end, and the padding of the last member, may be missing."""
    data = tar_bytes([(info("a"), b""), (info("b", size=12), b"b" * 12)]).rstrip(b"\0")
    whole = padded(data) + bytes(1024)
    reader = TarReader(io.BytesIO(whole[: len(whole) - cut]), 1 << 30)
    assert [header.path for header in reader.members()] == ["a", "b"]
    assert read(b"") == []
    with pytest.raises(TarError, match="ends too early"):
        read(data[:-1])


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ({"uid": "-2", "gid": str(2**32 - 1)}, (2**32 - 2, 0, 0)),
        ({"uid": str(2**40 + 7)}, (7, 0, 0)),
        ({"mtime": "9" * 18}, (0, 0, 0)),
        ({"uid": "", "size": "", "mtime": "", "path": "", "linkpath": ""}, (0, 0, 0)),
        ({"uid": "5", "mtime": "-1.5"}, (5, 0, -1.5)),
    ],
)
def test_odd_records(records: dict[str, str], expected: tuple[int, int, float]) -> None:
    """Owners are those that the kernel takes, impossible times are 0, and empty records have no value."""
    (header,) = read(tar_bytes([(info("a", pax_headers=records), b"")]))
    assert (header.path, header.uid, header.gid, header.mtime) == ("a", *expected)


def test_global_records() -> None:
    """Global headers are ignored, as Docker and podman do: all see one image."""
    data = info("g", type=b"g", size=13).tobuf(tarfile.USTAR_FORMAT) + padded(b"13 path=else\n")
    members = tar_bytes([(info("a"), b""), (info("b"), b"")])
    assert [header.path for header in read(data + members)] == ["a", "b"]


def test_signed_checksum() -> None:
    """Old tars add up the bytes of a header as signed numbers."""
    block = bytearray(info("caf\u00e9").tobuf(tarfile.GNU_FORMAT, "latin-1"))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(byte - 256 * (byte > 127) for byte in block)
    assert [header.path for header in read(bytes(block))] == ["caf\udce9"]


def test_old_folder() -> None:
    """A file of the oldest format whose name ends with a slash is a folder, as in tarfile and Go."""
    (header,) = read(info("x/", type=b"\0").tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    assert header.flag == tarfile.DIRTYPE
