"""Other hosts that share a file system without locks: processes in namespaces of their own."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.parts import part_missing, shared_library

CLONE = Path(__file__).parents[2]
_SOURCE = Path(__file__).with_name("no_locks.c")
#: What flock fails with: Lustre without ``-o flock``, NFS without a lock server, other file systems.
NO_LOCKS = {"lustre": errno.ENOSYS, "nfs": errno.ENOLCK, "other": errno.EOPNOTSUPP}


def without_locks(folder: Path, kind: str = "lustre") -> dict[str, str]:
    """The environment of processes for which no file system has locks.

    Args:
        folder: where the library is compiled.
        kind: a key of :data:`NO_LOCKS`.
    """
    library = folder / "no_locks.so"
    if not library.exists():
        shared_library(_SOURCE, library)
    return {"LD_PRELOAD": str(library), "NO_LOCKS": str(NO_LOCKS[kind])}


def on_host(name: str, command: Sequence[str | Path]) -> list[str]:
    """The command line that runs a command as if on another host: its own name, process numbers and mounts.

    Skips the test where this user may not make namespaces.
    """
    enter = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*enter, "hostname", name], capture_output=True).returncode:
        part_missing("only root can make namespaces")
    script = f"hostname {shlex.quote(name)} && exec {shlex.join(map(str, command))}"
    return [*enter, "--mount-proc", "sh", "-c", script]


def start_on(
    name: str, command: Sequence[str | Path], env: Mapping[str, str], *, cwd: Path = CLONE
) -> subprocess.Popen[str]:
    """Starts a command on another host; ``env`` is added to the environment."""
    return subprocess.Popen(
        on_host(name, command),
        env={**os.environ, **env},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
