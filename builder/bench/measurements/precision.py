"""Precisions of floating-point numbers: their limits, and which device has them in hardware."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ..core import Run
from ..machine.processor import cpu_flags
from .accuracy import random_matrix


class Precision(NamedTuple):
    """A precision of matrix products."""

    #: The name of torch's type.
    dtype: str
    #: The largest error of a product that is right, see ``accuracy.product_error``.
    limit: float


PRECISIONS = {
    "fp64": Precision("float64", 1e-11),
    "fp32": Precision("float32", 1e-4),
    "tf32": Precision("float32", 1e-2),
    "fp16": Precision("float16", 2e-2),
    "bf16": Precision("bfloat16", 5e-2),
    "fp8": Precision("float8_e4m3fn", 5e-2),
}

#: The first version of CUDA's compute capability with this precision.
_CUDA_SINCE = {"fp16": (6, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}
#: Size of the products that show whether TF32 is in force.
_TF32_SIZE = 1024


def unsupported(run: Run, precision: str) -> str:
    """Return the reason why this device does not have a precision in hardware; empty if it has."""
    if precision == "fp32" and _forces_tf32(run):
        return "NVIDIA_TF32_OVERRIDE=1: products of float32 matrices use TF32"
    if precision in ("fp32", "fp64"):
        return ""
    if not run.on_gpu:
        supported = precision == "bf16" and bool({"avx512_bf16", "amx_bf16"} & cpu_flags())
        return "" if supported else f"this processor has no {precision}"

    name = run.architecture(run.index)
    if run.build == "HIP":
        supported = _on_amd(name, precision)
    else:
        properties = run.torch.cuda.get_device_properties(run.index)
        supported = (int(properties.major), int(properties.minor)) >= _CUDA_SINCE[precision]
    return "" if supported else f"{name} has no {precision}"


def _forces_tf32(run: Run) -> bool:
    """Return whether NVIDIA's libraries use TF32 even where torch asks for fp32."""
    forced = run.on_gpu and run.build == "CUDA" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "1"
    return forced and not unsupported(run, "tf32")


def _on_amd(name: str, precision: str) -> bool:
    if precision == "fp16" or name.startswith(("gfx94", "gfx95")):
        return True
    if precision == "fp8":
        return name.startswith("gfx12")
    return precision != "tf32" and name not in ("gfx900", "gfx906")


def dtype_of(run: Run, precision: str) -> Any:
    """Return torch's type of a precision; None if this version of torch does not have it."""
    name = PRECISIONS[precision].dtype
    if precision == "fp8" and run.architecture(run.index).startswith("gfx94"):
        name = "float8_e4m3fnuz"  # MI300 has only this variant
    return getattr(run.torch, name, None)


def tf32_off(run: Run) -> str:
    """Return the reason why products of float32 matrices do not use TF32; empty if they do.

    The switch has no effect on AMD GPUs with torch before 2.6, and up to about 2.9 only with
    ``HIPBLASLT_ALLOW_TF32``; ``NVIDIA_TF32_OVERRIDE=0`` overrides it. A product shows it: if TF32
    is in force, its bits differ.
    """
    torch = run.torch
    a = random_matrix(run, _TF32_SIZE, 9, run.device)
    found = []
    for allow in (False, True):
        with AllowTF32(torch, allow):
            found.append(torch.matmul(a, a))
    if not torch.equal(*found):
        return ""
    return "the switch for TF32 has no effect with this torch on this GPU"


class AllowTF32:
    """A context in which products of float32 matrices may use TF32, or may not.

    Afterwards they may not. The switch is only written: torch 2.9 and later raise if it is read
    after something used the newer switch ``fp32_precision``.
    """

    def __init__(self, torch: Any, allow: bool) -> None:
        self.matmul = torch.backends.cuda.matmul
        self.allow = allow

    def __enter__(self) -> None:
        self.matmul.allow_tf32 = self.allow

    def __exit__(self, *exception: Any) -> None:
        self.matmul.allow_tf32 = False
