"""The state of an AMD GPU, from the files of the driver amdgpu in sysfs."""

from __future__ import annotations

import re

from ..core import Item
from .files import names, read


class AmdGpu:
    """A GPU, as its driver shows it in sysfs.

    Of a MI250X, the second GCD reports no power and no limit (0): that is unknown, not 0 W.
    """

    def __init__(self, folder: str) -> None:
        """``folder`` is the one of the PCI device."""
        self._folder = folder
        monitors = names(folder + "/hwmon")
        self._sensors = f"{folder}/hwmon/{monitors[0]}/" if monitors else ""
        self._temperatures = self._labelled()

    def _labelled(self) -> dict[str, str]:
        """Return the file of each temperature by its label: edge (not MI300), junction, mem."""
        found = {}
        for name in names(self._sensors) if self._sensors else []:
            if re.fullmatch(r"temp\d+_input", name):
                label = read(self._sensors + name.replace("_input", "_label"))
                found[label or ("edge" if name == "temp1_input" else name)] = self._sensors + name
        return found

    def sample(self) -> Item:
        """Return the state under load: ``clock_mhz``, ``power_w``, ``temperature_c``."""
        out: Item = {}
        clock = self._number("freq1_input")
        if clock:
            out["clock_mhz"] = clock * 1e-6
        power = self._number("power1_input") or self._number("power1_average")
        if power:
            out["power_w"] = power * 1e-6
        path = self._temperatures.get("junction") or self._temperatures.get("edge")
        value = read(path) if path else ""
        if value.isdigit():
            out["temperature_c"] = int(value) * 1e-3
        return out

    def state(self) -> Item:
        """Return ``sample``, and the highest clock and memory errors."""
        out = self.sample()
        clocks = re.findall(r"(\d+)Mhz", read(self._folder + "/pp_dpm_sclk"), re.IGNORECASE)
        if clocks:
            out["clock_max_mhz"] = float(max(map(int, clocks)))
        uncorrected = re.search(r"ue: *(\d+)", read(self._folder + "/ras/umc_err_count"))
        if uncorrected:
            out["ecc"] = True
            out["ecc_uncorrected"] = int(uncorrected[1])
        return out

    def identity(self) -> Item:
        """Return the GPU's id and power limit."""
        out: Item = {}
        uuid, limit = read(self._folder + "/unique_id"), self._number("power1_cap")
        if uuid:
            out["uuid"] = uuid
        if limit:
            out["power_limit_w"] = limit * 1e-6
        return out

    def use(self) -> Item:
        """Return the use by all processes: ``memory_bytes``, ``total_bytes``, ``busy_percent``."""
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
        """Return a value of the hardware monitor in its own unit; 0 if it is unknown."""
        value = read(self._sensors + name) if self._sensors else ""
        return int(value) if value.isdigit() else 0
