"""The state of an NVIDIA GPU, from the driver's library NVML (libnvidia-ml.so.1)."""

from __future__ import annotations

import ctypes
from typing import Any

from ..core import Item, known

#: Bits of nvmlClocksEventReason* in nvml.h, without those that are no fault: idle, and clocks that
#: a user set.
THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}

#: nvmlClockType_t
_SM = 1


class NvidiaGpu:
    """A GPU, as NVML knows it. With MIG it is the whole GPU, not the slice."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def sample(self) -> Item:
        """Return ``clock_mhz``, ``power_w``, ``temperature_c`` and ``throttled``."""
        out = known(
            clock_mhz=self._number("nvmlDeviceGetClockInfo", _SM),
            power_w=self._number("nvmlDeviceGetPowerUsage", scale=1e-3),
            temperature_c=self._number("nvmlDeviceGetTemperature", 0),
        )
        for name in ("Event", "Throttle"):  # the second one in older drivers
            function = f"nvmlDeviceGetCurrentClocks{name}Reasons"
            reasons = self._numbers(function, kind=ctypes.c_ulonglong)
            if reasons:
                out["throttled"] = [word for bit, word in THROTTLES.items() if reasons[0] & bit]
                break
        return out

    def state(self) -> Item:
        """Return ``sample``, and the highest clock and memory errors."""
        most = self._number("nvmlDeviceGetMaxClockInfo", _SM)
        return {**self.sample(), **known(clock_max_mhz=most), **self._errors()}

    def identity(self) -> Item:
        """Return the GPU's UUID, links, power limit and MIG mode."""
        return known(
            uuid=self._text("nvmlDeviceGetUUID", 96) or None,
            nvlink=self._links() or None,
            power_limit_w=self._number("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
            mig=self.mig(),
        )

    def mig(self) -> bool | None:
        """Return whether this GPU is divided into MIG slices; None if it cannot be."""
        mode = self._numbers("nvmlDeviceGetMigMode", count=2)
        return bool(mode[0]) if mode else None

    def use(self) -> Item:
        """Return the use by all processes: ``memory_bytes``, ``total_bytes``, ``busy_percent``.

        Nothing with MIG: the driver reports what all users of the whole GPU use.
        """
        out: Item = {}
        if self.mig():
            return out
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        if self._call("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) == 0:
            out["total_bytes"], out["memory_bytes"] = int(memory[0]), int(memory[2])
        busy = (ctypes.c_uint * 2)()  # of the GPU, of its memory
        if self._call("nvmlDeviceGetUtilizationRates", ctypes.byref(busy)) == 0:
            out["busy_percent"] = int(busy[0])
        return out

    def _call(self, function: str, *arguments: Any) -> int:
        """Return the code that a function returns; -1 if this driver does not have it."""
        try:
            return int(getattr(self._library, function)(self._handle, *arguments))
        except AttributeError:
            return -1

    def _numbers(
        self, function: str, *arguments: int, count: int = 1, kind: Any = ctypes.c_uint
    ) -> list[int] | None:
        """Return the ``count`` numbers that a function returns; None if it is not supported."""
        values = [kind() for _ in range(count)]
        code = self._call(function, *arguments, *(ctypes.byref(value) for value in values))
        return [int(value.value) for value in values] if code == 0 else None

    def _number(self, function: str, *arguments: int, scale: float = 1.0) -> float | None:
        """Return the number that a function returns, in another unit; None if not supported."""
        numbers = self._numbers(function, *arguments)
        return numbers[0] * scale if numbers else None

    def _text(self, function: str, size: int) -> str:
        buffer = ctypes.create_string_buffer(size)
        if self._call(function, buffer, ctypes.c_uint(size)) != 0:
            return ""
        return buffer.value.decode("ascii", "replace")

    def _links(self) -> Item:
        """Return the number of NVLinks, and of those that are up."""
        states: list[int] = []
        for link in range(64):
            state = self._numbers("nvmlDeviceGetNvLinkState", link)
            if state is None:
                break
            states.append(state[0])
        return {"links": len(states), "active": sum(map(bool, states))} if states else {}

    def _errors(self) -> Item:
        ecc = self._numbers("nvmlDeviceGetEccMode", count=2)
        # uncorrected ones (1) since the driver was loaded (0)
        errors = self._numbers("nvmlDeviceGetTotalEccErrors", 1, 0, kind=ctypes.c_ulonglong)
        rows = self._numbers("nvmlDeviceGetRemappedRows", count=4)
        return known(
            ecc=bool(ecc[0]) if ecc else None,
            ecc_uncorrected=errors[0] if errors else None,
            remap_pending=bool(rows[2]) if rows else None,
            remap_failed=bool(rows[3]) if rows else None,
        )


def open_nvidia(address: str) -> NvidiaGpu | None:
    """Return the GPU with this PCI address; None if NVML has none."""
    handle = ctypes.c_void_p()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        find = library.nvmlDeviceGetHandleByPciBusId_v2
        if library.nvmlInit_v2() != 0 or find(address.encode(), ctypes.byref(handle)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return NvidiaGpu(library, handle)
