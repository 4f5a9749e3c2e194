"""Tries a runner: runs a program of 132 bytes in a container, and leaves no file.

An engine can answer and still be unable to start a container, so only this shows that a runner
works.
"""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path

from builder.core.datafiles import table
from builder.core.errors import BuilderError
from builder.core.model import Image
from builder.core.settings import Settings
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry
from builder.formats.oci.image import host_architecture, image_of

from .base import Runner, RunOptions
from .failures import Problem, hint_for
from .leftovers import remove_loaded

#: What the program returns: no engine uses this exit code for its own failures.
_EXIT_CODE = 42
_PROGRAM = "/trial"
_TIMEOUT_S = 10.0
#: In the reason of every runner whose program is not there ("not installed", "neither ... is
#: installed").
_NOT_INSTALLED = "installed"


def try_runner(kind: type[Runner]) -> Problem | None:
    """Return None if a runner runs a container on this host within seconds, else the problem.

    The program needs no network and no file of this host.
    """
    # not in the cache: nothing of it is to remain
    with tempfile.TemporaryDirectory(prefix="builder-trial-") as name:
        folder = Path(name)
        settings = Settings(cache=folder / "cache", tmpdir=folder / "tmp", jobs=1)
        work = Workspace.of(settings)
        runner = kind(work)
        reason = runner.available()
        if reason is not None:
            is_installed = _NOT_INSTALLED not in reason
            return Problem(reason, hint_for(kind.name, reason), is_installed=is_installed)
        if not trial_program(platform.machine()):
            return None
        try:
            options = RunOptions(timeout_s=_TIMEOUT_S)
            done = runner.run(trial_image(work), [_PROGRAM], options)
        except BuilderError as e:
            return Problem(e.message, e.hint)
        finally:
            remove_loaded(kind.name)
    if done.timed_out:
        reason = f"no container ended within {_TIMEOUT_S:.0f} s"
        return Problem(reason, "the engine or its storage may hang")
    if done.returncode != _EXIT_CODE:
        text = done.stderr.strip() or f"exit code {done.returncode}"
        reason = f"could not run a container: {text.splitlines()[-1]}"
        return Problem(reason, hint_for(kind.name, text))
    return None


def trial_image(work: Workspace) -> Image:
    """Return an image of one program and the folders that container engines expect."""
    folders = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "var", "var/tmp")
    file = Entry.of(_PROGRAM.lstrip("/"), trial_program(platform.machine()), 0o755)
    entries = [*(Entry(path, "dir", 0o755) for path in folders), file]
    layer = make_layer(entries, "trial", work)
    return image_of([layer], {}, architecture=host_architecture())


def trial_program(machine: str) -> bytes:
    """Return a program that ends with exit code 42; nothing for a processor that is not known."""
    return bytes.fromhex(table(__file__, "trial.yaml").get(machine, ""))
