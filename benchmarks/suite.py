"""Current programs on an older Debian or Ubuntu: a tree of Debian sid, and commands that run in it.

The tree has Docker with BuildKit, buildah and podman. mmdebstrap makes it once, from Debian's mirror. A
process holds a mount namespace in which the tree is the root, and commands enter it with nsenter. They share
this machine's network, cgroups, devices and /var/tmp.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from benchmarks.measure import CommandFailed
from builder.build.bases.debian_mirror import apt_options
from builder.formats.net.apt import host_sources
from tests.support import parts

SUITE = "sid"
PACKAGES = (
    "buildah",
    "ca-certificates",
    "docker-buildx",
    "docker-cli",
    "docker.io",
    "netavark",
    "podman",
    "runc",
)
#: Where the tree is stored between runs.
TREE = parts.CLONE / ".cache" / "bench" / SUITE
#: Where the tree comes from if apt's sources name no Debian mirror, as on Ubuntu.
_MIRROR = "http://deb.debian.org/debian"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: A mirror whose copy of the suite is not renewed is accepted.
_APT_OPTIONS = 'Acquire::Check-Valid-Until "false";\nAPT::Install-Recommends "false";\n'
#: Makes a tree the root of this mount namespace, and waits. Arguments: the tree, and folders to share.
_HOLD = """\
set -eu
tree=$1
shift
mount --bind "$tree" "$tree"
for folder in "$@"; do
    mkdir -p "$tree$folder"
    mount --bind "$folder" "$tree$folder"
done
for folder in /sys /dev; do
    mount --rbind "$folder" "$tree$folder"
done
mount -t proc proc "$tree/proc"
mount -t tmpfs tmpfs "$tree/run"
mkdir -p "$tree/host"
cd "$tree"
pivot_root . host
umount --lazy /host
echo ready
exec sleep infinity
"""


@dataclass(frozen=True)
class Suite:
    """A mount namespace whose root is the tree."""

    pid: int
    """The process that holds the namespace."""

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return the command line that runs a program of the tree; the program has its process id."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--", *words]

    def run(
        self, words: Sequence[str | Path], env: Mapping[str, str], *, check: bool = True
    ) -> str:
        """Run a program of the tree, which is not measured; return its standard output.

        Raises:
            CommandFailed: its exit code is not 0, unless ``check`` is false.
        """
        command = [str(word) for word in self.command(*words)]
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise CommandFailed(
                f"exit code {done.returncode}: {' '.join(map(str, words))}\n{done.stderr[-2000:]}"
            )
        return done.stdout


@contextlib.contextmanager
def open_suite(
    *shared: Path, tree: Path = TREE, packages: Sequence[str] = PACKAGES
) -> Iterator[Suite]:
    """Enter the tree; it is made if it does not exist.

    Args:
        shared: folders, besides /var/tmp, that programs of the tree see under the same path.
        tree: where the tree is stored.
        packages: those of Debian that it has.

    Raises:
        CommandFailed: the tree cannot be made.
    """
    make_tree(tree, packages)
    hold = ["unshare", "--mount", "--propagation=private", "sh", "-c", _HOLD, "hold"]
    with parts.part_folder("suite") as folder:
        log = folder / "log"
        holder = parts.start([*hold, tree, "/var/tmp", *shared], log)
        try:
            parts.wait_for(
                lambda: "ready" in log.read_text(), holder, log, f"the tree of Debian {SUITE}"
            )
            yield Suite(holder.pid)
        finally:
            parts.stop(holder)


def make_tree(tree: Path, packages: Sequence[str]) -> None:
    """Make the tree, unless it already exists with the same packages.

    Raises:
        CommandFailed: mmdebstrap fails.
    """
    made, wanted = tree.with_suffix(".made"), " ".join(packages)
    tree.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(tree.with_suffix(".lock")):
        if not made.exists() or made.read_text() != wanted:
            _make_tree(tree, packages)
            made.write_text(wanted)


def _make_tree(tree: Path, packages: Sequence[str]) -> None:
    """Make the tree again."""
    print(f"bench: making a tree of Debian {SUITE} in {tree}", file=sys.stderr, flush=True)
    tree.with_suffix(".made").unlink(missing_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    options, source = tree.with_suffix(".apt"), source_line()
    options.write_text(apt_options(tree.parent, source.split()[2:3]) + _APT_OPTIONS)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
    command += [f"--aptopt={options}", SUITE, str(tree), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailed(
            f"mmdebstrap cannot make a tree of Debian {SUITE}: {done.stderr[-2000:]}"
        )


def source_line(folder: Path = Path("/etc/apt")) -> str:
    """Return the apt source of the tree: the Debian mirror of this machine, or else Debian's own.

    Args:
        folder: apt's configuration folder.
    """
    mirrors = (
        uri
        for stanza in host_sources(folder)
        if "main" in stanza.get("Components", "").split()
        for uri in stanza.get("URIs", "").split()
        if uri.rstrip("/").endswith("/debian")
    )
    return f"deb [signed-by={_KEYRING}] {next(mirrors, _MIRROR)} {SUITE} main"
