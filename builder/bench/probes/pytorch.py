"""Probes of torch: can it be imported, and was it built for this recipe's GPUs?"""

from __future__ import annotations

import re
import sys
import time

from ..core import Run, fail, one_line, skip, warn
from ..machine.gpu import covers

GIVE_NVIDIA = (
    "give the container the host's driver: --gpus all (docker), --gpu (podman-hpc), --nv (apptainer)"
)
GIVE_AMD = (
    "give the container the GPU: --rocm (apptainer), --device /dev/kfd --device /dev/dri (docker, podman); "
    "a job must also request a GPU"
)


def probe_import(run: Run) -> str:
    """torch can be imported and computes."""
    started = time.perf_counter()
    try:
        import torch

        torch.ones(1).sum().item()
    except ModuleNotFoundError as e:
        seen = f"torch does not import: {e}"
        if e.name == "torch":
            seen = f"torch is not installed in {sys.prefix}"
        advice = "add torch to the environment, lock and build again; or run this with the image's python"
        raise fail(seen, advice) from None
    except Exception as e:  # a missing library raises OSError, an incomplete package nearly anything
        raise fail(f"torch does not import: {one_line(e)}", import_advice(str(e))) from None

    run.torch = torch
    run.import_s = time.perf_counter() - started
    return f"torch {torch.__version__} in {run.import_s:.1f} s"


def import_advice(message: str, name: str = "torch") -> str:
    """What to do about an import that failed with this message; ``name`` is the framework."""
    if "libcuda.so" in message or "libnvidia" in message:
        return GIVE_NVIDIA
    if re.search("lib(amdhip|hsa|rocm|roc|rccl)", message):
        return "ROCm's libraries are missing from the image: add them; and " + GIVE_AMD
    if "GLIBC" in message:
        return "a library needs a newer glibc than the image's: use a newer base, or bind no host libraries"
    return f"a library is missing, or comes from another build than {name}: check the base image and the lock"


def probe_build(run: Run) -> str:
    """torch was built for the GPUs of the recipe."""
    build, version = run.build, run.torch.version
    number = getattr(version, "hip", None) or getattr(version, "cuda", None) or ""
    seen = f"{build} build {number}".strip()

    wanted = {"nvidia": "CUDA", "amd": "HIP", "none": "CPU"}.get(run.options.expect, build)
    if wanted == build:
        return seen
    if wanted == "CPU":
        raise warn(seen, "the recipe is for CPUs: lock a CPU build of torch, which is several GB smaller")
    advice = "declare __cuda under virtual_packages in the recipe, and lock again"
    if wanted == "HIP":
        advice = "use an index or channel with ROCm builds of torch, and lock again"
    raise fail(seen, f"the recipe is for {run.options.expect.upper()} GPUs: {advice}")


def probe_architectures(run: Run) -> str:
    """torch has code for every architecture of the recipe."""
    wanted = run.options.architectures
    if not wanted:
        raise skip("the recipe names no architecture")
    if run.build == "CPU":
        raise skip("CPU build")

    known = run.architectures()
    if not known:
        raise warn(
            "torch does not report its architectures",
            "check in the package's documentation what it was built for",
        )
    seen = " ".join(known)
    missing = [name for name in wanted if covers(name, known) == "no"]
    if missing:
        raise fail(
            seen, f"torch has no code for {', '.join(missing)} of the recipe: lock a build of torch that has"
        )
    compiled = [name for name in wanted if covers(name, known) == "jit"]
    if compiled:
        raise warn(
            seen,
            f"torch has only PTX for {', '.join(compiled)}, which the driver compiles at the first run: "
            "starts are slow; lock a build of torch for this architecture",
        )
    return seen
