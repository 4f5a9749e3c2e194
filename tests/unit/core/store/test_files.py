"""Atomic writes, errors of the disk, free space."""

from __future__ import annotations

import errno
import os

import pytest

from builder.core.errors import SpaceError
from builder.core.store.files import NotWritable, space_errors, write_atomic, write_output


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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(tmp_path, number):
    """A full disk and a full quota are SpaceErrors with the name of the folder."""
    with pytest.raises(SpaceError, match=f"no space left.*{tmp_path}") as e, space_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "BUILDER_CACHE" in e.value.hint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_full_disk_of_a_solver(tmp_path, number):
    """uv and rattler name the number of the error."""
    said = RuntimeError(f"failed to write to file `x`: {os.strerror(number)} (os error {number})")
    expected = RuntimeError if number == errno.EIO else SpaceError
    with pytest.raises(expected), space_errors(tmp_path):
        raise said


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR])
@pytest.mark.parametrize("name", [None, "", "file", ".."])
def test_not_writable(tmp_path, number, name):
    """A folder that cannot be written to is not a full disk."""
    path = None if name is None else str(tmp_path / name) if name != ".." else str(tmp_path.parent)
    with pytest.raises(NotWritable) as e, space_errors(tmp_path):
        raise OSError(number, os.strerror(number), path)
    assert e.value.message == f"cannot write to {tmp_path}: {os.strerror(number)}"
    assert e.value.exit_code == 1 and e.value.hint
