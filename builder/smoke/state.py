"""What a value was measured on, the state of its GPU, and what explains a low value apart from it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from builder.smoke.values import (
    Report,
    Value,
    cores_of,
    devices_of,
    facts_of,
    mapping,
    mappings,
    number,
    rank_item,
)

#: Reasons for a lower clock that are usual under full load, on a healthy GPU.
_USUAL = ("power cap",)
#: The load before a test may be this fraction of the cores on a machine that counts as idle.
_IDLE_LOAD = 0.25
#: Other processes may take this fraction of a CPU's time.
_LOST = 0.10
_ALL = ("matmul.", "memory.", "transfer.", "allreduce", "conv.", "attention")
_COMPUTE = ("matmul.", "conv.", "attention")

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


def variables_of(report: Report) -> Mapping[str, Any]:
    """Return the environment variables in a report's facts."""
    return mapping(report.get("facts", {}).get("variables"))


def slowing_variables(report: Report, measurement: str) -> list[str]:
    """Return the variables of a run that slow a measurement down, as ``NAME=value``."""
    return [
        f"{name}={value}"
        for name, value in sorted(variables_of(report).items())
        if any(
            re.fullmatch(names, name) and re.fullmatch(values, str(value)) and measurement.startswith(ids)
            for names, values, ids in _SLOWING
        )
    ]


def model_of(report: Report, value: Value) -> str:
    """Return the name of the GPU, or the processor's and its number of cores."""
    if value.on_gpu:
        return str(facts_of(value, devices_of(report)).get("name") or "a GPU")
    name = str(mapping(report.get("facts", {}).get("cpu")).get("model") or "a CPU")
    cores = cores_of(report)
    return name if cores is None else f"{name}, {cores:g} cores"


def shares_gpu(report: Report) -> bool:
    """Return whether another program used the GPUs."""
    return _warns(report, "gpu.idle")


def busy_cpu(report: Report, measurement: Mapping[str, Any]) -> str:
    """Return why a figure of a CPU is shown and not graded; empty on an idle machine.

    The load at the end includes this run's own threads: up to one for each core.
    """
    facts = report.get("facts", {})
    cores = cores_of(report) or math.inf
    before, after = number(facts, "load_before") or 0.0, number(facts, "load_after") or 0.0
    if before > _IDLE_LOAD * cores:
        return f"the load was {before:.1f} on {cores:.0f} cores before the test"
    if after - cores > _IDLE_LOAD * cores:
        return f"the load was {after:.1f} on {cores:.0f} cores at the end"
    lost = number(measurement, "lost_fraction") or 0.0
    if lost > _LOST:
        return f"other processes took {lost:.0%} of the time"
    return "the machine was busy: see machine.steady" if _warns(report, "machine.steady") else ""


def not_bound(value: Value, measurement: Mapping[str, Any]) -> str:
    """Return why a transfer is shown and not graded: its memory may be on another NUMA node."""
    if rank_item(value, measurement).get("bound", measurement.get("bound")) is False:
        return "the process could not be bound to the GPU's NUMA node"
    return ""


def faults_of(measurement: Mapping[str, Any]) -> frozenset[str]:
    """Return why the clock was limited, apart from what is usual under load."""
    return frozenset(_throttled(_items(measurement))) - frozenset(_USUAL)


def state_text(measurement: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> str:
    """Return the state of the GPUs: ``1,410 of 1,980 MHz, 690 W, 64 °C, throttled by heat``.

    Args:
        measurement: which has samples of the state, of each rank or of the only one.
        facts: of the GPU; what was not sampled is its state after the measurements.
    """
    items = _items(measurement)
    after = mapping((facts or {}).get("after"))
    clock, power, heat = (
        _range(items, key) or _range([after], key) for key in ("clock_mhz", "power_w", "temperature_c")
    )
    maximum = number(after, "clock_max_mhz")
    of_maximum = f" of {maximum:,.0f}" if maximum else ""
    parts = [f"{clock}{of_maximum} MHz" if clock else "", f"{power} W" if power else ""]
    reasons = _throttled(items) or _throttled([after])
    parts += [f"{heat} °C" if heat else "", f"throttled by {' and '.join(reasons)}" if reasons else ""]
    return ", ".join(part for part in parts if part)


def _warns(report: Report, probe: str) -> bool:
    return any(p["id"] == probe and p["status"] in ("warn", "fail") for p in report.get("probes", ()))


def _items(measurement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [measurement, *mappings(measurement.get("ranks"))]


def _throttled(items: Sequence[Mapping[str, Any]]) -> list[str]:
    lists = [item["throttled"] for item in items if isinstance(item.get("throttled"), list)]
    return list(dict.fromkeys(str(reason)[:60] for reasons in lists for reason in reasons[:8]))[:4]


def _range(items: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return ``1,410`` or ``1,410 to 1,980``; empty if no item has the number."""
    found = [value for item in items if (value := number(item, key)) is not None]
    return " to ".join(dict.fromkeys(f"{value:,.0f}" for value in (min(found), max(found)))) if found else ""
