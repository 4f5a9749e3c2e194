"""The probe of the environment variables that make a GPU slower than it is."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple

from ..core import Run, skip, warn
from ..machine.network import fast_fabric
from ..machine.variables import settings


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "no", "off")


def _is_set(value: str) -> bool:
    return bool(value.strip())


def _is(*wanted: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in wanted


def _is_a_part(value: str) -> bool:
    found = re.fullmatch(r"\s*(\d+(\.\d+)?)\s*", value)
    return found is not None and float(found[1]) < 100


class _Trap(NamedTuple):
    """A variable with an effect that surprises."""

    #: A regular expression for whole names.
    names: str
    #: Whether a value has this effect.
    matters: Callable[[str], bool]
    effect: str
    #: Only where several ranks communicate.
    collective: bool = False


_TRAPS = (
    _Trap(
        "(CUDA|HIP)_LAUNCH_BLOCKING|AMD_SERIALIZE_(KERNEL|COPY)", _is_on, "the host waits for every kernel"
    ),
    # torch up to 2.5 takes 0 for 1 (pytorch#145661)
    _Trap("PYTORCH_NO_(CUDA|HIP)_MEMORY_CACHING", _is_set, "every tensor is allocated by the driver"),
    _Trap("NVIDIA_TF32_OVERRIDE", _is("0"), "tf32 runs at the speed of fp32"),
    _Trap("NVIDIA_TF32_OVERRIDE", _is("1"), "fp32 products have the precision of tf32"),
    _Trap("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", _is_on, "fp32 products have the precision of tf32"),
    _Trap("HSA_CU_MASK|ROC_GLOBAL_CU_MASK", _is_set, "programs use a part of the GPU's compute units"),
    _Trap("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", _is_a_part, "programs use a part of the GPU"),
    _Trap("CUDA_FORCE_PTX_JIT", _is_on, "the driver compiles all kernels at the first run"),
    _Trap("CUBLAS_WORKSPACE_CONFIG", _is(":16:8"), "the small workspace makes matrix products slower"),
    _Trap("MIOPEN_FIND_MODE", _is("1", "NORMAL"), "MIOpen tries all kernels for each new convolution"),
    _Trap("NCCL_P2P_DISABLE", _is_on, "GPUs exchange data through the host's memory", True),
    _Trap("NCCL_SHM_DISABLE", _is_on, "processes of a node exchange data through the network", True),
    _Trap("NCCL_NVLS_ENABLE", _is("0"), "all-reduce does not use the NVSwitch", True),
    _Trap("NCCL_(ALGO|PROTO)", _is_set, "NCCL does not choose the fastest way by itself", True),
    _Trap("TORCH_DISTRIBUTED_DEBUG", _is("DETAIL"), "torch checks every collective", True),
    _Trap("TORCH_NCCL_NAN_CHECK", _is_on, "torch reads all data before every collective", True),
)
_TCP = _Trap("NCCL_IB_DISABLE", _is_on, "nodes exchange data by TCP", True)


def probe_variables(run: Run) -> str:
    """No variable makes the GPUs slow."""
    if not run.own_gpus:
        raise skip("no GPU")
    traps = list(_TRAPS)
    if run.place.ranks > max(run.place.local_ranks, 1) and fast_fabric() == "InfiniBand":
        traps.append(_TCP)

    found = settings()
    seen = [
        f"{name}={found[name]}: {trap.effect}"
        for trap in traps
        for name in sorted(found)
        if re.fullmatch(trap.names, name) and trap.matters(found[name]) and _applies(trap, run)
    ]
    if seen:
        raise warn(
            "; ".join(seen), "unset it where it is set (shell, job, image, site), unless it is on purpose"
        )
    return "none that makes a GPU slow"


def _applies(trap: _Trap, run: Run) -> bool:
    return run.place.ranks > 1 or not trap.collective
