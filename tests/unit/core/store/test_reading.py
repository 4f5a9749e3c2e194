"""Files that others wrote: nothing waits for a pipe, and nothing is read without a bound."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.core.store.reading import Reader, read_foreign

READER = Reader(ConfigError, "correct it", 10, "list")


def test_read_foreign(tmp_path):
    """Only a file is read, and of that at most its end; no link is followed, and no pipe waited for."""
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert read_foreign(tmp_path / "file", 100) == b"0123456789"
    assert read_foreign(tmp_path / "file", 3) == b"789"
    before = os.listdir("/proc/self/fd")
    for name in ("link", "folder", "pipe", "missing"):
        assert read_foreign(tmp_path / name, 100) == b""
    assert os.listdir("/proc/self/fd") == before


def test_text(tmp_path: Path) -> None:
    """Without the mark that editors of Windows write; the line of a wrong byte is named."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\n")
    assert READER.text(tmp_path / "a") == "a\r\n"
    (tmp_path / "a").write_bytes(b"a\n\xff")
    with pytest.raises(ConfigError, match="a:2: not UTF-8 text") as caught:
        READER.text(tmp_path / "a")
    assert caught.value.hint == "correct it"


def test_missing(tmp_path: Path) -> None:
    """An error for those who pass a hint, else Python's."""
    with pytest.raises(ConfigError, match="a: no such list") as caught:
        READER.read(tmp_path / "a", "write one")
    assert caught.value.hint == "write one"
    with pytest.raises(FileNotFoundError):
        READER.read(tmp_path / "a")


def test_pipes(tmp_path: Path) -> None:
    """Where the user may name them: ``<(COMMAND)`` and /dev/null."""
    reader = Reader(ConfigError, "", 10, pipes=True)
    assert reader.read(Path("/dev/null")) == b""
    with pytest.raises(ConfigError, match="more than 10 bytes"):
        reader.read(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="nothing writes to this pipe"):
        reader.read(tmp_path / "pipe")
    end, writer = os.pipe()
    late = threading.Timer(0.2, lambda: (os.write(writer, b"late"), os.close(writer)))
    late.start()
    assert reader.read(Path(f"/dev/fd/{end}")) == b"late"
    late.join()
    os.close(end)
