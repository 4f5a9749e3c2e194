"""A cache that others may write to, and one that nobody may write to."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import Cli
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
    """Nor is a record believed that says that nothing has changed."""
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
