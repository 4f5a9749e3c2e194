"""Atomic writes, errors of the disk, free space."""

from __future__ import annotations

import errno
import os

import pytest

from builder.errors import SpaceError
from builder.store.files import place_file, remove_tree, require_space, space_errors, write_atomic


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


def test_place_file(tmp_path):
    """The file is at its place once, also when it was a link to the same file before."""
    source, target = tmp_path / "source", tmp_path / "new" / "target"
    source.write_bytes(b"x")
    assert place_file(source, target) == target == place_file(source, target)
    assert target.read_bytes() == b"x" and list(target.parent.iterdir()) == [target]


def test_remove_tree(tmp_path):
    """Folders without write permission are removed too."""
    folder = tmp_path / "tree"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0o500)
    remove_tree(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EROFS, "cannot write"),
        (errno.EACCES, "cannot write"),
    ],
)
def test_disk_errors(tmp_path, number, words):
    with pytest.raises(SpaceError, match=f"{words}.*{tmp_path}") as e, space_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "BUILDER_CACHE" in e.value.hint
    with pytest.raises(OSError, match="Input/output"), space_errors(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_require_space(tmp_path):
    """The check works for folders that do not exist yet."""
    require_space(tmp_path / "not" / "yet" / "there", 1, "a thing")
    with pytest.raises(SpaceError, match=r"a thing needs about 1000000000\.0 GB in .*/there, .* GB are free"):
        require_space(tmp_path / "not" / "yet" / "there", 10**18, "a thing")
