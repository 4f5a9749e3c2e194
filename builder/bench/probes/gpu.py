"""Probes of the GPUs: driver, architecture, a first computation."""

from __future__ import annotations

import ctypes
import os

from ..core import Run, fail, one_line, skip, warn
from ..machine.files import read, system_path
from ..machine.gpu import covers
from ..machine.variables import slowing
from ..measurements.accuracy import WRONG_RESULTS, random_matrix
from .framework import GIVE_AMD, GIVE_NVIDIA


def probe_driver(run: Run) -> str:
    """Check that the host's driver is in the container, and new enough for torch."""
    if run.build == "CPU":
        raise skip("CPU build")
    if run.options.expect == "none":
        raise skip("the recipe is for CPUs")
    return _amd_driver(run) if run.build == "HIP" else _nvidia_driver(run)


def _amd_driver(run: Run) -> str:
    device = system_path("/dev/kfd")
    if not os.path.exists(device):
        raise fail("there is no /dev/kfd", GIVE_AMD)
    if not os.access(device, os.R_OK | os.W_OK):
        advice = "join the groups video and render on the host, "
        advice += "and pass them on: --group-add keep-groups (podman)"
        raise fail("no permission to open /dev/kfd", advice)
    version = read("/sys/module/amdgpu/version") or "of the kernel"
    return f"driver amdgpu {version}, torch for HIP {run.torch.version.hip}"


def _nvidia_driver(run: Run) -> str:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        if "GLIBC" in str(e):
            advice = "the host's driver needs a newer glibc than the image has: "
            raise fail(one_line(e), advice + "use a newer base image") from None
        raise fail("libcuda.so.1 is not in the container", GIVE_NVIDIA) from None

    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        advice = "the host's driver does not work: try nvidia-smi there"
        raise fail("libcuda.so.1 does not report its version", advice)
    driver = (number.value // 1000, number.value % 1000 // 10)
    runtime = tuple(int(part) for part in run.torch.version.cuda.split(".")[:2])

    seen = f"driver for CUDA {driver[0]}.{driver[1]}, torch for CUDA {run.torch.version.cuda}"
    if driver[0] < runtime[0]:
        advice = "the driver is too old for this torch: update it, or lock torch for CUDA"
        raise fail(seen, f"{advice} {driver[0]}")
    if driver < runtime:
        seen += " (minor version compatibility)"
    return seen


def probe_architectures(run: Run) -> str:
    """Check that torch has code for every architecture of the recipe."""
    wanted = run.options.architectures
    if not wanted or run.build == "CPU":
        raise skip("CPU build" if wanted else "the recipe names no architecture")
    if not run.architectures():
        advice = "check in the package's documentation what it was built for"
        raise warn("torch does not report its architectures", advice)
    return _require_code(run, wanted, "torch has code for")


def probe_architecture(run: Run) -> str:
    """Check that torch has code for the GPUs of this node."""
    if not run.gpus or run.options.expect == "none":
        raise skip("no GPU")
    own = sorted({run.architecture(index) for index in range(run.gpus)})
    return _require_code(run, own, f"{' '.join(own)}; torch has code for")


def _require_code(run: Run, wanted: list[str], seen: str) -> str:
    """Return ``seen`` and the architectures of torch's code. Raises where one is missing."""
    known = run.architectures()
    seen = f"{seen} {' '.join(known)}"
    found = {name: covers(name, known) for name in wanted}
    missing = [name for name in wanted if found[name] == "no"]
    if missing:
        advice = f"torch has no code for {', '.join(missing)}: lock a build of torch that has"
        raise fail(seen, advice)
    compiled = ", ".join(name for name in wanted if found[name] == "jit")
    if compiled:
        advice = f"torch has only PTX for {compiled}: slow starts; "
        raise warn(seen, advice + "lock a build for this architecture")
    return seen


def probe_compute(run: Run) -> str:
    """Check that every GPU multiplies two small matrices, with the CPU's result."""
    gpus = run.need_gpus
    a = random_matrix(run, 256, seed=1)
    b = random_matrix(run, 256, seed=2)
    expected = a.double() @ b.double()
    for index in gpus:
        device = f"cuda:{index}"
        product = run.torch.mm(a.to(device), b.to(device)).double().cpu()
        error = float((product - expected).abs().max() / expected.abs().max())
        if not error <= 1e-2:
            raise fail(f"GPU {index}: a matrix product is off by {error:.2g}", WRONG_RESULTS)
    return f"{len(run.own_gpus)} with correct results"


def probe_variables(run: Run) -> str:
    """Check that no variable makes the GPUs slow."""
    if not run.own_gpus:
        raise skip("no GPU")
    seen = [f"{variable}: {effect}" for variable, effect in slowing(os.environ).items()]
    if seen:
        advice = "unset it where it is set (shell, job, image, site), unless it is on purpose"
        raise warn("; ".join(seen), advice)
    return "none that makes a GPU slow"
