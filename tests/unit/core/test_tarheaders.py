"""Headers of tars: those of tarfile are read alike, hostile ones are refused before memory is used."""

from __future__ import annotations

import io
import tarfile
import time
from typing import Any

import pytest

from builder.core.tarheaders import BLOCK, MAX_EXTENDED, TarError, TarHeader, read_headers
from builder.formats.trees.reader import TarReader
from tests.support.image_kit import tar_bytes


def info(name: str, **values: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(made, key, value)
    return made


def read(data: bytes) -> list[TarHeader]:
    reader = TarReader(io.BytesIO(data), 1 << 30)
    found = []
    for header in read_headers(reader):
        found.append(header)
        reader.skip(header.size + -header.size % BLOCK)
    return found


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

    class Endless:
        block = info("x", type=b"x").tobuf(tarfile.GNU_FORMAT)

        def read_exactly(self, size: int) -> bytes:
            return self.block[:size]

        def skip(self, size: int) -> None:
            pass

    with pytest.raises(TarError, match="a tar header"):
        list(read_headers(Endless()))


def test_many_records() -> None:
    """A pax header of very many records is read in linear time."""
    body = b"6 a=b\n" * (MAX_EXTENDED // 6)
    data = info("x", type=b"x", size=len(body)).tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % BLOCK)
    before = time.process_time()
    read(data + tarfile.TarInfo("a").tobuf() + bytes(1024))
    assert time.process_time() - before < 5


def test_old_folder() -> None:
    """A file of the oldest format whose name ends with a slash is a folder, as in tarfile and Go."""
    (header,) = read(info("x/", type=b"\0").tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    assert header.flag == tarfile.DIRTYPE
