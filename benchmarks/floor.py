"""The least time that a set of archives costs: each step alone, on one core, in compiled code."""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from isal import isal_zlib

_CHUNK = 1 << 20
#: "sha256 of archives" verifies the wheels, "sha256 of content" is for a layer's diff_id, "crc32" for its
#: gzip stream;
#: "write" writes as many bytes as the archives have.
STEPS = ("read", "sha256 of archives", "inflate", "sha256 of content", "crc32", "write")


def total(found: Mapping[str, float]) -> float:
    """CPU seconds of all steps together."""
    return sum(found[step] for step in STEPS)


class _Timer:
    """CPU seconds by step."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start


def floor(wheels: Iterable[Path], scratch: Path) -> dict[str, float]:
    """CPU seconds by step over all wheels, and their bytes (``packed``, ``unpacked``) and ``files``.

    Args:
        wheels: the wheels.
        scratch: a file for the step "write"; it is removed.
    """
    timer = _Timer()
    packed = unpacked = files = 0
    for wheel in wheels:
        with wheel.open("rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            with timer.step("read"):
                file.readinto(data)
        packed += len(data)
        with timer.step("sha256 of archives"):
            hashlib.sha256(data)
        for raw, deflated in _members(wheel, data):
            unpacked += _member(timer, raw, deflated)
            files += 1
        with timer.step("write"), scratch.open("wb") as out:
            for start in range(0, len(data), _CHUNK):
                out.write(memoryview(data)[start : start + _CHUNK])
    scratch.unlink(missing_ok=True)
    return {**timer.seconds, "packed": packed, "unpacked": unpacked, "files": files}


def _member(timer: _Timer, raw: memoryview, deflated: bool) -> int:
    """Unpacks and hashes a member; returns its size."""
    with timer.step("inflate"):
        content = isal_zlib.decompress(raw, -15) if deflated else raw
    with timer.step("sha256 of content"):
        hashlib.sha256(content)
    with timer.step("crc32"):
        isal_zlib.crc32(content)
    return len(content)


def _members(wheel: Path, data: bytearray) -> Iterator[tuple[memoryview, bool]]:
    """The packed bytes of each member, and whether they are deflated. Names and extra fields precede them."""
    view = memoryview(data)
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            header = info.header_offset
            name = int.from_bytes(view[header + 26 : header + 28], "little")
            extra = int.from_bytes(view[header + 28 : header + 30], "little")
            start = header + 30 + name + extra
            yield (
                view[start : start + info.compress_size],
                info.compress_type == zipfile.ZIP_DEFLATED,
            )
