"""The state of an AMD GPU, from the files of the driver amdgpu in sysfs."""

from __future__ import annotations

import re

from ..core import Item, known
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
        """Return the name of each temperature's file by label: edge (not MI300), junction, mem."""
        found = {}
        for name in names(self._sensors) if self._sensors else []:
            if re.fullmatch(r"temp\d+_input", name):
                label = read(self._sensors + name.replace("_input", "_label"))
                found[label or ("edge" if name == "temp1_input" else name)] = name
        return found

    def sample(self) -> Item:
        """Return the state under load: ``clock_mhz``, ``power_w``, ``temperature_c``."""
        hottest = self._temperatures.get("junction") or self._temperatures.get("edge", "")
        return known(
            clock_mhz=self._sensor("freq1_input", 1e-6),
            power_w=self._sensor("power1_input", 1e-6) or self._sensor("power1_average", 1e-6),
            temperature_c=self._sensor(hottest, 1e-3),
        )

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
        uuid = read(self._folder + "/unique_id")
        return known(uuid=uuid or None, power_limit_w=self._sensor("power1_cap", 1e-6))

    def use(self) -> Item:
        """Return the use by all processes: ``memory_bytes``, ``total_bytes``, ``busy_percent``."""
        return known(
            total_bytes=_number(self._folder + "/mem_info_vram_total"),
            memory_bytes=_number(self._folder + "/mem_info_vram_used"),
            busy_percent=_number(self._folder + "/gpu_busy_percent"),
        )

    def _sensor(self, name: str, unit: float) -> float | None:
        """Return a value of the hardware monitor; None if it is unknown, as 0 is."""
        value = _number(self._sensors + name) if self._sensors else None
        return value * unit if value else None


def _number(path: str) -> int | None:
    """Return the number in a file; None if there is none."""
    value = read(path)
    return int(value) if value.isdigit() else None
