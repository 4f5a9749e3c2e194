"""What a value was measured on, and what disturbed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.smoke.conditions import conditions_of
from builder.smoke.limits import BUSY
from builder.smoke.values import (
    Report,
    Value,
    cores_of,
    devices_of,
    facts_of,
    gpu_index,
    mapping,
    number,
    rank_item,
)

#: Probes that warn if a GPU's figures cannot be trusted.
_GPU_PROBES = {"gpu.idle": "other processes use the GPU", "gpu.clocks": "the GPU is slowed down"}


#: Beginnings of what differs between two machines.
POWER_LIMIT, DRIVER = "power limit", "driver"


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPU or the processor that a value was measured on."""

    name: str
    """The GPU's name, or the processor's and its number of usable cores. Others are not compared."""
    device: str = ""
    """A GPU's uuid, or the host's name; empty if unknown. Equal on one device only."""
    cpu: str = ""
    """The model of the processor; empty if unknown."""
    driver: str = ""
    """The version of the GPU's driver; empty if unknown, and for processors."""
    power_limit_w: float | None = None

    def changes_to(self, new: Machine) -> tuple[str, ...]:
        """What differs on another machine of the same name: ``driver 550.54 -> 580.65``."""
        found = []
        if self.power_limit_w and new.power_limit_w and abs(self.power_limit_w - new.power_limit_w) >= 1:
            found.append(f"{POWER_LIMIT} {self.power_limit_w:.0f} W -> {new.power_limit_w:.0f} W")
        if self.driver and new.driver and self.driver != new.driver:
            found.append(f"{DRIVER} {self.driver} -> {new.driver}")
        return tuple(found)


def machine(report: Report, measurement: Mapping[str, Any], value: Value) -> Machine:
    """The machine that a value was measured on."""
    facts = report.get("facts", {})
    model = str(mapping(facts.get("cpu")).get("model") or "")
    if not value.on_gpu:
        cores = cores_of(report)
        name = model or "a CPU"
        name = f"{name}, {cores:g} cores" if cores is not None else name
        return Machine(name, device=value.host or str(facts.get("host") or ""), cpu=model)
    gpu = _gpu(report, value)
    return Machine(
        name=str(gpu.get("name")) if gpu else str(measurement.get("device_name", "a GPU")),
        device=str(gpu.get("uuid") or ""),
        cpu=model,
        driver=str(gpu.get("driver") or facts.get("driver") or ""),
        power_limit_w=number(gpu, "power_limit_w"),
    )


def machine_of(report: Report, measurement: Mapping[str, Any], value: Value) -> str:
    """The name of the machine that a value was measured on."""
    return machine(report, measurement, value).name


def _gpu(report: Report, value: Value) -> dict[str, Any]:
    """The facts about the GPU of a value. Old reports list the GPUs of ranks without the ranks."""
    devices = devices_of(report)
    found = facts_of(value, devices)
    if found or not devices:
        return found
    index = gpu_index(value.device)
    return devices[index] if index < len(devices) else {}


def shares_gpu(report: Report) -> bool:
    """Whether another program used the GPUs."""
    return "gpu.idle" in _warned(report)


def _warned(report: Report) -> set[str]:
    return {probe["id"] for probe in report.get("probes", []) if probe["status"] in ("warn", "fail")}


def disturbance(report: Report, measurement: Mapping[str, Any], value: Value, *, host_bound: bool) -> str:
    """Why a value cannot be trusted; empty if nothing is known.

    Args:
        report: the report.
        measurement: the measurement, with the figures of all ranks.
        value: the value of one of its devices.
        host_bound: the value depends on the processor, even if it is that of a GPU.
    """
    item = rank_item(value, measurement)
    if (number({**measurement, **item}, "lost_fraction") or 0.0) > BUSY:
        return "it was interrupted for much of its time"
    warned = _warned(report)
    if "machine.steady" in warned and (host_bound or not value.on_gpu):
        return "other processes used the processor"
    if not value.on_gpu:
        return ""
    faults = conditions_of(item).faults
    if faults:
        return f"throttled by {' and '.join(faults)}"
    return next((text for probe, text in _GPU_PROBES.items() if probe in warned), "")
