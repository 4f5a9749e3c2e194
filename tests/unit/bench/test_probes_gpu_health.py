"""Probes of the GPUs' health, with stand-ins for NVML and sysfs."""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.machine import load, monitor
from builder.bench.machine.gpu import gpu_state
from builder.bench.probes import gpu_health
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, ask_run, make_run
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


def computing_torch() -> Any:
    """A torch whose products take no time."""
    torch = fake_torch("CUDA")
    torch.float16, torch.bfloat16 = "float16", "bfloat16"
    torch.randn = lambda *shape, device, dtype: (shape, dtype)
    torch.mm = lambda a, b: a
    torch.cuda.device = lambda index: contextlib.nullcontext()
    torch.cuda.Event = lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    torch.cuda.synchronize = lambda index: None
    return torch


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
        ("gpu.clocks", {}, "pass", "GPU 0: 1400 of 1410 MHz, 64 C"),
        ("gpu.clocks", {"reasons": 0x4}, "pass", "power cap"),  # usual under full load
        ("gpu.clocks", {"reasons": 0x40 | 0x4}, "warn", "heat (hardware)"),
        ("gpu.clocks", {"reasons": 0x80}, "warn", "power brake"),
        ("gpu.clocks", {"clock": 210}, "warn", "210 of 1410 MHz"),
        ("gpu.clocks", {"clock": 600, "reasons": 0x4}, "pass", "600 of 1410 MHz"),  # a T4 with its 70 W
        ("gpu.clocks", {"clock": 300, "reasons": 0x4}, "warn", "300 of 1410 MHz"),
    ],
)
def test_nvml(
    probe: str, values: dict[str, Any], status: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = Nvml(**values)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    monkeypatch.setattr(load, "LOAD_S", 0.0)
    monkeypatch.setattr(load, "_MOST_S", math.inf)
    monkeypatch.setattr(load, "_PATIENCE_S", 120.0)
    monkeypatch.setattr(monitor, "PERIOD_S", 0.001)
    found = ask(probe, computing_torch())
    assert found.status == status and seen in found.seen, found
    assert nvml.asked == b"0000:3b:00.0"


@pytest.fixture
def nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(gpu_health, "_WATCH_S", 0.0)
    return nvml


@pytest.mark.parametrize(
    ("values", "signs"),
    [
        ({}, ""),
        ({"used": 3 << 30}, ""),  # 4 % of 80 GiB; the driver has some
        ({"used": 30 << 30, "processes": 1}, "30.0 of 80.0 GiB in use, 1 process"),
        ({"busy": 97, "processes": 2}, "97 % busy, 2 processes"),
        ({"busy": 8}, ""),
        ({"processes": 3}, ""),  # services of the node may hold a GPU open
    ],
)
def test_idle(values: dict[str, int], signs: str, nvml: FakeNvml) -> None:
    nvml.set(**values)
    run = make_run(fake_torch("CUDA"))
    found = ask_run("gpu.idle", run)
    assert found.status == ("warn" if signs else "pass"), found
    assert run.shared_gpus == ({0} if signs else set())
    assert not signs or found.seen == f"GPU 0: {signs}"


def test_idle_superchip(nvml: FakeNvml) -> None:
    """Linux uses the memory of a GH200, for files as well; it is busy or it is not."""
    torch = fake_torch("CUDA")
    torch.cuda.get_device_properties(0).name = "NVIDIA GH200 120GB"
    nvml.set(used=30 << 30)
    assert ask("gpu.idle", torch).status == "pass"
    nvml.set(used=30 << 30, busy=97)
    assert ask("gpu.idle", torch).seen == "GPU 0: 97 % busy"


def test_busy_for_a_moment(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reports an average: what has just ended, and its own start, are looked at again."""
    nvml.set(busy=97)
    monkeypatch.setattr(time, "sleep", lambda seconds: nvml.set(busy=0))
    assert ask("gpu.idle", fake_torch("CUDA")).status == "pass"


def test_idle_slice(nvml: FakeNvml) -> None:
    """Of a MIG slice only its memory is known: NVML reports all users of the whole GPU."""
    nvml.set(mig=1, busy=97, processes=9, used=70 << 30)
    torch = fake_torch("CUDA")
    torch.cuda.mem_get_info = lambda index: (9 << 30, 10 << 30)
    assert ask("gpu.idle", torch).status == "pass"
    torch.cuda.mem_get_info = lambda index: (3 << 30, 10 << 30)
    assert "7.0 of 10.0 GiB" in ask("gpu.idle", torch).seen


def test_idle_amd(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a MI300A is the host's, too, so it says nothing about other programs."""
    monkeypatch.setattr(gpu_health, "_WATCH_S", 0.0)
    device = "/sys/bus/pci/devices/0000:3b:00.0"
    torch = fake_torch("HIP", arch="gfx942")
    assert ask("gpu.idle", torch).status == "skip"
    root(f"{device}/mem_info_vram_total", str(128 << 30))
    root(f"{device}/mem_info_vram_used", str(64 << 30))
    root(f"{device}/gpu_busy_percent", "0")
    assert "64.0 of 128.0 GiB" in ask("gpu.idle", torch).seen
    torch.cuda.get_device_properties(0).name = "AMD Instinct MI300A"
    assert ask("gpu.idle", torch).status == "pass"


@pytest.mark.parametrize(
    ("link", "name", "status", "seen"),
    [
        ((5, 16, 5, 16), "NVIDIA H100 PCIe", "pass", "GPU 0: PCIe 5 x16"),
        ((3, 16, 5, 16), "NVIDIA H100 PCIe", "warn", "GPU 0: PCIe 3 x16 of PCIe 5 x16"),
        ((5, 8, 5, 16), "NVIDIA H100 PCIe", "warn", "GPU 0: PCIe 5 x8 of PCIe 5 x16"),
        ((5, 1, 5, 16), "NVIDIA GH200 120GB", "skip", "does not report"),  # it is attached by NVLink
        ((), "NVIDIA H100 PCIe", "skip", "does not report"),
    ],
)
def test_link(link: tuple[int, ...], name: str, status: str, seen: str) -> None:
    torch = fake_torch("CUDA")
    torch.cuda.get_device_properties(0).name = name
    run = make_run(torch)
    keys = ("generation", "width", "max_generation", "max_width")
    run.states_under_load[0] = {"pcie": dict(zip(keys, link, strict=False))}
    found = ask_run("gpu.link", run)
    assert found.status == status and seen in found.seen


def test_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver without NVML, or with an old one, is no fault."""

    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert ask("gpu.ecc", fake_torch("CUDA")).status == "skip"
    assert ask("gpu.clocks", fake_torch("CUDA")).status == "skip", "nothing is computed for nothing"
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
