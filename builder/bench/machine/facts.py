"""The facts in the report about the machine and the image, as far as they can be read."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys

from ..core import Item, Run
from .files import read, system_path
from .gpu import identity
from .processor import cpu_model, physical_cores, quota, usable_cores
from .variables import variables

#: Where an image has its lock.
LOCK = "/opt/builder/conda-lock.yml"


def facts(run: Run) -> Item:
    """Return the facts about the machine and the image."""
    python = {"version": platform.python_version(), "executable": sys.executable}
    system = {"machine": platform.machine(), "kernel": platform.release()}
    out: Item = {
        "host": host_name(),
        "python": {**python, "prefix": sys.prefix},
        "system": {**system, "glibc": platform.libc_ver()[1]},
        "cpu": {
            "model": cpu_model(),
            "cores": os.cpu_count() or 0,
            "usable_cores": usable_cores(),
            "physical_cores": physical_cores(),
            "quota_cores": quota(),
        },
        "lock": lock_digest(),
        "variables": variables(),
    }
    if run.torch is not None:
        out["torch"] = torch_facts(run)
    if run.framework is not None:
        out["framework"] = framework_facts(run)
    if run.own_gpus:
        out["devices"] = [gpu_facts(run, index) for index in run.own_gpus]
        out["driver"] = read("/sys/module/nvidia/version") or read("/sys/module/amdgpu/version")
    return out


def lock_digest() -> str:
    """Return ``sha256:...`` of the image's lock; empty outside of an image."""
    try:
        with open(system_path(LOCK), "rb") as f:
            return "sha256:" + hashlib.sha256(f.read()).hexdigest()
    except OSError:
        return ""


def framework_facts(run: Run) -> Item:
    """Return name, version and build of TensorFlow or JAX."""
    framework = run.framework
    return {
        "name": framework.name,
        "version": str(framework.module.__version__),
        "build": framework.build,
        "runtime": framework.runtime,
        "gpus": framework.gpus,
    }


def host_name() -> str:
    """Return the node's name, from Slurm if possible: a container may have another host name."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def available_memory() -> int:
    """Return the bytes of memory that programs may still use, within limits; 0 if unknown."""
    found = re.search(r"MemAvailable: +(\d+) kB", read("/proc/meminfo"))
    available = int(found[1]) * 1024 if found else 0
    limit = read("/sys/fs/cgroup/memory.max") or read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return min(int(limit), available) if limit.isdigit() else available


def torch_facts(run: Run) -> Item:
    """Return version and build of torch."""
    torch = run.torch
    return {
        "version": str(torch.__version__),
        "build": run.build,
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "architectures": run.architectures() if run.build != "CPU" else [],
        "cudnn": torch.backends.cudnn.version() if run.gpus else None,
    }


def gpu_facts(run: Run, index: int) -> Item:
    """Return name, identity and size of a GPU."""
    out = {**run.describe_gpu(index), "rank": run.place.rank, "host": host_name()}
    if run.torch is None:
        return out
    properties = run.torch.cuda.get_device_properties(index)
    out["memory_bytes"] = int(properties.total_memory)
    out["multiprocessors"] = int(properties.multi_processor_count)
    return {**out, **identity(run, index)}
