"""The state of a GPU while it is measured: clock, power, temperature and throttling."""

from __future__ import annotations

import statistics
from typing import Any

from ..core import Item, Run
from .gpu import driver_of


class Monitor:
    """What was sampled while a GPU worked."""

    def __init__(self, gpu: Any = None) -> None:
        """``gpu`` is what its driver reports; None: nothing."""
        self._gpu = gpu
        self._samples: list[Item] = []

    def sample(self) -> None:
        """Take a sample. Call it while the GPU has work: an idle one has another clock."""
        if self._gpu is not None:
            try:
                self._samples.append(self._gpu.sample())
            except Exception:  # whatever a driver does, the measurement goes on without it
                self._gpu = None

    def state(self) -> Item:
        """Return median ``clock_mhz`` and ``power_w``, largest ``temperature_c``, ``throttled``.

        Fields that the driver does not report are missing. ``throttled`` lists the reasons that two
        samples in a row have, because NVML reports "hardware slowdown" also while a clock changes.
        """
        out: Item = {}
        for field in ("clock_mhz", "power_w", "temperature_c"):
            values = [sample[field] for sample in self._samples if field in sample]
            if values:
                summary = max(values) if field == "temperature_c" else statistics.median(values)
                out[field] = round(float(summary), 1)
        reasons = [sample["throttled"] for sample in self._samples if "throttled" in sample]
        if len(reasons) > 1:
            lasting = [set(now).intersection(later) for now, later in zip(reasons, reasons[1:])]
            out["throttled"] = sorted(set().union(*lasting))
        return out


def monitor(run: Run, index: int) -> Monitor:
    """Return the monitor of a GPU. Never raises: without a driver, it has no samples."""
    try:
        return Monitor(driver_of(run, index))
    except Exception:  # torch does not describe the GPU: there is nothing to sample
        return Monitor()
