"""Which unpacked images and layers are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from builder.core.store.unpacked import keep_last, open_used, prune_unpacked, remove_unless_used

HOLD = "import sys; from pathlib import Path; from builder.core.store.unpacked import hold\n"
HOLD += "print(hold(Path(sys.argv[1])), flush=True); sys.stdin.read()"


def tree(folder: Path, name: str, age_s: float, *layers: Path) -> Path:
    """An unpacked image or layer that was used some seconds ago; an image has the files of its layers."""
    path = folder / f"{name}-1000"
    path.mkdir(parents=True)
    (path / "file").write_text("x")
    for number, layer in enumerate(layers):
        (path / str(number)).hardlink_to(layer / "file")
    when = time.time() - age_s
    os.utime(path, (when, when))
    return path


def test_last_two(tmp_path: Path) -> None:
    """Two images of a target and user stay; others are not touched."""
    images = [tree(tmp_path, f"cpu.{str(n) * 24}", 10 * n) for n in (3, 2, 1)]
    others = [tree(tmp_path, f"{target}.{'4' * 24}", 900) for target in ("gpu", "cpu.old")]
    keep_last(tmp_path, "cpu", 1000)
    assert [path.exists() for path in (*images, *others)] == [False, True, True, True, True]
    keep_last(tmp_path, "gpu", 0)
    assert others[0].exists(), "another user's"


def test_layers_of_old_images(tmp_path: Path) -> None:
    """Layers go with the last image that has a file of them, unless a process links to their files now."""
    shared, old, used = (tree(tmp_path, str(n) * 64, 900) for n in range(3))
    oldest = tree(tmp_path, f"cpu.{'3' * 24}", 900, shared, old, used)
    for n in (4, 5):
        tree(tmp_path, f"cpu.{str(n) * 24}", n, shared)
    fd = open_used(used)
    assert fd is not None
    keep_last(tmp_path, "cpu", 1000)
    assert [path.exists() for path in (oldest, shared, old, used)] == [False, True, False, True]
    os.close(fd)
    keep_last(tmp_path, "other", 1000)
    assert not used.exists() and shared.exists()


def test_in_use(tmp_path: Path) -> None:
    """An image that a process runs stays, whatever its age; it can be removed when the process ends."""
    used = tree(tmp_path, f"cpu.{'1' * 24}", 9e6)
    unused = tree(tmp_path, "2" * 64, 9e6)
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
