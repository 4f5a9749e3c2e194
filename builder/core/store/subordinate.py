"""The ids that a user may give to the users of a container, see subuid(5) and subgid(5).

Programs that run in such a user namespace leave files that the user cannot remove: mmdebstrap,
podman, Apptainer. So these files are removed in a namespace with the same ids.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path

from builder.core.settings import user_name

from .reading import text_of

#: Waits until the ids are mapped, and becomes root by starting a program.
_REMOVE = 'echo && read -r _ && exec rm -rf --one-file-system -- "$1"'


def ranges(file: Path) -> list[tuple[str, str]]:
    """Return this user's ranges of ids in a file: the first id of each, and their number."""
    names = {user_name(), str(os.geteuid())}
    lines = [line.strip().split(":") for line in text_of(file).splitlines()]
    return [(line[1], line[2]) for line in lines if len(line) == 3 and line[0] in names]


def ranges_hint() -> str:
    """Return the hint for a user without ids."""
    return f"as root: usermod --add-subuids 200000-265535 --add-subgids 200000-265535 {user_name()}"


def remove_mapped(path: Path) -> None:
    """Remove a tree with files of this user's subordinate ids.

    The ids are mapped from outside of the namespace: inside, only a process's own id could be.

    Raises:
        PermissionError: this host has no such ids for this user, or files belong to somebody else.
    """
    command = ["unshare", "--user", "--", "sh", "-c", _REMOVE, "sh", str(path.absolute())]
    pipe, silent = subprocess.PIPE, subprocess.DEVNULL
    with (
        contextlib.suppress(OSError, subprocess.SubprocessError),
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=silent) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()  # it is in its namespace
        for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
            words = [f"new{kind}map", str(process.pid), "0", str(own), "1"]
            for first, count in ranges(Path(f"/etc/sub{kind}")):
                words += (first, first, count)
            subprocess.run(words, capture_output=True, check=True)
        process.stdin.write(b"\n")
    if os.path.lexists(path):
        raise PermissionError(errno.EPERM, "a part of it belongs to another user", str(path))
