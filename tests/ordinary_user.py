"""Runs the README's commands as an ordinary user of a plain Debian.

``python -m tests.ordinary_user [COMMAND...]``, by ``make test-user``: ``make image``, the unit tests, and the
walks with a wheel of builder (``tests/walks``), or the commands given. The machine is that of
:mod:`tests.support.freshmachine`, with make and sudo; HOME and all caches are empty. In /tmp are files of
another user.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import resolve_base
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from tests.support.freshmachine import USER, FreshMachine, fresh_machine, give, serve_base
from tests.support.install import base_folder
from tests.support.parts import CLONE, Registry, part_folder, start_registry

#: A shell as after a new login, without this machine's settings of pip and certificates.
_LOGIN = 'env -i HOME="$HOME" USER="$USER" bash --login'
#: Lines that the user types in the clone: the README's first commands, with the one that make image prints,
#: and the tests that need no daemon and no root, with all parts that they need.
IN_CLONE = (
    "bash -o pipefail -c 'make image 2>&1 | tee ~/image.log'",
    "! grep '^error:' ~/image.log",
    f"sed -n 's/^next: *//p' ~/image.log >~/next && cat ~/next && test -s ~/next && {_LOGIN} ~/next",
    f"{_LOGIN} -c 'source .venv/bin/activate && builder targets'",
    "sudo apt-get install -y -qq gcc jq libc6-dev openssl shellcheck siftool squashfs-tools >/dev/null",
    "CI=true make test-unit PYTEST_ARGS='-m \"not root\"'",
)
_WITH_MIRRORS = "BUILDER_MIRRORS=$(cat ~/mirrors) XDG_CACHE_HOME=~/mine.cache sh ~/builder-clone/tests/walks"
_WALK = f"cd ~/mine && {_WITH_MIRRORS}"
#: The README's other commands, with a wheel and empty caches, in a folder with two files of the user.
WALKS = (
    ".venv/bin/pip wheel --quiet --no-deps --wheel-dir ~/wheels .",
    "BUILDER=$(echo ~/wheels/*.whl) sh tests/walks/install.sh",
    ".venv/bin/python -m tests.support.debian_channel $PWD/.cache/channel >~/mirrors",
    "echo docker://docker.io/library=docker://$(dirname $REGISTRY)/library >>~/mirrors",
    "cp -r tests/walks/project ~/mine",
    f"{_WALK}/image.sh",
    "cmp ~/mine/environment.yml tests/walks/project/environment.yml && grep 2.0 ~/mine/model.txt",
    f"{_WALK}/publish.sh >~/published 2>&1; code=$?; cat ~/published; exit $code",
    "grep 'sent 0 blobs' ~/published && grep '\"mine\"' ~/pulled/index.json",
    f"{_WALK}/change.sh",
    "cp -r tests/walks/package ~/package",
    f"cd ~/package && {_WITH_MIRRORS}/package.sh",
    "test $(grep -c trained ~/package/model.txt) = 2",
)
#: Names in /tmp that other users may have taken. builder and its tests must not need them.
LEFTOVERS = ("locks", "data", "builder", "uv", "pip", "mmdebstrap", "cache")


def main(commands: list[str]) -> int:
    """Runs the commands until one fails; returns its exit code, or 0."""
    cache = base_folder(CLONE / ".cache/parts/base")
    base = resolve_base(
        "debian:bookworm",
        WantedBase("amd64"),
        Workspace(Settings.from_environment(cache=cache), Store(cache)),
    )
    with (
        part_folder("front-door") as folder,
        _registry(folder / "registry") as registry,
        fresh_machine(folder / "machine", cache, base.digest, REGISTRY=f"{registry.host}/me") as machine,
    ):
        set_up(machine, folder)
        serve_base(registry.host, "library/debian", "bookworm-slim", cache, base.digest)
        for command in commands or (*IN_CLONE, *WALKS):
            print(f"$ {command}", flush=True)
            if code := machine.show(command, folder="builder-clone"):
                return code
    return 0


@contextlib.contextmanager
def _registry(folder: Path) -> Iterator[Registry]:
    registry = start_registry(folder)
    try:
        yield registry
    finally:
        registry.stop()


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
