"""Archives that take memory: made here, unpacked in a process that has little."""

from __future__ import annotations

import binascii
import io
import lzma
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.errors import FetchError
from builder.sources.archive import unpack_archive

CLONE = Path(__file__).parents[3]
#: The address space of the process that unpacks; Python with builder's modules has a third of it.
MEMORY = 768 << 20
DICTIONARY = 1536 << 20


def tar() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo("tool/a")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    return data.getvalue()


def large_dictionary_xz(path: Path) -> None:
    """A .tar.xz whose block header asks for 1.5 GiB. liblzma takes them before the first byte comes out."""
    data = bytearray(lzma.compress(tar()))
    size = (data[12] + 1) * 4
    at = data.index(b"\x21\x01", 12) + 2  # LZMA2, one byte of properties
    data[at] = 37  # (2 | 37 & 1) << (37 // 2 + 11)
    data[12 + size - 4 : 12 + size] = struct.pack("<I", binascii.crc32(data[12 : 12 + size - 4]))
    path.write_bytes(data)


def many_members(path: Path) -> None:
    """A zip archive whose directory has 2 million entries (94 MB), all for one member."""
    entry = (
        b"PK\x01\x02" + struct.pack("<4B4HL2L5H2L", 20, 0, 20, 0, *[0] * 4, 0, 0, 0, 1, *[0] * 4, 0, 0) + b"a"
    )
    number, block = 2_000_000, 10_000
    size = number * len(entry)
    with path.open("wb") as file:
        for _ in range(number // block):
            file.write(entry * block)
        file.write(b"PK\x06\x06" + struct.pack("<Q2H2L4Q", 44, 45, 45, 0, 0, number, number, size, 0))
        file.write(b"PK\x06\x07" + struct.pack("<LQL", 0, size, 1))
        file.write(b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("t.tar.xz", large_dictionary_xz, "Memory usage limit"),
        ("t.tar.gz", large_dictionary_xz, "Memory usage limit"),
        ("t.zip", many_members, "its central directory has 94000000 bytes"),
    ],
    ids=["xz", "other-name", "zip"],
)
def test_memory(tmp_path: Path, name: str, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / name)
    code = (
        "import sys\nfrom pathlib import Path\nfrom builder.errors import FetchError\n"
        "from builder.sources.archive import unpack_archive\n"
        f"try:\n    unpack_archive(Path({name!r}), {name!r}, Path('new'))\n"
        "except FetchError as e:\n    print(e.message)\n    sys.exit(5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(CLONE), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 5, done.stderr
    assert f"{name}: a damaged archive: " in done.stdout and words in done.stdout


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_zip_methods(tmp_path: Path, method: int) -> None:
    """A member of a zip archive has a dictionary of its own: only deflate is bounded."""
    with zipfile.ZipFile(tmp_path / "t.zip", "w", method) as archive:
        archive.writestr("tool/a", b"x")
    with pytest.raises(FetchError, match="only deflate is supported"):
        unpack_archive(tmp_path / "t.zip", "t.zip", tmp_path / "new")


def test_lzma(tmp_path: Path) -> None:
    """tarfile reads the older format too, for which liblzma takes at most 24 MiB here."""
    data = bytearray(lzma.compress(tar(), lzma.FORMAT_ALONE))
    (tmp_path / "t").write_bytes(data)
    unpack_archive(tmp_path / "t", "t.tar.lzma", tmp_path / "new")
    assert (tmp_path / "new" / "tool" / "a").read_bytes() == b"x"
    data[1:5] = struct.pack("<I", DICTIONARY | 0x800000)
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(FetchError, match="a damaged archive"):
        unpack_archive(tmp_path / "t", "t.tar.lzma", tmp_path / "new2")
