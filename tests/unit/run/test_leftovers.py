"""Images and containers of killed processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from builder.run import leftovers
from builder.run.leftovers import is_left_behind, loaded, new_tag, remember, remove_loaded


def test_left_behind() -> None:
    """Only what a process that ended has made is left behind; another host's may be in use."""
    own = new_tag()
    ended = subprocess.run([sys.executable, "-c", ""], check=True)
    assert ended.returncode == 0
    pid = subprocess.Popen([sys.executable, "-c", ""])
    pid.wait()
    killed = own.replace(f"-{os.getpid()}-", f"-{pid.pid}-")
    elsewhere = f"blob-{'0' * 16}-1-{'0' * 16}"
    assert not is_left_behind(f"builder-run:{own}")
    assert is_left_behind(f"builder-run:{killed}") and is_left_behind(f"localhost/builder-run:{killed}")
    assert is_left_behind(f"builder-run-{killed}")
    assert not is_left_behind(f"builder-run:{elsewhere}")
    assert is_left_behind(f"builder-run:{elsewhere}", elsewhere=True)


def test_old_names() -> None:
    """Pruning removes what earlier versions left under these names; the user's images have others."""
    for name in ("localhost/tmp/builder-0123456789abcdef/layout:latest", "builder-run:0123456789ab"):
        assert is_left_behind(name, elsewhere=True) and not is_left_behind(name)
    for name in ("builder/mine:latest", "localhost/builder-run:mine", "<none>:<none>", "builder-run:latest"):
        assert not is_left_behind(name, elsewhere=True)


def test_removed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is loaded once per process; an engine that fails does not keep the others."""
    monkeypatch.setattr(leftovers, "_loaded", {})
    removed: list[str] = []

    def fail() -> None:
        raise RuntimeError("the engine has ended")

    remember("docker", "sha256:1", "id1", lambda: removed.append("1"))
    remember("podman", "sha256:1", "id2", fail)
    remember("podman", "sha256:2", "id3", lambda: removed.append("3"))
    assert loaded("docker", "sha256:1") == "id1" and loaded("docker", "sha256:2") is None
    remove_loaded("docker")
    assert removed == ["1"] and loaded("docker", "sha256:1") is None
    remove_loaded()
    assert removed == ["1", "3"] and loaded("podman", "sha256:1") is None
