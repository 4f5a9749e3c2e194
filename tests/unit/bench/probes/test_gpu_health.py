"""Probes of the GPUs' health, with stand-ins for NVML and sysfs."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.probes import gpu_health
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, ask_run, make_run
from tests.unit.bench.conftest import WriteFile


@pytest.fixture
def nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(gpu_health, "_WATCH_S", 0.0)
    return nvml


@pytest.mark.parametrize(
    ("values", "signs"),
    [
        ({}, ""),
        ({"used": 3 << 30}, ""),  # 4 % of 80 GiB; the driver has some
        ({"used": 30 << 30}, "30.0 of 80.0 GiB in use"),
        ({"busy": 97}, "97 % busy"),
    ],
)
def test_idle(values: dict[str, int], signs: str, nvml: FakeNvml) -> None:
    nvml.set(**values)
    run = make_run(fake_torch("CUDA"))
    found = ask_run("gpu.idle", run)
    assert found.status == ("warn" if signs else "pass"), found
    assert run.shared_gpus == ({0} if signs else set())
    assert not signs or found.seen == f"GPU 0: {signs}"


def test_busy_for_a_moment(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reports an average: what has just ended, and its own start, are looked at again."""
    nvml.set(busy=97)
    monkeypatch.setattr(time, "sleep", lambda seconds: nvml.set(busy=0))
    assert ask("gpu.idle", fake_torch("CUDA")).status == "pass"


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
    ("active", "status", "seen"),
    [(18, "pass", "GPU 0: 18 of 18 links"), (17, "warn", "GPU 0: 17 of 18 links")],
)
def test_nvlink(active: int, status: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    links = {"nvlink": {"links": 18, "active": active}}
    monkeypatch.setattr(gpu_health, "identity", lambda run, index: links)
    found = ask("gpu.nvlink", fake_torch("CUDA"))
    assert found.status == status and found.seen == seen


@pytest.mark.parametrize(
    ("values", "name", "status", "seen"),
    [
        ({}, "NVIDIA H200", "pass", "no uncorrected error"),
        ({"errors": 3}, "NVIDIA H200", "fail", "GPU 0: 3 memory errors"),
        ({"failed": 1}, "NVIDIA H200", "fail", "could not be replaced"),
        ({"pending": 1}, "NVIDIA H200", "warn", "waiting to be replaced"),
        ({"ecc": 0}, "NVIDIA H200", "warn", "ECC is off"),
        ({"ecc": 0}, "NVIDIA GeForce RTX 4090", "pass", "ECC is off, as usual for this GPU"),
        ({"error": 3}, "NVIDIA H200", "skip", "does not report"),
    ],
)
def test_ecc(values: dict[str, int], name: str, status: str, seen: str, nvml: FakeNvml) -> None:
    """Memory errors; only GPUs of data centres have ECC on by default."""
    nvml.set(**values)
    torch = fake_torch("CUDA")
    torch.cuda.get_device_properties(0).name = name
    found = ask("gpu.ecc", torch)
    assert found.status == status and seen in found.seen, found


@pytest.mark.parametrize(
    ("clock", "throttled", "status", "seen"),
    [
        (1400, [], "pass", "GPU 0: 1400 of 1980 MHz, 64 C"),
        (1400, ["heat", "power cap"], "warn", "throttled by heat"),
        (300, [], "warn", "300 of 1980 MHz"),
        (600, ["power cap"], "pass", "600 of 1980 MHz"),  # a T4 with its 70 W
        (300, ["power cap"], "warn", "300 of 1980 MHz"),
    ],
)
def test_clocks(clock: float, throttled: list[str], status: str, seen: str, nvml: FakeNvml) -> None:
    """What was sampled during the last product counts."""
    run = make_run(fake_torch("CUDA"))
    state: Any = {"clock_mhz": float(clock), "temperature_c": 64.0, "throttled": throttled}
    run.results += [{"id": "matmul.bf16", **state}, {"id": "matmul.fp8", "status": "skip"}]
    found = ask_run("gpu.clocks", run)
    assert found.status == status and seen in found.seen, found
    assert run.loaded["clock_max_mhz"] == 1980.0


def test_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver without NVML, or with an old one, is no fault."""

    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    for name in ("gpu.ecc", "gpu.clocks"):
        assert ask(name, fake_torch("CUDA")).status == "skip"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert ask("gpu.nvlink", fake_torch("CUDA")).status == "skip"
