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

#: nvmlComputeMode_t
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
#: NVML_FI_DEV_POWER_INSTANT, since driver 535. nvmlDeviceGetPowerUsage is an average over 1 s on Ampere
#: (except GA100) and newer.
_POWER_INSTANT = 186
#: nvmlTemperature_v1: 12 bytes, version 1
_TEMPERATURE_VERSION = 12 | 1 << 24
#: nvmlClockType_t
_SM, _MEMORY = 1, 2
_INSUFFICIENT_SIZE = 7


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t"""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),  # a union: 4 or 8 bytes of it are used
    )


class _Temperature(ctypes.Structure):
    """nvmlTemperature_t"""

    _fields_ = (("version", ctypes.c_uint), ("sensor", ctypes.c_int), ("celsius", ctypes.c_int))


class NvidiaGpu:
    """A GPU, as NVML knows it. With MIG it is the whole GPU, not the slice."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def sample(self) -> Item:
        """What changes under load: ``clock_mhz``, ``power_w``, ``temperature_c``, ``throttled``."""
        out: Item = {}
        clock = self._numbers("nvmlDeviceGetClockInfo", _SM)
        if clock:
            out["clock_mhz"] = float(clock[0])
        power = self._power()
        if power is not None:
            out["power_w"] = power
        temperature = self._temperature()
        if temperature is not None:
            out["temperature_c"] = float(temperature)
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            reasons = self._numbers(name, kind=ctypes.c_ulonglong)
            if reasons:
                out["throttled"] = [word for bit, word in THROTTLES.items() if reasons[0] & bit]
                break
        return out

    def state(self) -> Item:
        """``sample``, and the highest clock, the memory's clock, errors and persistence mode."""
        out = self.sample()
        for field, values in (
            ("clock_max_mhz", self._numbers("nvmlDeviceGetMaxClockInfo", _SM)),
            ("memory_clock_mhz", self._numbers("nvmlDeviceGetClockInfo", _MEMORY)),
        ):
            if values:
                out[field] = float(values[0])
        return {**out, **self._errors()}

    def link(self) -> Item:
        """Generation and width of the PCIe link, now and at most; at most is what GPU and slot allow.

        The generation falls while the GPU is idle.
        """
        found = {
            "generation": self._numbers("nvmlDeviceGetCurrPcieLinkGeneration"),
            "width": self._numbers("nvmlDeviceGetCurrPcieLinkWidth"),
            "max_generation": self._numbers("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_width": self._numbers("nvmlDeviceGetMaxPcieLinkWidth"),
        }
        return {field: numbers[0] for field, numbers in found.items() if numbers}

    def identity(self) -> Item:
        """Which GPU this is, and how it is set up."""
        out: Item = {
            "uuid": self._text("nvmlDeviceGetUUID", 96),
            "serial": self._text("nvmlDeviceGetSerial", 30),
            "vbios": self._text("nvmlDeviceGetVbiosVersion", 32),
            "driver": self._driver(),
            "compute_mode": self.compute_mode(),
            "nvlink": self._links(),
        }
        limit = self._numbers("nvmlDeviceGetEnforcedPowerLimit")
        if limit:
            out["power_limit_w"] = limit[0] * 1e-3
        mig = self.mig()
        if mig is not None:
            out["mig"] = mig
        return {key: value for key, value in out.items() if value not in ("", {})}

    def mig(self) -> bool | None:
        """Whether MIG is on; None if this GPU does not have it."""
        mode = self._numbers("nvmlDeviceGetMigMode", count=2)
        return bool(mode[0]) if mode else None

    def is_part(self) -> bool:
        """Whether this GPU is divided into MIG slices."""
        return bool(self.mig())

    def compute_mode(self) -> str:
        """``default``, ``exclusive_process`` or ``prohibited``; empty if unknown."""
        mode = self._numbers("nvmlDeviceGetComputeMode")
        return COMPUTE_MODES[mode[0]] if mode and mode[0] < len(COMPUTE_MODES) else ""

    def use(self) -> Item:
        """What all processes use: ``memory_bytes``, ``total_bytes``, ``busy_percent``, ``processes``."""
        out: Item = {}
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        if self._call("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) == 0:
            out["total_bytes"], out["memory_bytes"] = int(memory[0]), int(memory[2])
        busy = (ctypes.c_uint * 2)()  # of the GPU, of its memory
        if self._call("nvmlDeviceGetUtilizationRates", ctypes.byref(busy)) == 0:
            out["busy_percent"] = int(busy[0])
        for version in ("_v3", "_v2", ""):
            count = ctypes.c_uint(0)  # room for no process: asks for their number
            code = self._call("nvmlDeviceGetComputeRunningProcesses" + version, ctypes.byref(count), None)
            if code in (0, _INSUFFICIENT_SIZE):
                out["processes"] = int(count.value)
                break
        return out

    def _call(self, function: str, *arguments: Any) -> int:
        """The code that a function returns; -1 if this driver does not have it."""
        try:
            return int(getattr(self._library, function)(self._handle, *arguments))
        except AttributeError:
            return -1

    def _numbers(
        self, function: str, *arguments: int, count: int = 1, kind: Any = ctypes.c_uint
    ) -> list[int] | None:
        """The ``count`` numbers that a function returns; None if this driver or GPU does not have it."""
        values = [kind() for _ in range(count)]
        code = self._call(function, *arguments, *(ctypes.byref(value) for value in values))
        return [int(value.value) for value in values] if code == 0 else None

    def _text(self, function: str, size: int) -> str:
        buffer = ctypes.create_string_buffer(size)
        if self._call(function, buffer, ctypes.c_uint(size)) != 0:
            return ""
        return buffer.value.decode("ascii", "replace")

    def _driver(self) -> str:
        buffer = ctypes.create_string_buffer(80)
        try:
            code = self._library.nvmlSystemGetDriverVersion(buffer, ctypes.c_uint(80))
        except AttributeError:
            return ""
        return buffer.value.decode("ascii", "replace") if code == 0 else ""

    def _power(self) -> float | None:
        """Watts now."""
        field = _FieldValue(field=_POWER_INSTANT)
        code = self._call("nvmlDeviceGetFieldValues", 1, ctypes.byref(field))
        milliwatts = field.value & 0xFFFFFFFF
        if code == 0 and field.code == 0 and milliwatts:
            return float(milliwatts) * 1e-3
        usage = self._numbers("nvmlDeviceGetPowerUsage")
        return usage[0] * 1e-3 if usage else None

    def _temperature(self) -> int | None:
        new = _Temperature(version=_TEMPERATURE_VERSION)
        if self._call("nvmlDeviceGetTemperatureV", ctypes.byref(new)) == 0:
            return int(new.celsius)
        old = self._numbers("nvmlDeviceGetTemperature", 0)
        return old[0] if old else None

    def _links(self) -> Item:
        """How many NVLinks there are, and how many of them are up."""
        states: list[int] = []
        for link in range(64):
            state = self._numbers("nvmlDeviceGetNvLinkState", link)
            if state is None:
                break
            states.append(state[0])
        return {"links": len(states), "active": sum(map(bool, states))} if states else {}

    def _errors(self) -> Item:
        state: Item = {}
        ecc = self._numbers("nvmlDeviceGetEccMode", count=2)
        if ecc:
            state["ecc"] = bool(ecc[0])

        uncorrected, since_driver_load = 1, 0
        errors = self._numbers(
            "nvmlDeviceGetTotalEccErrors", uncorrected, since_driver_load, kind=ctypes.c_ulonglong
        )
        if errors:
            state["ecc_uncorrected"] = errors[0]

        rows = self._numbers("nvmlDeviceGetRemappedRows", count=4)
        if rows:
            state["remap_pending"] = bool(rows[2])
            state["remap_failed"] = bool(rows[3])

        persistence = self._numbers("nvmlDeviceGetPersistenceMode")
        if persistence:
            state["persistence"] = bool(persistence[0])
        return state


def open_nvidia(address: str = "", uuid: str = "") -> NvidiaGpu | None:
    """The GPU with this PCI address, or the GPU or MIG slice with this UUID; None if NVML has none."""
    handle = ctypes.c_void_p()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        find = library.nvmlDeviceGetHandleByUUID if uuid else library.nvmlDeviceGetHandleByPciBusId_v2
        if library.nvmlInit_v2() != 0 or find((uuid or address).encode(), ctypes.byref(handle)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return NvidiaGpu(library, handle)
