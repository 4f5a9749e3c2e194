"""The GPUs of this host: device files, and the driver libraries that a container needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from builder.core.datafiles import table
from builder.lock.config.site import GpuVendor

#: Patterns of names.
_NAMES = "gpu.yaml"


def gpu_devices(vendor: GpuVendor, folder: Path = Path("/dev")) -> list[Path]:
    """Return the device files and folders of a vendor's GPUs on this host, sorted.

    For AMD, ``dri`` alone is any graphics card: there must be ``kfd`` (or ``dxg``, on WSL) as well.
    """
    pattern = table(__file__, _NAMES)[vendor]
    found = sorted(p for p in folder.iterdir() if re.fullmatch(pattern, p.name))
    if vendor == "amd" and not {p.name for p in found} & {"kfd", "dxg"}:
        return []
    return found


def is_complete(vendor: GpuVendor) -> bool:
    """Return whether this host's device files are all that programs need for a vendor's GPUs.

    NVIDIA's are made by the first program that uses a GPU after a boot, as root: a container
    cannot.
    """
    names = {device.name for device in gpu_devices(vendor)}
    if vendor == "nvidia":
        return "dxg" in names or {"nvidiactl", "nvidia-uvm"} <= names
    return bool(names)


def device_groups(devices: Sequence[Path]) -> list[int]:
    """Return the groups whose members may use devices, or those in folders; without root's."""
    files = [[*device.glob("render*")] if device.is_dir() else [device] for device in devices]
    return sorted({file.stat().st_gid for file in chain.from_iterable(files)} - {0})


def nvidia_libraries() -> dict[str, Path]:
    """Return the host's NVIDIA driver libraries by name, as the dynamic loader finds them."""
    ldconfig = shutil.which("ldconfig") or shutil.which("ldconfig", path="/usr/sbin:/sbin")
    if not ldconfig:
        return {}
    done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)
    libraries = parse_ldconfig(done.stdout)
    return {name: libraries[name] for name in sorted(libraries) if libraries[name].exists()}


def parse_ldconfig(text: str) -> dict[str, Path]:
    """Return the 64-bit NVIDIA driver libraries of ``ldconfig -p``; the first of a name wins."""
    found: dict[str, Path] = {}
    for line in text.splitlines():
        # libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
        left, _, path = line.strip().partition(" => ")
        name, _, kind = left.partition(" ")
        if re.fullmatch(table(__file__, _NAMES)["driver"], name) and path and "64" in kind:
            found.setdefault(name, Path(path))
    return found
