"""Runs the README's commands for this repository as an ordinary user of a plain Debian.

``python -m tests.ordinary_user [COMMAND...]``, by ``make test-user``: ``make image`` and the unit tests, or
the commands given. The machine is that of :mod:`tests.support.freshmachine`, with make and sudo; HOME and all
caches are empty. In /tmp are files of another user.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from builder.bases.resolve import resolve_base
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.freshmachine import USER, FreshMachine, fresh_machine, give
from tests.support.parts import CLONE, part_folder

#: The README's first command, and the tests that need no daemon.
COMMANDS = ("make image", "make test-unit")
#: Names in /tmp that other users may have taken. builder and its tests must not need them.
LEFTOVERS = ("locks", "data", "builder", "uv", "pip", "mmdebstrap", "cache")


def main(commands: list[str]) -> int:
    """Runs the commands until one fails; returns its exit code, or 0."""
    settings = Settings.from_environment()
    base = resolve_base("debian:bookworm", "amd64", settings, Store(settings.cache))
    with (
        part_folder("front-door") as folder,
        fresh_machine(folder / "machine", settings.cache, base.digest) as machine,
    ):
        set_up(machine, folder)
        for command in commands or COMMANDS:
            print(f"$ {command}", flush=True)
            if code := machine.show(command, folder="builder-clone"):
                return code
    return 0


def set_up(machine: FreshMachine, folder: Path) -> None:
    """Gives the user make, sudo, git and a clone, and another user's files in /tmp."""
    machine.install("make", "sudo", "git")
    machine.as_root(f"echo '{USER} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{USER}")
    names = " ".join(f"/tmp/{name}" for name in LEFTOVERS)  # noqa: S108
    machine.as_root(f"useradd somebody-else && mkdir -m 700 {names} && chown somebody-else {names}")
    subprocess.run(["git", "clone", "--quiet", CLONE, folder / "clone"], check=True)
    give(machine, folder / "clone", "builder-clone")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
