"""Probes of torch, TensorFlow and JAX: import, build for the recipe's GPUs, visible GPUs."""

from __future__ import annotations

import os
import re
import sys
import time

from ..core import Outcome, Run, fail, one_line, skip, warn
from ..frameworks import load_framework
from ..machine.files import device_files
from ..machine.gpu import why_no_gpu

GIVE_NVIDIA = (
    "give the container the host's driver: "
    "--gpus all (docker), --gpu (podman-hpc), --nv (apptainer)"
)
GIVE_AMD = (
    "give the container the GPU: --rocm (apptainer), "
    "--device /dev/kfd --device /dev/dri (docker, podman); a job must also request a GPU"
)
#: Variables that name the GPUs that a process may use.
_CHOICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
#: How to get a build for GPUs of a vendor.
_BUILDS = {
    ("torch", "nvidia"): "declare __cuda under virtual_packages in the recipe, and lock again",
    ("torch", "amd"): "use an index or channel with ROCm builds of torch, and lock again",
    ("tensorflow", "nvidia"): "lock pip's tensorflow[and-cuda], or conda's tensorflow-gpu",
    ("tensorflow", "amd"): "lock AMD's tensorflow-rocm, of repo.radeon.com/rocm/manylinux",
    ("jax", "nvidia"): "lock pip's jax[cuda12], or conda's jaxlib with a build for cuda",
    ("jax", "amd"): "lock pip's jax[rocm7-local], over a base with ROCm 7",
}


def probe_import(run: Run) -> str:
    """Check that the framework can be imported and computes."""
    name = run.options.framework
    started = time.perf_counter()
    try:
        loaded = load_framework(name)
    except ModuleNotFoundError as e:
        seen = f"{name} does not import: {e}"
        if e.name == name:
            seen = f"{name} is not installed in {sys.prefix}"
        advice = f"add {name} to the environment, lock and build again; "
        raise fail(seen, advice + "or test something else: 'smoke:'") from None
    except Exception as e:  # a missing library: OSError; an incomplete package: nearly anything
        raise fail(f"{name} does not import: {one_line(e)}", _import_advice(str(e), name)) from None

    if name == "torch":
        run.torch = loaded
    else:
        run.framework = loaded
    return f"{name} {run.module.__version__} in {time.perf_counter() - started:.1f} s"


def _import_advice(message: str, name: str) -> str:
    """Return the advice about an import of a framework that failed with this message."""
    if "libcuda.so" in message or "libnvidia" in message:
        return GIVE_NVIDIA
    if re.search("lib(amdhip|hsa|rocm|roc|rccl)", message):
        return "ROCm's libraries are missing from the image: add them; and " + GIVE_AMD
    if "GLIBC" in message:
        return "a library needs a newer glibc than the image's: use a newer base, or bind no host libraries"
    return f"a library is missing, or comes from another build than {name}: check the base image and the lock"


def probe_build(run: Run) -> str:
    """Check that the framework was built for the GPUs of the recipe."""
    name, expect = run.options.framework, run.options.expect
    seen = f"{run.build} build {run.runtime}".strip()
    wanted = {"nvidia": "CUDA", "amd": "HIP", "none": "CPU"}.get(expect, run.build)
    if wanted == run.build:
        return seen
    if wanted == "CPU":
        raise warn(seen, f"the recipe is for CPUs: lock a CPU build of {name}, which is smaller")
    raise fail(seen, f"the recipe is for {expect.upper()} GPUs: {_BUILDS[name, expect]}")


def probe_visible(run: Run) -> str:
    """Check that the framework sees as many GPUs as expected."""
    wanted, count = run.options.devices, run.gpus
    if run.options.expect == "none" or not count:
        raise _no_gpu(run)

    described = map(run.describe_gpu, range(count))
    listed = ", ".join(f"{gpu['name']} ({gpu['architecture']})" for gpu in described)
    seen = f"{count}: {listed}"
    found: int | None = count
    if count == 1 and run.place.ranks > 1:  # the launcher gave each rank one GPU
        found = run.place.local_ranks or wanted
        seen += f" for each of {run.place.local_ranks or 'the'} ranks"
    if wanted not in (None, found):
        advice = (
            f"{wanted} were expected: check CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, "
            "and how many GPUs the job requested"
        )
        raise fail(seen, advice)
    return seen


def _no_gpu(run: Run) -> Outcome:
    """Return the outcome of a framework that sees no GPU, or should not."""
    expect = run.options.expect
    if expect == "none" or (expect == "auto" and not run.options.devices):
        return skip("no GPU is expected")
    files = " ".join(device_files())
    advice = GIVE_AMD if expect == "amd" else GIVE_NVIDIA
    advice += ", and request one for the job; a CPU build never sees a GPU"
    chosen = [f"{name}={os.environ[name]}" for name in _CHOICES if name in os.environ]
    if files and chosen:  # the container has GPUs
        advice = f"{' '.join(chosen)} must name a GPU of this node; else {advice}"
    seen = f"{run.options.framework} sees no GPU: {why_no_gpu(run)}"
    return fail(f"{seen}; device files: {files or 'none'}", advice)
