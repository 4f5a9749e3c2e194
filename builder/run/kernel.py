"""Calls of the Linux kernel that Python lacks: mounts and process attributes. Uses only the standard library.

jail.py and confine.py use it inside the namespaces of a container. Functions that need /proc take it from the
current folder, so that they work while the container has none: its image may have links into /proc/self/fd,
which would lead to open files of the host.
"""

# Few imports: this starts for every command. So no pathlib, hence:
# ruff: noqa: PTH123

from __future__ import annotations

import ctypes
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)

# <linux/mount.h>, mount(2)
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
#: A remount must repeat the flags that the kernel has locked. Maps the flags of statvfs(2) to those of
#: mount(2).
_LOCKED_FLAGS = {
    os.ST_NOSUID: NOSUID,
    os.ST_NODEV: NODEV,
    os.ST_NOEXEC: NOEXEC,
    os.ST_NOATIME: 1024,
    os.ST_NODIRATIME: 2048,
    4096: 1 << 21,  # relatime
}
#: The number of the system call on all architectures.
_MOUNT_SETATTR = 442


class Refused(Exception):
    """The kernel refuses a step, or a file is missing; the text is for the user."""


def must(what: str, result: int) -> None:
    """Raises Refused with the kernel's reason unless a C function returned 0."""
    if result != 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")


def prctl(option: int, *arguments: int) -> int:
    """prctl(2)."""
    padded = [*arguments, 0, 0, 0, 0][:4]
    return int(LIBC.prctl(option, *map(ctypes.c_ulong, padded)))


def open_path(path: str) -> int:
    """Opens a file or folder only as a source of mounts."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> int:
    """mount(2); returns 0 if it worked."""
    encoded = [None if s is None else os.fsencode(s) for s in (source, target, kind)]
    return int(LIBC.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options) or None))


def bind_file(fd: int, target: str, *, readonly: bool) -> None:
    """Mounts an open file or folder, with what is mounted below it, at an existing absolute path.

    The current folder must be a /proc.
    """
    must(f"mounting at {target}", mount(f"self/fd/{fd}", target, None, BIND | REC))
    if readonly:
        make_readonly(target)


def make_readonly(path: str) -> None:
    """Makes a mount and those below it read-only.

    mount_setattr is in Linux 5.12 and later; before, each mount is remounted. The current folder must be a
    /proc.
    """
    attributes = struct.pack("=QQQQ", RDONLY, 0, 0, 0)
    at_fdcwd, at_recursive = -100, 0x8000
    encoded = os.fsencode(path)
    if LIBC.syscall(_MOUNT_SETATTR, at_fdcwd, encoded, at_recursive, attributes, len(attributes)) == 0:
        return
    for place in mounts_below(path):
        present = os.statvfs(place).f_flag
        flags = sum(number for seen, number in _LOCKED_FLAGS.items() if present & seen)
        result = mount(None, place, None, REMOUNT | BIND | RDONLY | flags)
        must(f"{place} cannot be mounted read-only", result)


def mounts_below(path: str) -> list[str]:
    """Returns the path of a mount and those of all mounts below it. The current folder must be a /proc."""
    fd = open_path(path)
    with open(f"self/fdinfo/{fd}", "rb") as f:
        top = next(line.split()[1] for line in f if line.startswith(b"mnt_id:"))
    os.close(fd)
    found, paths = {top}, [path]
    with open("self/mountinfo", "rb") as f:
        for line in f:
            number, parent, _, _, place = line.split()[:5]
            if parent in found:
                found.add(number)
                for escaped, character in ((b"040", b" "), (b"011", b"\t"), (b"012", b"\n"), (b"134", b"\\")):
                    place = place.replace(b"\\" + escaped, character)
                paths.append(os.fsdecode(place))
    return paths
