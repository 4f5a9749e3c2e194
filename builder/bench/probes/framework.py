"""Probes of TensorFlow and JAX: can it be imported, was it built for the recipe's GPUs, does it use them?"""

from __future__ import annotations

import sys
import time

from ..core import Run, fail, one_line, skip, warn
from ..frameworks import load_framework
from ..machine.files import device_files
from ..measurements.accuracy import wrong_results
from ..measurements.products import numpy_error, random_matrices
from .pytorch import GIVE_AMD, GIVE_NVIDIA, import_advice

#: How to get a build for GPUs of a vendor.
_BUILDS = {
    ("tensorflow", "nvidia"): "pip's tensorflow[and-cuda], or conda's tensorflow-gpu",
    ("tensorflow", "amd"): "pip's tensorflow-rocm",
    ("jax", "nvidia"): "pip's jax[cuda12], or conda's jaxlib with a build for cuda",
    ("jax", "amd"): "pip's jax[rocm]",
}


def probe_import(run: Run, name: str) -> str:
    """The framework can be imported and computes."""
    started = time.perf_counter()
    try:
        framework = load_framework(name)
        count = framework.gpus
    except ModuleNotFoundError as e:
        seen = f"{name} does not import: {e}"
        if e.name == name:
            seen = f"{name} is not installed in {sys.prefix}"
        advice = (
            f"add {name} to the environment, lock and build again; or test something else: 'smoke:' of the "
            "recipe"
        )
        raise fail(seen, advice) from None
    except Exception as e:  # a missing library raises OSError, an incomplete package nearly anything
        raise fail(f"{name} does not import: {one_line(e)}", import_advice(str(e), name)) from None

    run.framework = framework
    run.import_s = time.perf_counter() - started
    return f"{name} {framework.version} in {run.import_s:.1f} s, {count} GPUs"


def probe_build(run: Run, name: str) -> str:
    """The framework was built for the GPUs of the recipe."""
    framework = run.need_framework
    seen = f"{framework.build} build {framework.runtime}".strip()
    expect = run.options.expect
    wanted = {"nvidia": "CUDA", "amd": "HIP", "none": "CPU"}.get(expect, framework.build)
    if wanted == framework.build:
        return seen
    if wanted == "CPU":
        raise warn(seen, f"the recipe is for CPUs: lock a CPU build of {name}, which is smaller")
    advice = f"the recipe is for {expect.upper()} GPUs: lock {_BUILDS[name, expect]}"
    raise fail(seen, advice)


def probe_devices(run: Run, name: str) -> str:
    """The framework sees the expected number of GPUs, and each of them multiplies two small matrices."""
    framework = run.need_framework
    expect, wanted, count = run.options.expect, run.options.devices, framework.gpus
    if expect == "none" or (expect == "auto" and not count and not wanted):
        raise skip("no GPU is expected")
    if not count:
        seen = f"{name} sees no GPU; device files: {' '.join(device_files()) or 'none'}"
        advice = GIVE_AMD if expect == "amd" else GIVE_NVIDIA
        raise fail(seen, f"{advice}; a CPU build never sees a GPU")

    described = [framework.describe_gpu(index) for index in range(count)]
    listed = ", ".join(f"{gpu['name']} ({gpu['architecture']})" for gpu in described)
    seen = f"{count}: {listed}"
    if wanted is not None and count != wanted and run.place.ranks == 1:
        advice = f"{wanted} were expected: check what the job requested, and CUDA_VISIBLE_DEVICES"
        raise fail(seen, advice)
    for index in run.own_gpus:
        a, b = random_matrices(256)
        error = numpy_error(a, b, framework.product(a, b, "fp32", f"cuda:{index}")[1])
        if not error <= 1e-2:
            raise fail(f"GPU {index}: a matrix product is off by {error:.2g}", wrong_results())
    return seen
