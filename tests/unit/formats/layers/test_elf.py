"""ELF files: what they need, in any piece by piece, and what is no such file."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest

from builder.formats.layers.elf import ElfReader, Needed
from tests.support.elf import elf

NAMES = ("libGL.so.1", "libz.so.1", "libc.so.6")


def read(data: bytes, step: int = 1 << 16) -> Needed | None:
    """Read a file in pieces, a second time only if the reader asks for it."""
    reader = ElfReader()
    for _ in range(2):
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        if not reader.wanted:
            break
        reader.rewind()
    return reader.needed


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("strings_last", [False, True])
def test_needed(step: int, strings_last: bool) -> None:
    """Wherever the strings are, and whatever comes in one piece."""
    assert read(elf(NAMES, strings_last=strings_last, middle=5000), step) == NAMES


@pytest.mark.parametrize("names", [(), NAMES])
def test_loader(names: tuple[str, ...]) -> None:
    """A program names its loader before the libraries."""
    assert read(elf(names, loader="/lib64/ld-linux-x86-64.so.2"), 9) == (
        "/lib64/ld-linux-x86-64.so.2",
        *names,
    )


def test_one_pass() -> None:
    """Strings after the dynamic section are read as they pass."""
    reader = ElfReader()
    reader.feed(elf(NAMES, strings_last=True))
    assert reader.wanted is None and reader.needed == NAMES


def test_real_libraries() -> None:
    """Extension modules of packages, compared with readelf."""
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    files = sorted(Path(sysconfig.get_path("platlib")).rglob("*.so"))
    assert len(files) > 20
    for file in files[:20]:
        shown = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
        assert read(file.read_bytes()) == tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", shown)), file


def test_static() -> None:
    """A file without a dynamic section, or without names in it, needs nothing."""
    data = bytearray(elf(NAMES))
    struct.pack_into("<I", data, 64 + 56, 4)
    assert read(bytes(data)) == () and read(elf(())) == ()


def test_no_elf_file() -> None:
    for data in (
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" * 100,
        b"INPUT(-lz)\n",
        elf(NAMES).replace(b"ELF\2", b"ELF\1"),
    ):
        assert read(data) is None


def test_cut_off() -> None:
    """A file that ends before its last name is none."""
    data = elf(NAMES, strings_last=True)
    assert all(read(data[:end]) is None for end in range(len(data)))


def test_far_apart() -> None:
    """Names outside of the table of strings are not looked for."""
    data = bytearray(elf(NAMES, strings_last=True))
    struct.pack_into("<Q", data, 64 + 2 * 56 + 8, 1 << 40)
    assert read(bytes(data)) is None
