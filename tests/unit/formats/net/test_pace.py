"""The least rate of a transfer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from builder.formats.net import pace
from builder.formats.net.download import PartialFile, body_from, resume
from builder.formats.net.pace import MIN_RATE, WINDOW_S, Pace, TooSlow


def test_windows() -> None:
    """A window with too few bytes ends the transfer; each window counts for itself."""
    measured = Pace()
    measured.add(0, WINDOW_S - 1)
    measured.add(10 * MIN_RATE * int(WINDOW_S), 1)
    measured.add(MIN_RATE * int(WINDOW_S) - 1, WINDOW_S - 1)
    with pytest.raises(TooSlow, match="in 60 s"):
        measured.add(0, 1)


def test_trickling_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends some bytes a minute is a lost connection; those bytes are no success."""
    clock = [0.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: clock[0])

    def body() -> Iterator[bytes]:
        for _ in range(1000):
            clock[0] += 40
            yield b"x"

    def retry(error: httpx2.HTTPError, failures: int) -> None:
        if failures == 3:
            raise error

    def source(offset: int) -> Iterator[bytes]:
        return body_from(
            httpx2.Response(
                200 if not offset else 206, headers={"Content-Range": f"bytes {offset}-"}, content=body()
            ),
            offset,
        )

    with PartialFile(tmp_path / "part") as part, pytest.raises(TooSlow):
        resume(part, source, retry, size=1000)
    assert (tmp_path / "part").stat().st_size == 3
