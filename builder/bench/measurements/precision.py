"""Precisions of floating-point numbers: their limits, and which device has them in hardware."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core import Run
from ..machine.processor import cpu_flags


class Precision(NamedTuple):
    """A precision of matrix products."""

    #: The name of torch's type.
    dtype: str
    #: The largest error of a product that is right, see ``accuracy.product_error``.
    limit: float


PRECISIONS = {
    "fp32": Precision("float32", 1e-4),
    "tf32": Precision("float32", 1e-2),
    "fp16": Precision("float16", 2e-2),
    "bf16": Precision("bfloat16", 5e-2),
}

#: The first major version of CUDA's compute capability with this precision.
_CUDA_SINCE = {"fp16": 6, "bf16": 8, "tf32": 8}


def unsupported(run: Run, precision: str) -> str:
    """Why this device does not have a precision in hardware; empty if it has."""
    if precision == "fp32":
        return ""
    if not run.on_gpu:
        supported = precision == "bf16" and bool({"avx512_bf16", "amx_bf16"} & cpu_flags())
        return "" if supported else f"this processor has no {precision}"

    name = run.architecture(run.index)
    if run.build == "HIP":
        supported = _on_amd(name, precision)
    else:
        major = int(run.torch.cuda.get_device_properties(run.index).major)
        supported = major >= _CUDA_SINCE[precision]
    return "" if supported else f"{name} has no {precision}"


def _on_amd(name: str, precision: str) -> bool:
    if precision == "fp16" or name.startswith(("gfx94", "gfx95")):
        return True
    return precision != "tf32" and name not in ("gfx900", "gfx906")


class AllowTF32:
    """A context in which products of float32 matrices may use TF32, or may not."""

    def __init__(self, torch: Any, allow: bool) -> None:
        self.matmul = torch.backends.cuda.matmul
        self.allow = allow

    def __enter__(self) -> None:
        self.before = self.matmul.allow_tf32
        self.matmul.allow_tf32 = self.allow

    def __exit__(self, *exception: Any) -> None:
        self.matmul.allow_tf32 = self.before
