"""Probes of the GPUs: driver, visible devices, architecture, a first computation, cuDNN or MIOpen."""

from __future__ import annotations

import ctypes
import os

from ..core import Run, fail, one_line, skip, warn
from ..machine.files import device_files, read, system_path
from ..machine.gpu import covers, why_no_gpu
from ..measurements.accuracy import random_matrix, wrong_results
from .pytorch import GIVE_AMD, GIVE_NVIDIA


def probe_driver(run: Run) -> str:
    """The host's driver is in the container, and new enough for torch."""
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
        advice = (
            "join the groups video and render on the host, and pass them on: --group-add keep-groups (podman)"
        )
        raise fail("no permission to open /dev/kfd", advice)
    version = read("/sys/module/amdgpu/version") or "of the kernel"
    return f"driver amdgpu {version}, torch for HIP {run.torch.version.hip}"


def _nvidia_driver(run: Run) -> str:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        if "GLIBC" in str(e):
            advice = "the host's driver needs a newer glibc than the image has: use a newer base image"
            raise fail(one_line(e), advice) from None
        raise fail("libcuda.so.1 is not in the container", GIVE_NVIDIA) from None

    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        raise fail(
            "libcuda.so.1 does not report its version",
            "the host's driver does not work: try nvidia-smi there",
        )
    driver = (number.value // 1000, number.value % 1000 // 10)
    runtime = tuple(int(part) for part in run.torch.version.cuda.split(".")[:2])

    seen = f"driver for CUDA {driver[0]}.{driver[1]}, torch for CUDA {run.torch.version.cuda}"
    if driver[0] < runtime[0]:
        raise fail(
            seen, f"the driver is too old for this torch: update it, or lock torch for CUDA {driver[0]}"
        )
    if driver < runtime:
        raise warn(
            seen, "this relies on CUDA's minor version compatibility; kernels compiled at run time may fail"
        )
    return seen


def probe_visible(run: Run) -> str:
    """torch sees as many GPUs as expected."""
    expect, wanted, count = run.options.expect, run.options.devices, run.gpus
    if expect == "none" or (expect == "auto" and not count and not wanted):
        raise skip("no GPU is expected")
    if not count:
        seen = f"torch sees no GPU: {why_no_gpu(run)}; device files: {' '.join(device_files()) or 'none'}"
        advice = (
            "give the container the GPU (--gpus all, --gpu, --nv, --rocm) and request one for the job; "
            "a CPU build of torch never sees a GPU"
        )
        raise fail(seen, advice)

    described = [f"{run.torch.cuda.get_device_name(i)} ({run.architecture(i)})" for i in range(count)]
    seen = f"{count}: {', '.join(described)}"
    local_ranks = run.place.local_ranks
    if count == 1 and run.place.ranks > 1:  # the launcher gave each rank one GPU
        count = local_ranks or wanted or 1
        seen += f" for each of {local_ranks or 'the'} ranks"
    if wanted is not None and count != wanted:
        advice = (
            f"{wanted} were expected: check CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, "
            "and how many GPUs the job requested"
        )
        raise fail(seen, advice)
    return seen


def probe_architecture(run: Run) -> str:
    """torch has code for the GPUs of this node."""
    if not run.gpus or run.options.expect == "none":
        raise skip("no GPU")
    known = run.architectures()
    own = sorted({run.architecture(i) for i in range(run.gpus)})
    seen = f"{' '.join(own)}; torch has code for {' '.join(known)}"
    for name in own:
        how = covers(name, known)
        if how == "no":
            raise fail(seen, f"torch has no code for {name}: lock a build of torch that has")
        if how == "jit":
            raise warn(
                seen,
                f"torch has only PTX for {name}, which the driver compiles at the first run: slow starts",
            )
    return seen


def probe_compute(run: Run) -> str:
    """Every GPU multiplies two small matrices, with the CPU's result."""
    gpus = run.need_gpus
    a = random_matrix(run, 256, seed=1)
    b = random_matrix(run, 256, seed=2)
    expected = a.double() @ b.double()
    for index in gpus:
        device = f"cuda:{index}"
        product = run.torch.mm(a.to(device), b.to(device)).double().cpu()
        error = float((product - expected).abs().max() / expected.abs().max())
        if not error <= 1e-2:
            raise fail(f"GPU {index}: a matrix product is off by {error:.2g}", wrong_results())
    return f"{len(run.own_gpus)} with correct results"


def probe_dnn(run: Run) -> str:
    """torch has cuDNN or MIOpen, for convolutions."""
    name = {"CUDA": "cuDNN", "HIP": "MIOpen"}.get(run.build)
    if name is None:
        raise skip("CPU build")
    if run.options.expect == "none":
        raise skip("the recipe is for CPUs")
    cudnn = run.torch.backends.cudnn
    if not cudnn.is_available():
        if not run.gpus:
            raise skip("torch reports it only where there is a GPU")
        raise fail(
            f"torch has no {name}",
            f"convolutions fail or are slow: lock {name}, and a build of torch that uses it",
        )
    if not cudnn.enabled:
        raise warn(f"{name} is disabled", "a program set torch.backends.cudnn.enabled = False: remove that")
    return f"{name} {cudnn.version()}"
