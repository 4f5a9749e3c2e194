"""Reads small files of the system."""

from __future__ import annotations

import os

#: Prefix of every path below /proc, /sys, /dev, /etc and /usr that is read. Tests set it to another tree.
ROOT = ""


def system_path(path: str) -> str:
    """Return the path of a file of the system."""
    return ROOT + path


def read(path: str, size: int = 4096) -> str:
    """Return the first ``size`` characters of a system file, stripped; empty if unreadable."""
    try:
        with open(system_path(path), encoding="utf-8", errors="replace") as f:
            return f.read(size).strip()
    except OSError:
        return ""


def names(folder: str) -> list[str]:
    """Return the names in a folder of the system; empty if it cannot be read."""
    try:
        return sorted(os.listdir(system_path(folder)))
    except OSError:
        return []


def device_files() -> list[str]:
    """Return the device files of GPUs in this container."""
    known = ("kfd", "dri", "dxg")
    found = (name for name in names("/dev") if name in known or name.startswith("nvidia"))
    return ["/dev/" + name for name in found]


def within(path: str, folder: str) -> bool:
    """Return whether a path is the folder or in it."""
    return bool(path) and (path == folder or path.startswith(folder.rstrip("/") + "/"))
