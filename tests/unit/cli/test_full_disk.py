"""A disk that is full ends a command with one error and its exit code, whatever was written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.errors import SpaceError
from builder.core.store import files
from tests.support.cli import Cli, Result
from tests.support.disk import small_disk
from tests.support.project import TinyProject

CLONE = Path(__file__).parents[3]


def builder(project: TinyProject, *args: str | Path) -> Result:
    """Runs a command in a process of its own: the channel's server is in this one, and uses its stderr."""
    command = [sys.executable, "-m", "builder", "--project", project.root, *args]
    env = {**project.variables(), "PYTHONPATH": str(CLONE)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)


def one_error(done: Result) -> str:
    """The error of a command that ended because of a full disk, after at most the end of the log."""
    assert done.code == SpaceError.exit_code, done.err
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and len(done.err.splitlines()) <= 5, done.err
    assert "Traceback" not in done.err and "Arguments" not in done.err and "  hint: " in done.err
    return errors[0]


@pytest.mark.root
@pytest.mark.parametrize(
    ("command", "size"),
    [(command, size) for command in ("lock", "build") for size in ("4k", "12k", "20k", "40k", "100k")],
)
def test_cache(command: str, size: str, tiny: TinyProject, do: Cli, tmp_path: Path) -> None:
    """The log, the index of a channel, the files of uv, downloads and layers."""
    if command == "build":
        assert do("lock", "tiny").code == 0
    with small_disk(tmp_path / "disk", size) as disk:
        done = builder(tiny, "--cache", disk / "cache", command, "tiny")
    assert str(disk) in one_error(done)


@pytest.mark.root
@pytest.mark.parametrize("size", ["4k", "1m"])
@pytest.mark.parametrize("place", ["dist", "tmp"])
def test_places(place: str, size: str, tiny: TinyProject, do: Cli, tmp_path: Path) -> None:
    """The layout, and temporary files of a build."""
    assert do("lock", "tiny").code == 0
    with small_disk(tmp_path / "disk", size) as disk:
        options = ["--tmpdir", str(disk)] if place == "tmp" else []
        to = ["--to", f"oci:{disk}/dist"] if place == "dist" else []
        done = builder(tiny, *options, "build", "tiny", *to)
    assert str(disk) in one_error(done)


def test_lock_file(tiny: TinyProject, do: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the project."""
    real = os.fdopen

    def full(fd: int, *mode: str) -> object:
        if "wb" in mode and "environments" in os.readlink(f"/proc/self/fd/{fd}"):
            os.close(fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, *mode)

    monkeypatch.setattr(files.os, "fdopen", full)
    assert "environments" in one_error(do("lock", "tiny")) and not tiny.lock.exists()


@pytest.mark.parametrize(
    ("words", "code"), [(["lock", "tiny"], 0), (["-vv", "lock", "tiny"], 0), (["lock", "x"], 3)]
)
def test_stderr(words: list[str], code: int, tiny: TinyProject) -> None:
    """A job's output that cannot be written changes no result."""
    command = [sys.executable, "-m", "builder", "--project", tiny.root, *words]
    env = {**tiny.variables(), "PYTHONPATH": str(CLONE)}
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, env=env, stderr=full).returncode == code
    assert tiny.lock.exists() == (code == 0)


@pytest.mark.root
@pytest.mark.parametrize("command", ["lock", "build", "run"])
def test_read_only(command: str, tiny: TinyProject, do: Cli, tmp_path: Path) -> None:
    """A home that is read-only: the one error names the folder, and what to do."""
    if command == "build":
        assert do("lock", "tiny").code == 0
    with small_disk(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        done = builder(tiny, "--cache", disk / "cache", command, "tiny")
    (error,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.code == 1 and f"{disk}/cache" in error and "Read-only file system" in error, done.err
    assert "BUILDER_CACHE" in done.err
