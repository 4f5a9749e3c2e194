"""Reads small files of the system, and inspects file systems and paths."""

from __future__ import annotations

import os
import re

#: Prefix of every path below /proc, /sys, /dev, /etc and /usr that is read. Tests set it to another tree.
ROOT = ""

#: What to do about a folder for temporary files that is ``long_for_sockets``.
SHORT_TMP = (
    "DataLoader workers send tensors through sockets there, and hang: "
    "bind a writable /tmp, or set TMPDIR to a short path"
)


def system_path(path: str) -> str:
    """Where a file of the system is."""
    return ROOT + path


def read(path: str, size: int = 4096) -> str:
    """The first ``size`` characters of a system file, stripped; empty if it cannot be read."""
    try:
        with open(system_path(path), encoding="utf-8", errors="replace") as f:
            return f.read(size).strip()
    except OSError:
        return ""


def read_bytes(path: str, size: int = 1 << 16) -> bytes:
    """The first ``size`` bytes of a binary system file; empty if it cannot be read."""
    try:
        with open(system_path(path), "rb") as f:
            return f.read(size)
    except OSError:
        return b""


def names(folder: str) -> list[str]:
    """The names in a folder of the system; empty if it cannot be read."""
    try:
        return sorted(os.listdir(system_path(folder)))
    except OSError:
        return []


def device_files() -> list[str]:
    """The device files of GPUs in this container."""
    found = [name for name in names("/dev") if name in ("kfd", "dri", "dxg") or name.startswith("nvidia")]
    return ["/dev/" + name for name in found]


def within(path: str, folder: str) -> bool:
    """Whether a path is the folder or in it."""
    return bool(path) and (path == folder or path.startswith(folder.rstrip("/") + "/"))


def writable(path: str) -> bool:
    """Whether a folder can be written to; if it does not exist, whether it can be made."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return os.access(path, os.W_OK)


def file_system(path: str) -> tuple[str, str]:
    """Mount point and type of the file system that a path is on, or would be on; empty if unknown."""
    path = os.path.realpath(path)
    best = ("", "")
    for line in read("/proc/self/mountinfo", 1 << 20).splitlines():
        # "36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda1 rw"
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        if within(path, point) and len(point) >= len(best[0]):
            best = (point, (right.split() or [""])[0])
    return best


def long_for_sockets(folder: str) -> bool:
    """Whether Python's sockets in a folder would exceed the 107 bytes that Linux allows for a Unix socket.

    Python's multiprocessing puts them at ``FOLDER/pymp-XXXXXXXX/listener-XXXXXXXX``.
    """
    return len(os.fsencode(folder)) + 32 > 107
