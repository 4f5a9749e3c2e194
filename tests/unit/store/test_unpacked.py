"""Which unpacked images are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from builder.store.unpacked import TreeName, keep_last, prune_unpacked, remove_unless_used

LOWER = "0123456789abcdef"
HOLD = "import sys; from pathlib import Path; from builder.store.unpacked import hold\n"
HOLD += "print(hold(Path(sys.argv[1])), flush=True); sys.stdin.read()"


def tree(folder: Path, target: str, image: str, age_s: float, lower: str = LOWER) -> Path:
    """An unpacked image that was used some seconds ago."""
    path = folder / str(TreeName(target, lower, 1000, image))
    path.mkdir(parents=True)
    (path / "file").write_text("x")
    when = time.time() - age_s
    os.utime(path, (when, when))
    return path


def test_last_two(tmp_path: Path) -> None:
    """Two images of a target and user stay, with the layers that they share; others are not touched."""
    old_lower = tree(tmp_path, "cpu", "lower", 900, "f" * 16)
    oldest = tree(tmp_path, "cpu", "0" * 24, 900, "f" * 16)
    lower = tree(tmp_path, "cpu", "lower", 900)
    images = [tree(tmp_path, "cpu", str(n) * 24, 10 * n) for n in (3, 2, 1)]
    other = tree(tmp_path, "gpu", "4" * 24, 900)
    keep_last(tmp_path, "cpu", 1000)
    assert not oldest.exists() and not old_lower.exists() and not images[0].exists()
    assert images[1].exists() and images[2].exists() and lower.exists() and other.exists()
    keep_last(tmp_path, "gpu", 0)
    assert other.exists(), "another user's"


def test_in_use(tmp_path: Path) -> None:
    """An image that a process runs stays, whatever its age; it can be removed when the process ends."""
    used = tree(tmp_path, "cpu", "1" * 24, 9e6)
    unused = tree(tmp_path, "cpu", "2" * 24, 9e6)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, used], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"True\n"
        assert time.time() - used.stat().st_mtime < 60, "used now"
        os.utime(used, (0, 0))
        prune_unpacked(tmp_path, bool)
        assert used.exists() and not unused.exists() and not remove_unless_used(used)
        process.kill()
    assert remove_unless_used(used) and list(tmp_path.iterdir()) == []
