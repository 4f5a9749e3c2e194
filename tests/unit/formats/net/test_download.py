"""Partial files, and downloads that continue where an attempt ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from builder.formats.net import download
from builder.formats.net.download import PartialFile, body_from, resume

DATA = bytes(range(256)) * 40


def source_of(*ends: int) -> tuple[list[int], object]:
    """A source whose connection breaks at each of these offsets, and the offsets that it was asked for."""
    asked: list[int] = []
    left = list(ends)

    def source(offset: int) -> Iterator[bytes]:
        asked.append(offset)
        end = left.pop(0) if left else len(DATA)
        for start in range(offset, end, 100):
            yield DATA[start : min(start + 100, end)]
        if end < len(DATA):
            raise httpx2.ReadError("cut")

    return asked, source


def test_partial_file(tmp_path: Path) -> None:
    """The digests cover what the file held before and what was written since."""
    path = tmp_path / "new" / "part"
    with PartialFile(path, ("sha256", "md5")) as part:
        part.write(b"one")
    with PartialFile(path, ("sha256", "md5")) as part:
        assert part.size == 3
        part.write(b"two")
        assert part.digest() == f"sha256:{hashlib.sha256(b'onetwo').hexdigest()}"
        assert part.digest("md5") == f"md5:{hashlib.md5(b'onetwo').hexdigest()}"
        part.restart()
        assert part.size == 0 and part.digest() == f"sha256:{hashlib.sha256(b'').hexdigest()}"
    assert path.read_bytes() == b""


def test_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt asks for the rest; an attempt that adds enough resets the count of failures."""
    monkeypatch.setattr(download, "MIN_GAIN", 500)
    asked, source = source_of(300, 300, 1000)
    failures: list[int] = []
    positions: list[int] = []
    with PartialFile(tmp_path / "part") as part:
        resume(
            part,
            source,  # type: ignore[arg-type]
            lambda error, n: failures.append(n),
            size=len(DATA),
            position=positions.append,
        )
        assert part.digest() == f"sha256:{hashlib.sha256(DATA).hexdigest()}"
    assert asked == [0, 300, 300, 1000] and failures == [1, 2, 1]
    assert positions == sorted(positions) and positions[-1] == len(DATA)


def test_retry_decides(tmp_path: Path) -> None:
    """An error that retry raises ends the download; what arrived stays in the file."""

    def give_up(error: httpx2.HTTPError, failures: int) -> None:
        raise LookupError(str(error))

    _, source = source_of(500)
    with PartialFile(tmp_path / "part") as part, pytest.raises(LookupError, match="cut"):
        resume(part, source, give_up)  # type: ignore[arg-type]
    assert (tmp_path / "part").read_bytes() == DATA[:500]


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [(206, {"Content-Range": "bytes 100-"}, DATA[100:]), (200, {}, DATA)],
    ids=["range", "whole file"],
)
def test_body_from(status: int, headers: dict[str, str], body: bytes) -> None:
    """The bytes from the offset on, whether the server supports ranges or not."""
    response = httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))
    assert b"".join(body_from(response, 100)) == DATA[100:]
