"""The thread that samples a GPU: what it makes of the samples, and drivers that err or hang."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from builder.bench.core import Item
from builder.bench.machine import monitor as module
from builder.bench.machine.monitor import Monitor, monitor
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run
from tests.support.waiting import until
from tests.unit.bench.conftest import WriteFile

AMD = "/sys/bus/pci/devices/0000:3b:00.0"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples follow each other quickly, and no driver has hung before."""
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    monkeypatch.setattr(module, "_hung", threading.Event())


class Listed:
    """A GPU with given samples; the last one goes on."""

    def __init__(self, *samples: Item) -> None:
        self.samples = list(samples)

    def sample(self) -> Item:
        return self.samples.pop(0) if len(self.samples) > 1 else self.samples[0]


def watched(*samples: Item) -> Item:
    """The state of a GPU that reported these samples, and some more like the last one."""
    watch = Monitor(lambda: Listed(*samples))
    with watch.running():
        until(lambda: watch.count >= len(samples))
    return watch.state()


def test_nvidia(nvml: FakeNvml) -> None:
    """Power is the one of this moment: nvmlDeviceGetPowerUsage is an average over 1 s (Ampere and newer)."""
    nvml.set(clock=1755, temperature=67, reasons=0x4)
    with monitor(make_run(fake_torch("CUDA")), 0) as watch:
        until(lambda: watch.count >= 3)
    assert watch.state() == {
        "clock_mhz": 1755.0, "power_w": 650.0, "temperature_c": 67.0, "throttled": ["power cap"],
    }  # fmt: skip


def test_old_driver(nvml: FakeNvml) -> None:
    """The names before driver 535 and 570 are used where the newer ones are missing."""
    nvml.set(old=1, reasons=0x20)
    with monitor(make_run(fake_torch("CUDA")), 0) as watch:
        until(lambda: watch.count >= 3)
    assert watch.state() == {
        "clock_mhz": 1400.0, "power_w": 700.0, "temperature_c": 61.0, "throttled": ["heat"],
    }  # fmt: skip


def test_amd(root: WriteFile) -> None:
    root(f"{AMD}/hwmon/hwmon1/freq1_input", "1650000000")
    root(f"{AMD}/hwmon/hwmon1/power1_average", "480000000")
    with monitor(make_run(fake_torch("HIP", arch="gfx90a")), 0) as watch:
        until(lambda: watch.count >= 2)
    assert watch.state() == {"clock_mhz": 1650.0, "power_w": 480.0}


def test_throttled_by_counters(root: WriteFile, tmp_path: Path) -> None:
    """MI300 counts how long each reason held; the counters are taken modulo 2**32."""

    def write(*counters: int) -> None:
        blob = struct.pack("<HBB", 1664, 1, 6) + b"\0" * 28 + struct.pack("<6I", *counters)
        new = metrics.with_name("new")
        new.write_bytes(blob.ljust(1664, b"\0"))
        new.rename(metrics)

    metrics = tmp_path / AMD.lstrip("/") / "gpu_metrics"
    root(f"{AMD}/hwmon/hwmon1/freq1_input", "2100000000")
    write(2**32 - 100, 7, 2**32 - 50, 7, 7, 0)
    with monitor(make_run(fake_torch("HIP", arch="gfx942")), 0) as watch:
        until(lambda: watch.count >= 2)
        write(400, 7, 250, 7, 11, 0)  # 500 later: the power cap for 300 of them, a regulator's heat for 4
        reached = watch.count + 2
        until(lambda: watch.count >= reached)
    assert watch.state() == {"clock_mhz": 2100.0, "throttled": ["power cap"]}


def test_summary() -> None:
    """Median clock and power, the highest temperature; what is missing in all samples is left out."""
    samples = [{"clock_mhz": clock, "temperature_c": 60.0 + i} for i, clock in enumerate((345, 1980, 1980))]
    assert watched(*samples) == {"clock_mhz": 1980.0, "temperature_c": 62.0}


def test_throttled_for_a_moment() -> None:
    """NVML reports "hardware slowdown" while a clock changes: one sample of it is no fault."""
    slow: Item = {"throttled": ["hardware slowdown", "power cap"]}
    assert watched(slow, {"throttled": ["power cap"]}, {"throttled": []}) == {"throttled": ["power cap"]}
    assert watched({"throttled": []}, {"throttled": []}) == {"throttled": []}
    assert Monitor().state() == {}


def test_no_driver(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """No NVML, no sysfs, no torch, a torch that fails: no samples, no error."""

    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    broken = fake_torch("CUDA")
    broken.cuda.get_device_properties = lambda index: 1 / 0
    for torch in (fake_torch("CUDA"), fake_torch("HIP"), None, broken):
        with monitor(make_run(torch), 0) as watch:
            until(lambda: not watch.active)  # noqa: B023
        assert watch.state() == {}


def test_errors_of_the_driver(nvml: FakeNvml) -> None:
    """A lost GPU (15) reports nothing; a sample that raises ends the samples."""
    nvml.set(error=15, old=1, mig=-1)
    with monitor(make_run(fake_torch("CUDA")), 0) as watch:
        until(lambda: watch.count >= 2)
    assert watch.state() == {"throttled": []}

    class Broken(Listed):
        def sample(self) -> Item:
            if len(self.samples) == 1:
                raise OSError("lost")
            return super().sample()

    watch = Monitor(lambda: Broken({"clock_mhz": 1.0}, {}))
    with watch.running():
        until(lambda: not watch.active)
    assert watch.state() == {"clock_mhz": 1.0}


def test_driver_that_hangs(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block ends although the driver does not answer; it is not asked again."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    run = make_run(fake_torch("CUDA"))
    nvml.set(hang=1)
    try:
        with monitor(run, 0) as watch:
            until(lambda: nvml.calls)
        assert watch.state() == {}
        asked = nvml.calls
        with monitor(run, 0) as another:
            assert not another.active
        assert (another.state(), nvml.calls) == ({}, asked)
    finally:
        nvml.set(hang=0)
    until(lambda: not watch.active)
    assert watch.state() == {}, "what comes after the block is dropped"


def test_block_that_raises(nvml: FakeNvml) -> None:
    """The thread ends with the block."""
    with pytest.raises(ValueError, match="own"), monitor(make_run(fake_torch("CUDA")), 0) as watch:
        raise ValueError("own")
    until(lambda: not watch.active)


def test_no_more_threads(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may limit the number of threads."""

    def refuse(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with monitor(make_run(fake_torch("CUDA")), 0) as watch:
        assert not watch.active
    assert watch.state() == {}


def test_slow_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has nothing more to do, and has not ended yet, does not hang in the driver."""
    monkeypatch.setattr(module, "_PATIENCE_S", 120.0)

    class Slow(Monitor):
        def _watch(self) -> None:
            super()._watch()
            time.sleep(0.05)

    watch = Slow(lambda: None)
    with watch.running():
        until(lambda: not watch.active)
    assert not module._hung.is_set()
