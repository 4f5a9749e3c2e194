"""The state of an NVIDIA GPU, from the driver's library NVML (libnvidia-ml.so.1)."""

from __future__ import annotations

import ctypes
from typing import Any

from ..core import Item

#: Bits of nvmlClocksEventReason* in nvml.h. Left out are those that are no fault: idle, and clocks that a
#: user set.
THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


def nvidia_state(address: str) -> Item:
    """Clocks, temperature, power, errors and persistence mode of the GPU with this PCI address."""
    device = _open(address)
    return {**_clocks(device), **_errors(device)} if device is not None else {}


class _Device:
    """A GPU, as NVML knows it."""

    def __init__(self, library: Any, handle: Any) -> None:
        self.library = library
        self.handle = handle

    def ask(
        self, function: str, *arguments: int, count: int = 1, kind: Any = ctypes.c_uint
    ) -> list[int] | None:
        """The ``count`` numbers that a function returns; None if this driver or GPU does not have it."""
        values = [kind() for _ in range(count)]
        try:
            code = getattr(self.library, function)(
                self.handle, *arguments, *(ctypes.byref(v) for v in values)
            )
        except AttributeError:
            return None
        return [int(v.value) for v in values] if code == 0 else None


def _open(address: str) -> _Device | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2() != 0:
            return None
        if library.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(handle)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return _Device(library, handle)


def _clocks(device: _Device) -> Item:
    graphics, memory = 1, 2
    state: Item = {}
    for field, values, factor in (
        ("clock_mhz", device.ask("nvmlDeviceGetClockInfo", graphics), 1.0),
        ("clock_max_mhz", device.ask("nvmlDeviceGetMaxClockInfo", graphics), 1.0),
        ("memory_clock_mhz", device.ask("nvmlDeviceGetClockInfo", memory), 1.0),
        ("temperature_c", device.ask("nvmlDeviceGetTemperature", 0), 1.0),
        ("power_w", device.ask("nvmlDeviceGetPowerUsage"), 1e-3),
    ):
        if values:
            state[field] = values[0] * factor

    reasons = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
    if reasons:
        state["throttled"] = [name for bit, name in THROTTLES.items() if reasons[0] & bit]
    return state


def _errors(device: _Device) -> Item:
    state: Item = {}
    ecc = device.ask("nvmlDeviceGetEccMode", count=2)
    if ecc:
        state["ecc"] = bool(ecc[0])

    uncorrected, since_driver_load = 1, 0
    errors = device.ask(
        "nvmlDeviceGetTotalEccErrors", uncorrected, since_driver_load, kind=ctypes.c_ulonglong
    )
    if errors:
        state["ecc_uncorrected"] = errors[0]

    rows = device.ask("nvmlDeviceGetRemappedRows", count=4)
    if rows:
        state["remap_pending"] = bool(rows[2])
        state["remap_failed"] = bool(rows[3])

    persistence = device.ask("nvmlDeviceGetPersistenceMode")
    if persistence:
        state["persistence"] = bool(persistence[0])
    return state
