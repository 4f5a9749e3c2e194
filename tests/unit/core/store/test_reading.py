"""Files that others wrote: nothing waits for a pipe, and nothing is read without a bound."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.core.store import reading
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


def test_reader(tmp_path: Path) -> None:
    """Up to its bound, without the mark of editors of Windows; errors have the hints of the caller."""
    path = tmp_path / "a"
    with pytest.raises(ConfigError, match="a: no such list") as missing:
        READER.read(path, "write one")
    with pytest.raises(FileNotFoundError):
        READER.read(path)
    path.write_bytes(b"\xef\xbb\xbf123456\n")
    assert READER.text(path) == "123456\n" and len(READER.read(path)) == 10
    path.write_bytes(b"a\n\xff")
    with pytest.raises(ConfigError, match="a:2: not UTF-8 text") as wrong:
        READER.text(path)
    assert (missing.value.hint, wrong.value.hint) == ("write one", "correct it")
    os.truncate(path, 1 << 40)
    with pytest.raises(ConfigError, match="a: the list has more than 10 bytes"):
        READER.read(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_marked_text(tmp_path: Path, encoding: str) -> None:
    """PowerShell writes UTF-16 with a mark; what ends within a character is no text."""
    path, data = tmp_path / "a", "\N{BYTE ORDER MARK}a".encode(encoding)
    path.write_bytes(data)
    reader = Reader(ConfigError, "correct it", 10, marked=True)
    assert reader.text(path) == "a"
    with pytest.raises(ConfigError, match="a:1: not UTF-8 text"):
        READER.text(path)
    path.write_bytes(data[:-1])
    with pytest.raises(ConfigError, match="a:1: not UTF-8 text"):
        reader.text(path)


def test_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that this user may not read is no matter of its encoding; the hint opens it when typed."""

    def refused(*given: object) -> int:  # root may read every file
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "a b"
    path.write_text("six")
    path.chmod(0)
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="cannot be read: Perm") as denied:
        patch.setattr(reading.os, "open", refused)
        READER.text(path)
    typed = denied.value.hint.partition(": ")[2].partition(";")[0]
    subprocess.run(typed, shell=True, check=True)
    assert READER.text(path) == "six" and path.stat().st_mode & 0o400


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
