"""The state of an AMD GPU, from the files of the driver amdgpu in sysfs."""

from __future__ import annotations

import re
import struct

from ..core import Item
from .files import names, read, read_bytes

#: Bits of ``indep_throttle_status`` (SMU_THROTTLER_* in amdgpu_smu.h): of power and current, of temperatures.
_THROTTLES = {
    "power cap": sum(1 << bit for bit in (*range(8), *range(16, 24))),
    "heat": sum(1 << bit for bit in range(32, 48)),
}
#: GPUs whose throttling bits are right. RDNA 3 reports the bit of the hot spot always, also when it is idle.
_TRUE_BITS = ("gfx908", "gfx90a")
#: What the counters of gpu_metrics 1.6 to 1.8 count, in their order: while one of these reasons held.
RESIDENCIES = ("heat (hardware)", "power cap", "heat", "heat (voltage regulator)", "heat (memory)")
#: The offset of the first counter, by the content revision of gpu_metrics. The time comes first.
_COUNTERS = {6: 32, 7: 40, 8: 40}
_UNKNOWN_64 = (1 << 64) - 1


class AmdGpu:
    """A GPU, as its driver shows it in sysfs.

    Of a MI250X, the second GCD reports no power and no limit (0): that is unknown, not 0 W. Of a MI300 in
    partitions, all of them report the sensors of the whole GPU.
    """

    def __init__(self, folder: str, architecture: str) -> None:
        """``folder`` is the one of the PCI device."""
        self._folder = folder
        self._architecture = architecture
        monitors = names(folder + "/hwmon")
        self._sensors = f"{folder}/hwmon/{monitors[0]}/" if monitors else ""
        self._temperatures = self._labelled()

    def _labelled(self) -> dict[str, str]:
        """The file of each temperature, by its label: edge, junction, mem. MI300 has no edge."""
        found = {}
        for name in names(self._sensors) if self._sensors else []:
            if re.fullmatch(r"temp\d+_input", name):
                label = read(self._sensors + name.replace("_input", "_label"))
                found[label or ("edge" if name == "temp1_input" else name)] = self._sensors + name
        return found

    def sample(self) -> Item:
        """What changes under load: ``clock_mhz``, ``power_w``, ``temperature_c``, ``throttled``.

        ``residency`` is there in place of ``throttled`` where the driver counts: how long each reason held
        since the driver was loaded, and under "time" the time in the same unit. Two of them tell what
        happened in between.
        """
        out: Item = {}
        clock = self._number("freq1_input")
        if clock:
            out["clock_mhz"] = clock * 1e-6
        power = self._number("power1_input") or self._number("power1_average")
        if power:
            out["power_w"] = power * 1e-6
        for field, labels in (("temperature_c", ("junction", "edge")), ("memory_temperature_c", ("mem",))):
            for label in labels:
                value = read(self._temperatures[label]) if label in self._temperatures else ""
                if value.isdigit():
                    out[field] = int(value) * 1e-3
                    break
        return {**out, **self._throttling()}

    def state(self) -> Item:
        """``sample``, and the highest clock, the memory's clock and memory errors."""
        out = self.sample()
        out.pop("residency", None)
        memory = self._number("freq2_input")
        if memory:
            out["memory_clock_mhz"] = memory * 1e-6
        clocks = re.findall(r"(\d+)Mhz", read(self._folder + "/pp_dpm_sclk"), re.IGNORECASE)
        if clocks:
            out["clock_max_mhz"] = float(max(map(int, clocks)))
        uncorrected = re.search(r"ue: *(\d+)", read(self._folder + "/ras/umc_err_count"))
        if uncorrected:
            out["ecc"] = True
            out["ecc_uncorrected"] = int(uncorrected[1])
        return out

    def is_part(self) -> bool:
        """Whether this is a partition of a GPU."""
        return read(self._folder + "/current_compute_partition") not in ("", "SPX")

    def identity(self) -> Item:
        """Which GPU this is, and how it is set up."""
        out: Item = {
            "uuid": read(self._folder + "/unique_id"),
            "serial": read(self._folder + "/serial_number"),
            "vbios": read(self._folder + "/vbios_version"),
            "partition": read(self._folder + "/current_compute_partition"),
            "driver": read("/sys/module/amdgpu/version"),
        }
        limit = self._number("power1_cap")
        if limit:
            out["power_limit_w"] = limit * 1e-6
        return {key: value for key, value in out.items() if value}

    def use(self) -> Item:
        """What all processes use: ``memory_bytes``, ``total_bytes``, ``busy_percent``."""
        out: Item = {}
        for field, name in (
            ("total_bytes", "mem_info_vram_total"),
            ("memory_bytes", "mem_info_vram_used"),
            ("busy_percent", "gpu_busy_percent"),
        ):
            value = read(f"{self._folder}/{name}")
            if value.isdigit():
                out[field] = int(value)
        return out

    def _number(self, name: str) -> int:
        """A value of the hardware monitor in its own unit; 0 if it is unknown."""
        value = read(self._sensors + name) if self._sensors else ""
        return int(value) if value.isdigit() else 0

    def _throttling(self) -> Item:
        """``throttled`` or ``residency``; empty where this version of gpu_metrics holds neither.

        MI300 writes 0 into the bits of versions 1.4 and 1.5, whatever happens.
        """
        blob = read_bytes(self._folder + "/gpu_metrics")
        if len(blob) < 4:
            return {}
        size, revision, content = struct.unpack_from("<HBB", blob)
        if size != len(blob) or revision != 1:
            return {}
        if content == 3 and self._architecture in _TRUE_BITS and size >= 120:
            (bits,) = struct.unpack_from("<Q", blob, 112)
            if bits == _UNKNOWN_64:
                return {}
            return {"throttled": [name for name, mask in _THROTTLES.items() if bits & mask]}
        if content in _COUNTERS and size >= 64:
            numbers = struct.unpack_from("<6I", blob, _COUNTERS[content])
            return {"residency": dict(zip(("time", *RESIDENCIES), numbers))}
        return {}


def throttled_between(first: dict[str, int], last: dict[str, int]) -> list[str] | None:
    """The reasons that held for more than 1 % of the time between two ``residency``; None if unknown."""
    passed = {name: (last[name] - value) % (1 << 32) for name, value in first.items() if name in last}
    elapsed = passed.pop("time", 0)
    if not elapsed:
        return None
    return [name for name, count in passed.items() if 0.01 * elapsed < count <= elapsed]
