"""What explains a low value apart from a fault of the GPU: environment variables, and the GPU's state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from builder.smoke.finding import clock_state
from builder.smoke.values import Report, Value, mapping, rank_item

_ALL = ("matmul.", "memory.", "transfer.", "allreduce", "conv.", "attention", "training")
_COMPUTE = ("matmul.", "conv.", "attention", "training")

#: Variables that slow measurements down: name, value, and the beginnings of the measurements' names.
_SLOWING: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("NVIDIA_TF32_OVERRIDE", "0", ("matmul.tf32",)),
    ("(CUDA|HIP)_LAUNCH_BLOCKING", "[1-9]", _ALL),
    ("AMD_SERIALIZE_(KERNEL|COPY)", "[1-9]", _ALL),
    ("PYTORCH_NO_(CUDA|HIP)_MEMORY_CACHING", "1|true", _COMPUTE),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", r"\d\d?(\.\d+)?", (*_COMPUTE, "memory.")),
    ("HSA_CU_MASK|ROC_GLOBAL_CU_MASK", ".+", (*_COMPUTE, "memory.")),
    ("HSA_ENABLE_SDMA", "0", ("transfer.",)),
    ("TORCH_BLAS_PREFER_HIPBLASLT", "0", ("matmul.",)),
    ("NCCL_(P2P|SHM)_DISABLE", "1", ("allreduce",)),
    ("NCCL_NVLS_ENABLE", "0", ("allreduce",)),
    ("NCCL_(ALGO|PROTO|P2P_LEVEL|MAX_NCHANNELS|MAX_CTAS|NTHREADS)", ".+", ("allreduce",)),
)
#: What a measurement samples while it runs, see ``bench/machine/monitor.py``.
_SAMPLED = ("clock_mhz", "temperature_c", "throttled")


def variables_of(report: Report) -> Mapping[str, Any]:
    """The environment variables in a report's facts; empty if there are none."""
    return mapping(report.get("facts", {}).get("variables"))


def slowing_variables(report: Report, measurement: str) -> list[str]:
    """The environment variables of a run that slow a measurement down, as ``NAME=value``."""
    return [
        f"{name}={value}"
        for name, value in sorted(variables_of(report).items())
        if any(
            re.fullmatch(names, name) and re.fullmatch(values, str(value)) and measurement.startswith(ids)
            for names, values, ids in _SLOWING
        )
    ]


def state_of(value: Value, measurement: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The GPU's state while a value was measured, otherwise after all measurements; empty if it is unknown.

    Args:
        value: the value.
        measurement: the measurement that it is from.
        facts: the facts about its GPU.
    """
    known = mapping(facts.get("after"))
    own = rank_item(value, measurement)
    return clock_state({**known, **{key: own[key] for key in _SAMPLED if key in own}})
