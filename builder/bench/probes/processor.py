"""Probes of the processor: cores that this process may use, their distance to the GPU, threads."""

from __future__ import annotations

import os

from ..core import Run, fail, skip, warn
from ..machine import processor
from ..machine.files import read
from ..machine.gpu import pci_address


def probe_affinity(run: Run) -> str:
    """This process may use more than one core."""
    usable, total = processor.usable_cores(), os.cpu_count() or 1
    seen = f"{usable} of {total} cores"
    if run.torch is not None:
        seen += f", {run.torch.get_num_threads()} threads"

    advice = "request more cores (--cpus-per-task, --cpu-bind, --cpuset-cpus)"
    if usable == 1 < total:
        raise fail(seen, f"all threads share one core: {advice}")
    if processor.physical_cores() == 1 < usable and total > 2:
        raise fail(seen, f"these are the hardware threads of one core: {advice}")

    quota = processor.quota()
    if quota is not None and quota < 1:
        seen += f", and a quota of {quota:.2g}"
        raise warn(seen, "the control group allows less than one core: raise the container's --cpus")
    return seen


def probe_distance(run: Run) -> str:
    """This rank may use cores near its GPU (Linux: local_cpulist of the PCI device)."""
    cores = processor.affinity()
    near: dict[int, set[int]] = {}
    for index in run.need_gpus:
        local = read(f"/sys/bus/pci/devices/{pci_address(run, index)}/local_cpulist")
        if local:
            near[index] = processor.parse_cores(local)
    if not near:
        raise skip("the system does not report which cores are near")

    described = [f"GPU {index} {processor.format_cores(local)}" for index, local in near.items()]
    seen = f"cores {processor.format_cores(cores)}; near: {'; '.join(described)}"
    far = [index for index, local in near.items() if not local & cores]
    if far and (run.place.ranks > 1 or len(far) == len(near)):
        wanted = processor.format_cores(near[far[0]])
        advice = (
            f"copies to GPU {far[0]} cross the sockets: bind this rank to cores {wanted} "
            "(srun --gpu-bind=closest, or --cpu-bind=map_cpu)"
        )
        raise warn(seen, advice)
    return seen


def probe_threads(run: Run) -> str:
    """OMP_NUM_THREADS fits the number of cores."""
    value, usable = os.environ.get("OMP_NUM_THREADS"), processor.usable_cores()
    if not value:
        return "OMP_NUM_THREADS is not set"
    seen = f"OMP_NUM_THREADS={value} for {usable} cores"
    try:
        threads = int(value.split(",")[0])
    except ValueError:
        threads = 0
    if threads < 1:
        raise warn(seen, "this is not a number of threads: correct it, or unset it")

    too_many = "more threads than cores, so that threads wait for each other: set it to the cores per rank"
    local_ranks = run.place.local_ranks
    whole_node = usable == (os.cpu_count() or 1)
    if local_ranks > 1 and whole_node and threads * local_ranks > usable:
        raise warn(f"{seen} and {local_ranks} ranks", too_many)
    if threads > usable:
        raise warn(seen, too_many)
    if threads == 1 < usable and run.options.expect == "none" and run.place.ranks == 1:
        raise warn(seen, "one thread computes: unset it, or set it to the number of cores")
    return seen
