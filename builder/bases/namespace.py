"""Runs a command as root in a user namespace in which all ids are the host's. Uses only the standard library.

foreign.py starts it as a separate process, because unshare(2) with a user namespace requires a process with
one thread:

    python -I -S -c START FOLDER COMMAND...
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# <linux/sched.h>, <linux/mount.h>
_NEWNS, _NEWUSER = 0x20000, 0x10000000
_REC, _PRIVATE = 16384, 1 << 18


def main() -> None:
    """Enters new user and mount namespaces as root, and becomes the command of the arguments."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _enter(libc)
    except OSError as e:
        sys.exit(f"E: unshare failed: {e.strerror}")
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  the command is builder's own


def _enter(libc: ctypes.CDLL) -> None:
    """A process that stays outside writes the ids, because inside only a process's own can be written."""
    target = os.getpid()
    entered, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(report)
        os._exit(_map_ids(target) if os.read(entered, 1) else 0)
    os.close(entered)
    if libc.unshare(_NEWUSER | _NEWNS) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.write(report, b"1")
    os.close(report)
    _, code = os.waitpid(pid, 0)
    if code:
        raise OSError(os.WEXITSTATUS(code), os.strerror(os.WEXITSTATUS(code)))
    libc.mount(b"none", b"/", None, ctypes.c_ulong(_REC | _PRIVATE), None)


def _map_ids(pid: int) -> int:
    """Gives the namespace of a process the ids of this one; returns 0 or the error number."""
    try:
        for name in ("uid_map", "gid_map"):
            own = Path(f"/proc/self/{name}").read_text()
            Path(f"/proc/{pid}/{name}").write_text(identity_map(own))
    except OSError as e:
        return e.errno or 1
    return 0


def identity_map(own: str) -> str:
    """The map (user_namespaces(7)) of a namespace with the same ids as its parent.

    Args:
        own: the parent's map: lines of an id inside, an id outside, and a count.
    """
    lines = [line.split() for line in own.splitlines()]
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines)
