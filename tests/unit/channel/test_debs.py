"""Debian packages that are damaged or have unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.channel import debs
from builder.channel.debs import Deb
from builder.errors import FetchError


@pytest.mark.parametrize(
    ("name", "time"),
    [("zlib_1.2_amd64.deb", b"x" * 12), ("zlib_1.2_amd64.deb", b""), ("zlib_x_amd64.deb", b"1" * 12)],
)
def test_damaged(name: str, time: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header without a time, or a version of an unknown form, is an error that names the file."""
    monkeypatch.setattr(debs, "run_tool", lambda *_: "")
    path = tmp_path / name
    path.write_bytes(b"!<arch>\ndebian-binary   " + time)
    with pytest.raises(FetchError, match=name):
        Deb.unpack(path, tmp_path / "tree")
