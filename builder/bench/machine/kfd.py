"""The architecture of AMD GPUs, as the driver's compute part (KFD) reports it."""

from __future__ import annotations

import re

from .files import names, read

_NODES = "/sys/class/kfd/kfd/topology/nodes"


def amd_architecture() -> str:
    """The architecture of this machine's AMD GPUs, ``gfx90a``; ``unknown`` if they have several, or none.

    A version is 100 * (100 * major + minor) + stepping: 90010 is gfx90a. CPUs have 0.
    """
    found = set()
    for node in names(_NODES):
        version = re.search(r"(?m)^gfx_target_version ([1-9]\d*)$", read(f"{_NODES}/{node}/properties"))
        if version:
            major, rest = divmod(int(version[1]), 10000)
            found.add(f"gfx{major}{rest // 100:x}{rest % 100:x}")
    return found.pop() if len(found) == 1 else "unknown"
