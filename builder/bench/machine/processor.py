"""The processor: cores that this process may use, limits of its control group, features."""

from __future__ import annotations

import os
import platform

from .files import read


def affinity() -> set[int]:
    """Return the logical cores that this process may run on."""
    return set(os.sched_getaffinity(0))


def usable_cores() -> int:
    """Return the number of logical cores that this process may run on."""
    return len(affinity())


def physical_cores() -> int:
    """Return the number of physical cores among these; of logical ones if that is unknown."""
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({read(siblings.format(core)) or str(core) for core in affinity()})


def parse_cores(text: str) -> set[int]:
    """Return the cores of a list in Linux's notation, ``0-3,8``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def quota() -> float | None:
    """Return the CPU cores that the control group allows; None if it sets no limit."""
    values = read("/sys/fs/cgroup/cpu.max").split()  # version 2
    if len(values) != 2:  # version 1
        folder = "/sys/fs/cgroup/cpu/"
        values = [read(f"{folder}cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        allowed, period = int(values[0]), int(values[1])
        return allowed / period if allowed > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def cpu_model() -> str:
    """Return the processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """Return the processor's features, as /proc/cpuinfo names them."""
    return set(_cpuinfo("flags").split())


def _cpuinfo(key: str) -> str:
    """Return the first value of a key in /proc/cpuinfo."""
    for line in read("/proc/cpuinfo", 1 << 14).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
