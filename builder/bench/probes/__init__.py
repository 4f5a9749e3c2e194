"""The list of all probes, in the order in which they run and in which the report shows them.

A probe returns what it found if it passed, and raises ``fail``, ``warn`` or ``skip`` otherwise.
docs/smoke.md explains every one of them.
"""

from __future__ import annotations

import re

from ..core import ANY, FRAMEWORKS, Probe
from . import framework, gpu, gpu_health, gpu_memory, network, system

PROBES: list[Probe] = [
    *(Probe(f"{name}.import", framework.probe_import, of=(name,)) for name in FRAMEWORKS),
    *(Probe(f"{name}.build", framework.probe_build, of=(name,)) for name in FRAMEWORKS),
    Probe("torch.architectures", gpu.probe_architectures),
    Probe("tensorflow.devices", framework.probe_visible, of=("tensorflow",)),
    Probe("jax.devices", framework.probe_visible, of=("jax",)),
    Probe("gpu.driver", gpu.probe_driver),
    Probe("gpu.visible", framework.probe_visible),
    Probe("gpu.idle", gpu_health.probe_idle),  # before this process uses the GPU
    Probe("gpu.variables", gpu.probe_variables),
    Probe("gpu.architecture", gpu.probe_architecture),
    Probe("gpu.compute", gpu.probe_compute),
    Probe("gpu.ecc", gpu_health.probe_ecc),
    Probe("gpu.nvlink", gpu_health.probe_nvlink),
    Probe("nccl.interface", network.probe_interface),
    Probe("cpu.affinity", system.probe_affinity, of=ANY),
    Probe("memory.shm", system.probe_shm, of=ANY),
    Probe("python.path", system.probe_path, of=ANY),
    Probe("system.home", system.probe_home, of=ANY),
    Probe("system.tmp", system.probe_tmp, of=ANY),
    # after the measurements
    Probe("nccl.transport", network.probe_transport, late=True),
    Probe("gpu.clocks", gpu_health.probe_clocks, late=True),
    Probe("gpu.memory", gpu_memory.probe_memory, late=True),
    Probe("time.budget", system.probe_budget, late=True, of=ANY),
]

#: If one of these cannot be carried out at all, that is a warning; for all others it is a failure.
MINOR = re.compile(r"python\.|system\.|memory\.shm|cpu\.|gpu\.(ecc|nvlink|clocks|idle|variables)")
