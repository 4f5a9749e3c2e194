"""Wheels that are made when the benchmark runs: any number of packages, files and bytes.

The content is the same on every run. Modules are Python source that compiles; data compresses to about a
half. A package consists of small modules, small data files, and large files
("libraries") up to its size. Large files repeat a few blocks that are deflated once, so a wheel is written
as fast as the disk takes it.
"""

from __future__ import annotations

import base64
import hashlib
import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BLOCK = 4 << 20
_BLOCKS = 8
_MODULE = '''\
"""Module {n} of {package}."""

import os
from dataclasses import dataclass, field


@dataclass
class {name}:
    """A made class; it is compiled and never used."""

    first: int = {a}
    second: dict[str, int] = field(default_factory=dict)

'''
_FUNCTION = '''\
    def {name}(self, {x}: int, {y}: str = "{text}") -> int:
        """Returns something that depends on {x} and {y}."""
        total = self.first * {a} + {x}
        for index, character in enumerate({y}):
            if index % {b} == 0 and character not in os.sep:
                total += self.second.get(character, {a}) * index
            else:
                self.second[{y}[:index]] = total % {c}
        return total if total > {c} else {b}

'''


@dataclass(frozen=True)
class Member:
    """A file of a wheel, deflated."""

    path: str
    deflated: bytes
    size: int
    crc: int
    digest: bytes
    """SHA-256 of the content."""


@dataclass(frozen=True)
class Package:
    """What a made wheel contains."""

    name: str
    modules: int
    data: int
    """Small data files, of 8 KB each on average."""
    large: int
    """Bytes of its large files, rounded up to whole blocks."""
    version: str = "1.0"


def packages(count: int, files: int, size: int) -> list[Package]:
    """Packages that have this many files and about this many bytes together, two fifths of them modules.

    Args:
        count: packages.
        files: modules and data files.
        size: bytes unpacked; the large files are what the small ones leave of it.
    """
    each = files // count
    modules = each * 2 // 5
    # As in real environments, few packages have most of the bytes.
    big = max(count // 10, 1)
    large = max(size - files * 7_000, 0) // big
    return [
        Package(f"made-{n:03}", modules, each - modules, large if n < big else 0)
        for n in range(count)
    ]


def write_wheels(folder: Path, wanted: Iterable[Package]) -> None:
    """Writes the wheels that are missing in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in wanted:
        path = folder / f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
        if not path.exists():
            part = path.with_suffix(".part")
            _write_zip(part, _members(package))
            part.rename(path)


def requirement(package: Package) -> str:
    return f"{package.name}=={package.version}"


def _members(package: Package) -> list[Member]:
    rng = random.Random(package.name)
    top = package.name.replace("-", "_")
    out = [_member(f"{top}/__init__.py", f'__version__ = "{package.version}"\n'.encode())]
    for n in range(package.modules - 1):
        out.append(
            _member(f"{top}/part{n % 7}/module_{n}.py", _source(package.name, n, rng).encode())
        )
    pool = _pool()
    for n in range(package.data):
        start, size = rng.randrange(_BLOCK - 32_000), rng.randrange(500, 15_500)
        out.append(_member(f"{top}/data{n % 5}/file_{n}.bin", pool[start : start + size]))
    blocks = _blocks()
    for n in range(-(-package.large // _BLOCK)):
        block = blocks[rng.randrange(_BLOCKS)]
        path = f"{top}/lib/lib_{n}.so"
        out.append(Member(path, block.deflated, block.size, block.crc, block.digest))
    info = f"{top}-{package.version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
    out.append(_member(f"{info}/METADATA", metadata.encode()))
    tags = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    out.append(_member(f"{info}/WHEEL", tags.encode()))
    record = "".join(f"{m.path},sha256={_base64(m.digest)},{m.size}\n" for m in out)
    out.append(_member(f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    return out


def _source(package: str, n: int, rng: random.Random) -> str:
    def word() -> str:
        return "".join(rng.choices("abcdefghijklmnoprstuvw", k=rng.randrange(4, 12)))

    text = _MODULE.format(n=n, package=package, name=word().title(), a=rng.randrange(1000))
    for _ in range(rng.randrange(2, 18)):
        numbers = {
            "a": rng.randrange(1, 10_000),
            "b": rng.randrange(2, 90),
            "c": rng.randrange(1, 9_999),
        }
        text += _FUNCTION.format(name=f"{word()}_{word()}", x=f"x_{word()}", y=f"y_{word()}",
                                 text=f"{word()} {word()}", **numbers)  # fmt: skip
    return text


@cache
def _pool(seed: int = 0) -> bytes:
    """Bytes of which deflate leaves about a half."""
    rng = random.Random(seed)
    words = [rng.randbytes(rng.randrange(4, 24)) for _ in range(400)]
    parts = bytearray()
    while len(parts) < _BLOCK:
        parts += rng.randbytes(64)
        for word in rng.choices(words, k=9):
            parts += word
    return bytes(parts[:_BLOCK])


@cache
def _blocks() -> Sequence[Member]:
    return [_member("", _pool(seed)) for seed in range(1, _BLOCKS + 1)]


def _member(path: str, content: bytes) -> Member:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    deflated = deflater.compress(content) + deflater.flush()
    return Member(
        path, deflated, len(content), zlib.crc32(content), hashlib.sha256(content).digest()
    )


def _base64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _write_zip(path: Path, members: Sequence[Member]) -> None:
    """A ZIP archive of deflated members (the format's section 4.3), dated 1980-01-01."""
    central = b""
    with path.open("wb") as out:
        for m in members:
            name, offset = m.path.encode(), out.tell()
            fields = (20, 0, 8, 0, 33, m.crc, len(m.deflated), m.size, len(name), 0)
            out.write(struct.pack("<4s5H3I2H", b"PK\3\4", *fields) + name)
            out.write(m.deflated)
            rest = struct.pack("<3H2I", 0, 0, 0, 0o100644 << 16, offset)
            central += struct.pack("<4s6H3I2H", b"PK\1\2", 0x314, *fields) + rest + name
        start, count = out.tell(), len(members)
        out.write(central)
        out.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(central), start, 0))
