"""Atomic writes, errors of the disk, free space."""

from __future__ import annotations

import errno
import os

import pytest

from builder.errors import BuilderError, SpaceError
from builder.store.durable import durable_file
from builder.store.files import read_foreign, require_space, space_errors, write_atomic, write_output


def test_write_atomic(tmp_path):
    """The file is replaced as a whole, has the given mode, and a failure leaves nothing."""
    path = tmp_path / "new folder" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two", 0o600)
    assert path.read_bytes() == b"two" and path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "folder", b"cannot replace a folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "new folder"]


def test_write_to_a_device(tmp_path):
    """``--output /dev/null`` does not replace the device, which root could."""
    path = tmp_path / "null"
    path.symlink_to("/dev/null")
    write_output(path, b"text", 0o755)
    assert path.is_symlink() and path.is_char_device() and list(tmp_path.iterdir()) == [path]


def test_pipe(tmp_path):
    """A pipe gets the data and stays; what is written in parts needs a file."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_output(tmp_path / "pipe", b"text")
    assert os.read(reader, 9) == b"text" and (tmp_path / "pipe").is_fifo()
    os.close(reader)
    with pytest.raises(BuilderError, match="is a device or a pipe"), durable_file(tmp_path / "pipe"):
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(tmp_path, number):
    """A full disk and a full quota are SpaceErrors with the name of the folder."""
    with pytest.raises(SpaceError, match=f"no space left.*{tmp_path}") as e, space_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "BUILDER_CACHE" in e.value.hint


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR])
@pytest.mark.parametrize("name", [None, "", "file", ".."])
def test_not_writable(tmp_path, number, name):
    """A folder that cannot be written to is not a full disk."""
    path = None if name is None else str(tmp_path / name) if name != ".." else str(tmp_path.parent)
    with pytest.raises(BuilderError) as e, space_errors(tmp_path):
        raise OSError(number, os.strerror(number), path)
    assert e.value.message == f"cannot write to {tmp_path}: {os.strerror(number)}"
    assert type(e.value) is BuilderError and e.value.exit_code == 1 and e.value.hint


def test_other_errors(tmp_path):
    """Errors of the disk, and of files elsewhere that are read, pass through."""
    with pytest.raises(OSError, match="Input/output"), space_errors(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(PermissionError), space_errors(tmp_path):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), "/elsewhere/file")


def test_require_space(tmp_path):
    """The check works for folders that do not exist yet."""
    require_space(tmp_path / "not" / "yet" / "there", 1, "a thing")
    with pytest.raises(SpaceError, match=r"a thing needs about 1000000000\.0 GB in .*/there, .* GB are free"):
        require_space(tmp_path / "not" / "yet" / "there", 10**18, "a thing")


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
