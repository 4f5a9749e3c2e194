"""Probes of the GPUs' health, with stand-ins for NVML and sysfs."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.machine.gpu import gpu_state
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, make_run
from tests.unit.bench.conftest import WriteFile


class Nvml:
    """libnvidia-ml.so.1 of a machine with one GPU."""

    def __init__(self, **values: Any) -> None:
        usual = {
            "ecc": (1, 1),
            "errors": 0,
            "rows": (0, 0, 0, 0),
            "persistence": 1,
            "reasons": 0,
            "clock": 1400,
        }
        self.values = {**usual, **values}
        self.asked = b""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: bytes, handle: Any) -> int:
        self.asked = address
        return 0

    def _return(self, key: str, *places: Any) -> int:
        value = self.values[key]
        if value is None:
            return 3  # NVML_ERROR_NOT_SUPPORTED
        for place, number in zip(places, value if isinstance(value, tuple) else (value,), strict=True):
            place._obj.value = number
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, out: Any) -> int:
        return self._return("clock", out)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: int, out: Any) -> int:
        out._obj.value = 1410
        return 0

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, out: Any) -> int:
        out._obj.value = 64
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, out: Any) -> int:
        assert isinstance(out._obj, ctypes.c_ulonglong)
        return self._return("reasons", out)

    def nvmlDeviceGetEccMode(self, handle: Any, now: Any, pending: Any) -> int:
        return self._return("ecc", now, pending)

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int, out: Any) -> int:
        assert kind == 1
        return self._return("errors", out)

    def nvmlDeviceGetRemappedRows(self, handle: Any, *out: Any) -> int:
        return self._return("rows", *out)

    def nvmlDeviceGetPersistenceMode(self, handle: Any, out: Any) -> int:
        return self._return("persistence", out)


@pytest.mark.parametrize(
    ("probe", "values", "status", "seen"),
    [
        ("gpu.ecc", {}, "pass", "no uncorrected"),
        ("gpu.ecc", {"errors": 3}, "fail", "GPU 0: 3 memory errors"),
        ("gpu.ecc", {"rows": (0, 1, 0, 1)}, "fail", "could not be replaced"),
        ("gpu.ecc", {"rows": (0, 1, 1, 0)}, "warn", "waiting to be replaced"),
        ("gpu.ecc", {"ecc": (0, 0)}, "warn", "ECC is off"),
        ("gpu.ecc", {"ecc": None, "errors": None, "rows": None}, "skip", "does not report"),
        ("gpu.persistence", {}, "pass", "on"),
        ("gpu.persistence", {"persistence": 0}, "warn", "off on GPU 0"),
        ("gpu.clocks", {}, "pass", "GPU 0: 1400 MHz of 1410 64 C"),
        ("gpu.clocks", {"reasons": 0x4}, "pass", "power cap"),  # usual under full load
        ("gpu.clocks", {"reasons": 0x40 | 0x4}, "warn", "heat (hardware)"),
        ("gpu.clocks", {"reasons": 0x80}, "warn", "power brake"),
        ("gpu.clocks", {"clock": 210}, "warn", "210 MHz of 1410"),
    ],
)
def test_nvml(
    probe: str, values: dict[str, Any], status: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml(**values)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    torch = fake_torch("CUDA")
    torch.ones = lambda *shape, device: device
    torch.mm = lambda a, b: None
    torch.cuda.synchronize = lambda index: None
    found = ask(probe, torch)
    assert found.status == status and seen in found.seen, found
    assert nvml.asked == b"0000:3b:00.0"


def test_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver without NVML, or with an old one, is no fault."""

    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert ask("gpu.ecc", fake_torch("CUDA")).status == "skip"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert ask("gpu.persistence", fake_torch("CUDA")).status == "skip"


def test_amd(root: WriteFile) -> None:
    device = "/sys/bus/pci/devices/0000:3b:00.0"
    root(f"{device}/hwmon/hwmon3/temp1_input", "71000")
    root(f"{device}/hwmon/hwmon3/freq1_input", "1700000000")
    root(f"{device}/pp_dpm_sclk", "0: 500Mhz\n1: 1700Mhz *")
    root(f"{device}/ras/umc_err_count", "ue: 0\nce: 5")
    torch = fake_torch("HIP", arch="gfx90a")
    assert gpu_state(make_run(torch), 0) == {
        "temperature_c": 71.0,
        "clock_mhz": 1700.0,
        "clock_max_mhz": 1700.0,
        "ecc": True,
        "ecc_uncorrected": 0,
    }
    assert ask("gpu.ecc", torch).status == "pass"
    root(f"{device}/ras/umc_err_count", "ue: 2\nce: 5")
    assert ask("gpu.ecc", torch).status == "fail"
