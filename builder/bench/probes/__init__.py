"""The list of all probes, in the order in which they run and in which the report shows them.

A probe returns what it found if it passed, and raises ``fail``, ``warn`` or ``skip`` otherwise. docs/smoke.md
explains every one of them.
"""

from __future__ import annotations

from functools import partial

from ..core import ANY, FRAMEWORKS, Probe
from . import (
    compiler,
    conclusion,
    framework,
    glibc,
    gpu,
    gpu_health,
    gpu_memory,
    gpu_variables,
    home,
    miopen,
    network,
    processor,
    python,
    pytorch,
    system,
)

PROBES: list[Probe] = [
    Probe("torch.import", pytorch.probe_import),
    Probe("torch.build", pytorch.probe_build),
    Probe("torch.architectures", pytorch.probe_architectures),
    Probe("tensorflow.import", partial(framework.probe_import, name="tensorflow"), of=("tensorflow",)),
    Probe("tensorflow.build", partial(framework.probe_build, name="tensorflow"), of=("tensorflow",)),
    Probe("tensorflow.devices", partial(framework.probe_devices, name="tensorflow"), of=("tensorflow",)),
    Probe("jax.import", partial(framework.probe_import, name="jax"), of=("jax",)),
    Probe("jax.build", partial(framework.probe_build, name="jax"), of=("jax",)),
    Probe("jax.devices", partial(framework.probe_devices, name="jax"), of=("jax",)),
    Probe("gpu.driver", gpu.probe_driver),
    Probe("gpu.visible", gpu.probe_visible),
    Probe("gpu.idle", gpu_health.probe_idle),  # before this process uses the GPU
    Probe("gpu.variables", gpu_variables.probe_variables),
    Probe("gpu.architecture", gpu.probe_architecture),
    Probe("gpu.compute", gpu.probe_compute),
    Probe("gpu.ecc", gpu_health.probe_ecc),
    Probe("gpu.persistence", gpu_health.probe_persistence),
    Probe("gpu.dnn", gpu.probe_dnn),
    Probe("nccl.version", network.probe_version),
    Probe("nccl.interface", network.probe_interface),
    Probe("miopen.cache", miopen.probe_cache, of=FRAMEWORKS),
    Probe("cpu.affinity", processor.probe_affinity, of=ANY),
    Probe("gpu.distance", processor.probe_distance),
    Probe("cpu.threads", processor.probe_threads, of=ANY),
    Probe("memory.shm", system.probe_shm, of=ANY),
    Probe("python.usersite", python.probe_user_site, of=ANY),
    Probe("python.path", python.probe_path, of=ANY),
    Probe("system.home", home.probe_home, of=ANY),
    Probe("system.certificates", system.probe_certificates, of=ANY),
    Probe("system.tmp", system.probe_tmp, of=ANY),
    Probe("system.locale", system.probe_locale, of=ANY),
    Probe("system.timezone", system.probe_time_zone, of=ANY),
    Probe("system.glibc", glibc.probe_glibc, of=ANY),
    # after the measurements
    Probe("nccl.transport", network.probe_transport, late=True),
    Probe("gpu.clocks", gpu_health.probe_clocks, late=True),
    Probe("gpu.link", gpu_health.probe_link, late=True),  # of the load for gpu.clocks
    Probe("gpu.memory", gpu_memory.probe_memory, late=True),
    Probe("torch.compile", compiler.probe_compile, late=True),
    Probe("machine.steady", conclusion.probe_steady, late=True, of=FRAMEWORKS),
    Probe("time.budget", conclusion.probe_budget, late=True, of=ANY),
]

#: If one of these cannot be carried out at all, that is a warning; for all others it is a failure.
MINOR = (
    "python.",
    "system.",
    "memory.shm",
    "cpu.",
    "machine.",
    "gpu.ecc",
    "gpu.pers",
    "gpu.dist",
    "gpu.clocks",
    "gpu.idle",
    "gpu.link",
    "gpu.variables",
    "torch.compile",
)
