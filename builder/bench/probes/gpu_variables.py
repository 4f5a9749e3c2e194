"""The probe of the environment variables that make a GPU slower than it is."""

from __future__ import annotations

import re

from ..core import Run, skip, warn
from ..machine.variables import settings

_ON = "(?!0$|false$|no$|off$).+"
#: Regular expressions for whole names and for values, and their effect.
_TRAPS = (
    ("(CUDA|HIP)_LAUNCH_BLOCKING", _ON, "the host waits for every kernel"),
    ("AMD_SERIALIZE_(KERNEL|COPY)", _ON, "the host waits for every kernel"),
    # torch up to 2.5 takes 0 for 1 (pytorch#145661)
    ("PYTORCH_NO_(CUDA|HIP)_MEMORY_CACHING", ".+", "every tensor is allocated by the driver"),
    ("NVIDIA_TF32_OVERRIDE", "0", "tf32 runs at the speed of fp32"),
    ("NVIDIA_TF32_OVERRIDE", "1", "fp32 products have the precision of tf32"),
    ("HSA_CU_MASK|ROC_GLOBAL_CU_MASK", ".+", "programs use a part of the GPU's compute units"),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", r"\d\d?(\.\d+)?", "programs use a part of the GPU"),
    ("NCCL_P2P_DISABLE", _ON, "GPUs exchange data through the host's memory"),
    ("NCCL_SHM_DISABLE", _ON, "processes of a node exchange data through the network"),
    ("NCCL_(ALGO|PROTO)", ".+", "NCCL does not choose the fastest way by itself"),
)


def probe_variables(run: Run) -> str:
    """No variable makes the GPUs slow."""
    if not run.own_gpus:
        raise skip("no GPU")
    seen = [
        f"{name}={value}: {effect}"
        for name, value in sorted(settings().items())
        for names, values, effect in _TRAPS
        if re.fullmatch(names, name) and re.fullmatch(values, value.strip(), re.IGNORECASE)
    ]
    if seen:
        advice = "unset it where it is set (shell, job, image, site), unless it is on purpose"
        raise warn("; ".join(seen), advice)
    return "none that makes a GPU slow"
