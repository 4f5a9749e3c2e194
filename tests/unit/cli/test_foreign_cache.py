"""A cache that others may write to, and one that nobody may write to."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.parts import CLONE, need, need_root
from tests.support.project import TinyProject


@pytest.mark.parametrize(
    "words",
    [
        "lock",
        "build",
        "run --print -- true",
        "job -- true",
        "publish --to oci:out",
        "pull",
        "cache prune",
    ],
)
def test_refused(do: Cli, copy: TinyProject, words: str) -> None:
    """By every command that uses it, without a log in it; the hint is the line to type."""
    logs = copy.cache / "logs"
    copy.cache.chmod(0o2775)
    before = list(logs.iterdir())
    refused = do(*words.split())
    assert refused.code == 1 and f"another user owns the cache {copy.cache}, or may write" in refused.err
    assert list(logs.iterdir()) == before
    line = refused.err.partition("hint: ")[2].partition(", or set")[0]
    subprocess.run(shlex.split(line), check=True)
    assert do("build").code == 0 and len(list(logs.iterdir())) > len(before)


def test_unchanged(do: Cli, copy: TinyProject) -> None:
    """A record in it that nothing has changed does not count, either."""
    assert do("build").code == do("build").code == 0
    copy.cache.chmod(0o777)
    assert do("build").code == 1


def test_without_cache(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """Help, doctor, the sizes of folders and a log of the user's own need no cache."""
    copy.cache.chmod(0o777)
    log = tmp_path / "log"
    found = {f["what"]: f for f in do("--log-file", log, "doctor", "--json").json}
    assert found["cache"]["status"] == "bad" and found["cache"]["hint"].startswith("chmod 700 ")
    assert log.stat().st_size
    assert do("help", "options").code == do("cache", "info").code == 0


@pytest.fixture
def read_only(copy: TinyProject) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command whose cache is on a file system that is mounted read-only."""
    need_root()
    need("unshare")
    script = 'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; exec "$@"'

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        enter = ["unshare", "--mount", "--propagation=private", "sh", "-ec", script, str(copy.cache)]
        environ = {**os.environ, "PYTHONPATH": str(CLONE)}
        command = [*enter, sys.executable, "-m", "builder", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    return run


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.root
def test_read_only(do: Cli, copy: TinyProject, read_only: Run) -> None:
    """What is in the cache can be built again and run; dist/ can be written."""
    digest = do("build", "--json").json["digest"]
    do("run", "--no-build", "--", "true")
    shutil.rmtree(copy.root / "dist")
    built = read_only("build", "--json")
    assert built.returncode == 0, built.stderr
    assert digest in built.stdout and (copy.root / "dist/index.json").exists()
    ran = read_only("run", "--no-build", "--", "true")
    assert "cannot run /opt/builder/entrypoint in the image" in ran.stderr  # which has no program


@pytest.mark.root
def test_copied_and_read_only(do: Cli, copy: TinyProject, read_only: Run) -> None:
    """A copy has other inodes and times: its files are hashed, and that cannot be noted."""
    for path in copy.cache.rglob("*.seen"):
        path.write_text("1 1 1")
    assert read_only("build").returncode == 0


@pytest.mark.root
def test_missing_and_read_only(do: Cli, copy: TinyProject, read_only: Run) -> None:
    """What the cache lacks is refused with the folder that cannot be written to."""
    shutil.rmtree(copy.cache / "blobs")
    for command in ("build", "smoke", "publish --to oci:out"):
        done = read_only(*command.split())
        assert done.returncode not in (0, 70), (command, done.stderr)
        assert f"cannot write to {copy.cache}" in done.stderr and "Read-only" in done.stderr
