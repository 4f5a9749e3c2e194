"""The processor: cores that this process may use, limits of its control group, clock, caches."""

from __future__ import annotations

import os
import platform
import re
from typing import Iterable

from ..core import Item
from .files import names, read


def affinity() -> set[int]:
    """Logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many logical cores this process may run on."""
    return len(affinity())


def physical_cores() -> int:
    """How many physical cores those are; the number of logical ones if that is unknown."""
    siblings = set()
    for core in affinity():
        siblings.add(read(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") or str(core))
    return len(siblings)


def parse_cores(text: str) -> set[int]:
    """The cores of a list in Linux's notation, ``0-3,8``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def format_cores(cores: Iterable[int]) -> str:
    """Cores in Linux's notation, ``0-3,8``."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and ranges[-1][1] == core - 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def quota() -> float | None:
    """CPU cores that the control group allows; None if it sets no limit."""
    values = read("/sys/fs/cgroup/cpu.max").split()  # version 2
    if len(values) != 2:
        values = [read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period")]  # version 1
    try:
        allowed, period = int(values[0]), int(values[1])
        return allowed / period if allowed > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def throttled_s() -> float:
    """Seconds for which the control group's quota has held back its processes."""
    found = re.search(r"throttled_usec (\d+)", read("/sys/fs/cgroup/cpu.stat"))
    if found:
        return int(found[1]) / 1e6
    found = re.search(r"throttled_time (\d+)", read("/sys/fs/cgroup/cpu/cpu.stat"))
    return int(found[1]) / 1e9 if found else 0.0


def load_average() -> float | None:
    """How many processes of the node ran or waited for a core, over the last minute; None if unknown."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def cpu_model() -> str:
    """The processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """The processor's features, as /proc/cpuinfo names them."""
    return set(_cpuinfo("flags").split())


def cpu_state() -> Item:
    """Clock and temperature, if they can be read."""
    state: Item = {}
    clock = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if clock.isdigit():
        state["clock_mhz"] = int(clock) / 1e3
    elif re.fullmatch(r"[\d.]+", _cpuinfo("cpu MHz")):
        state["clock_mhz"] = float(_cpuinfo("cpu MHz"))

    for name in names("/sys/class/hwmon"):
        folder = "/sys/class/hwmon/" + name
        temperature = read(folder + "/temp1_input")
        if read(folder + "/name") in ("k10temp", "coretemp", "zenpower") and temperature.isdigit():
            state["temperature_c"] = int(temperature) / 1e3
    return state


def cache_bytes() -> int:
    """Size of the largest cache of the first usable core; 0 if unknown."""
    sizes = [0]
    folder = f"/sys/devices/system/cpu/cpu{min(affinity())}/cache"
    for name in names(folder):
        found = re.fullmatch(r"(\d+)([KMG])", read(f"{folder}/{name}/size"))
        if found:
            sizes.append(int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2]])
    return max(sizes)


def _cpuinfo(key: str) -> str:
    """The first value of a key in /proc/cpuinfo."""
    for line in read("/proc/cpuinfo", 1 << 14).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
