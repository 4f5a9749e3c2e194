"""The facts in the report: what the machine and the image are. What cannot be read is left out."""

from __future__ import annotations

import os
import platform
import re
import sys

from ..core import Item, Run
from .files import read
from .gpu import gpu_state, identity, pci_address
from .processor import cpu_model, load_average, physical_cores, quota, usable_cores
from .variables import variables


def facts(run: Run) -> Item:
    """What the machine and the image are."""
    out: Item = {
        "host": host_name(),
        "python": {"version": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix},
        "system": {
            "machine": platform.machine(),
            "kernel": platform.release(),
            "glibc": platform.libc_ver()[1],
        },
        "cpu": {
            "model": cpu_model(),
            "cores": os.cpu_count() or 0,
            "usable_cores": usable_cores(),
            "physical_cores": physical_cores(),
            "quota_cores": quota(),
        },
        "memory": memory(),
        "variables": variables(),
    }
    load = load_average()
    if load is not None:
        out["load_before"] = load
    if run.torch is not None:
        out["torch"] = torch_facts(run)
    if run.framework is not None:
        out["framework"] = framework_facts(run)
    if run.own_gpus:
        out["devices"] = [gpu_facts(run, index) for index in run.own_gpus]
        out["driver"] = read("/sys/module/nvidia/version") or read("/sys/module/amdgpu/version")
    return out


def framework_facts(run: Run) -> Item:
    """Name, version and build of TensorFlow or JAX."""
    framework = run.framework
    return {
        "name": framework.name,
        "version": str(framework.module.__version__),
        "build": framework.build,
        "runtime": framework.runtime,
        "gpus": framework.gpus,
        "path": os.path.dirname(str(framework.module.__file__)),
    }


def host_name() -> str:
    """The name of the node. A container may have another host name, so Slurm's name comes first."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def memory() -> Item:
    """Bytes of memory: of the machine and of the control group's limit."""
    out: Item = {}
    for line in read("/proc/meminfo").splitlines():
        for key, name in (("MemTotal:", "total_bytes"), ("MemAvailable:", "available_bytes")):
            if line.startswith(key):
                out[name] = int(line.split()[1]) * 1024

    limit = read("/sys/fs/cgroup/memory.max") or read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit.isdigit() and int(limit) < 1 << 60:  # version 1 writes "no limit" as a huge number
        out["limit_bytes"] = int(limit)
        out["available_bytes"] = min(int(limit), out.get("available_bytes", int(limit)))
    return out


def torch_facts(run: Run) -> Item:
    """Version and build of torch."""
    torch = run.torch
    return {
        "version": str(torch.__version__),
        "build": run.build,
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "path": os.path.dirname(str(torch.__file__)),
        "threads": torch.get_num_threads(),
        "architectures": run.architectures() if run.build != "CPU" else [],
        "cudnn": torch.backends.cudnn.version() if run.gpus else None,
    }


def gpu_facts(run: Run, index: int) -> Item:
    """Name, identity, size and place of a GPU, and its state before the measurements (``before``)."""
    out = {**run.describe_gpu(index), "rank": run.place.rank, "host": host_name()}
    if run.torch is None:
        return out
    properties = run.torch.cuda.get_device_properties(index)
    out["memory_bytes"] = int(properties.total_memory)
    out["multiprocessors"] = int(properties.multi_processor_count)
    address = pci_address(run, index)
    if address:
        out["pci_address"] = address
        node = read(f"/sys/bus/pci/devices/{address}/numa_node")
        if re.fullmatch(r"-?\d+", node):
            out["numa_node"] = int(node)
    out["before"] = gpu_state(run, index)
    return {**out, **identity(run, index)}
