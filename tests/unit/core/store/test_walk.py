"""Trees of any depth: walked and removed without recursion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.store.walk import bottom_up, remove_tree

#: Deeper than Python's recursion limit, and longer than a path may be.
DEPTH = 2100


def deep(folder: Path, depth: int = DEPTH) -> Path:
    """A chain of folders with a file in the last one."""
    folder.mkdir(parents=True)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        child = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    return folder


@pytest.fixture
def tree(tmp_path):
    """A deep folder, which pytest could not remove."""
    assert sys.getrecursionlimit() < DEPTH and os.pathconf(tmp_path, "PC_PATH_MAX") < DEPTH * 2
    folder = deep(tmp_path / "cache" / "rootfs" / "image")
    yield folder
    remove_tree(folder)


def test_remove_deep_tree(tree):
    remove_tree(tree)
    assert list(tree.parent.iterdir()) == []


def test_moved_meanwhile(tmp_path):
    """A folder that is moved elsewhere during the walk ends it: nothing outside is touched."""
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    walk = bottom_up(tmp_path / "tree")
    next(walk)
    (tmp_path / "tree" / "a").rename(tmp_path / "elsewhere" / "a")
    with pytest.raises(OSError, match="was moved"):
        list(walk)


@pytest.mark.parametrize("mode", [0o500, 0o300, 0o000])
def test_remove_without_permission(tmp_path, ordinary_user, mode):
    """Folders without permissions are removed too, also by an ordinary user."""
    script = (
        "import os, sys; from pathlib import Path; from builder.core.store.walk import *\n"
        f"top = Path(sys.argv[1]); (top / 'closed/in').mkdir(parents=True); (top / 'closed/in/f').touch()\n"
        f"[p.chmod({mode}) for p in (top / 'closed/in', top / 'closed')]\n"
        "print(len(list(bottom_up(top)))); remove_tree(top); assert not top.exists()\n"
    )
    place = ordinary_user.tmp / f"remove-{mode}"
    root = str(Path(__file__).parents[4])
    done = ordinary_user.run([sys.executable, "-c", script, place], {"PYTHONPATH": root})
    assert done.returncode == 0, done.stderr


def test_mounts_stay(tmp_path: Path) -> None:
    """What is mounted in a tree is not removed with it: a killed mmdebstrap may have left the host's /dev."""
    script = (
        "import pathlib, sys; from builder.core.store.walk import remove_tree\n"
        "tree = pathlib.Path(sys.argv[1])\n"
        "try: remove_tree(tree)\n"
        "except OSError as e: print('refused', (tree / 'dev/shm/file').read_text())\n"
    )
    (tmp_path / "tree/dev/shm").mkdir(parents=True)
    mount = 'mount -t tmpfs none "$1/dev/shm" && printf kept >"$1/dev/shm/file" && "$2" -c "$3" "$1"'
    arguments = [tmp_path / "tree", sys.executable, script]
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unshare failed" in done.stderr:
        pytest.skip("this user cannot create user namespaces")
    assert done.stdout == "refused kept\n", done.stderr
