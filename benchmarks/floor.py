"""What the bytes of a set of wheels cost at the very least: each step alone, on one core, without Python's part in it."""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from isal import isal_zlib

_CHUNK = 1 << 20


def floor(wheels: Path, scratch: Path) -> dict[str, float]:
    """Seconds by step over all wheels in a folder, and the bytes that they are.

    read: the archives; sha256 archives: to believe them; inflate: every member; sha256 content: what a layer's diff_id needs;
    crc32: what a gzip layer needs; write: as many bytes as the archives have, to ``scratch``.
    """
    seconds = dict.fromkeys(
        ("read", "sha256 of archives", "inflate", "sha256 of content", "crc32", "write"), 0.0
    )
    packed = unpacked = 0

    def timed(name: str, step: Callable[[], object]) -> None:
        start = time.process_time()
        step()
        seconds[name] += time.process_time() - start

    for wheel in sorted(wheels.glob("*.whl")):
        with wheel.open("rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            timed("read", lambda file=file, data=data: file.readinto(data))  # type: ignore[misc]
        packed += len(data)
        timed("sha256 of archives", lambda data=data: hashlib.sha256(data))  # type: ignore[misc]
        for raw, deflated in _members(wheel, data):
            start = time.process_time()
            content = isal_zlib.decompress(raw, -15) if deflated else raw
            seconds["inflate"] += time.process_time() - start
            unpacked += len(content)
            timed("sha256 of content", lambda content=content: hashlib.sha256(content))  # type: ignore[misc]
            timed("crc32", lambda content=content: isal_zlib.crc32(content))  # type: ignore[misc]
        start = time.process_time()
        with scratch.open("wb") as out:
            for at in range(0, len(data), _CHUNK):
                out.write(memoryview(data)[at : at + _CHUNK])
        seconds["write"] += time.process_time() - start
    scratch.unlink(missing_ok=True)
    return {**seconds, "packed": float(packed), "unpacked": float(unpacked)}


def _members(wheel: Path, data: bytearray) -> Iterator[tuple[memoryview, bool]]:
    view = memoryview(data)
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            at = info.header_offset
            name, extra = (
                int.from_bytes(view[at + 26 : at + 28], "little"),
                int.from_bytes(view[at + 28 : at + 30], "little"),
            )
            start = at + 30 + name + extra
            yield view[start : start + info.compress_size], info.compress_type == zipfile.ZIP_DEFLATED
