"""What a command imports when nothing changed: most of its time is imports (docs/performance.md)."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.fakeregistry import FakeRegistry
from tests.support.project import TinyProject

#: Runs builder, and prints the modules that it imported.
_PROGRAM = """
import atexit, json, sys
from builder.__main__ import main

atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
main()
"""
#: Slow modules: solvers, readers of archives and ELF files, runners, the smoke test, asyncio.
_SLOW = (
    "asyncio",
    "builder.build.bases.mmdebstrap",
    "builder.build.fetch.download",
    "builder.build.image.archive",
    "builder.build.image.convert",
    "builder.formats.layers.conda",
    "builder.formats.layers.wheel",
    "builder.lock.formats",
    "builder.lock.solve",
    "builder.build.run.base",
    "builder.formats.sif",
    "builder.deliver.smoke.grade",
    "builder.deliver.smoke.run",
    "builder.cli.start",
    "builder.build.steps.run",
    "builder.build.wheels.builder",
    "conda_lock",
    "docker",
    "filelock",
    "installer",
    "pathspec",
    "rattler",
    "rich",
    "sqlite3",
    "uv",
)
#: An HTTP client: ``builder publish`` needs one.
_HTTP = ("httpx2", "httpcore2", "ssl", "builder.formats.registry")


def _imported(project: TinyProject, *args: str) -> set[str]:
    """The modules that a command imports."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *args],
        cwd=project.root,
        env=project.variables(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def _slow(modules: set[str], slow: tuple[str, ...]) -> list[str]:
    return [name for name in slow if name in modules]


def test_build_with_nothing_changed(copy: TinyProject) -> None:
    """A module that a build with nothing changed does not need is imported in the function that needs it.

    The limits are a tenth above what is imported now.
    """
    modules = _imported(copy, "build", "tiny")
    assert not _slow(modules, (*_SLOW, *_HTTP, "builder.deliver.smoke"))
    own = [name for name in modules if name.partition(".")[0] == "builder"]
    assert len(own) <= 153, sorted(own)
    assert len(modules) <= 495, sorted(modules - set(own))


def test_publish_with_nothing_changed(copy: TinyProject) -> None:
    with FakeRegistry() as registry:
        args = ("publish", "tiny", "--to", f"{registry.host}/tiny", "--no-tags")
        _imported(copy, *args)
        modules = _imported(copy, *args)
    assert "httpx2" in modules
    assert not _slow(
        modules, (*_SLOW, "pygments", "builder.deliver.publishing.engines", "builder.deliver.smoke.abrun")
    )
