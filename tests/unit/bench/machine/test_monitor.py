"""Samples of a GPU: what is made of them, and drivers that err."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from builder.bench.core import Item
from builder.bench.machine.monitor import Monitor, monitor
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


def sampled(*samples: Item) -> Item:
    """The state of a GPU that reported these samples, and then an error."""
    left = list(samples)
    watch = Monitor(SimpleNamespace(sample=lambda: left.pop(0)))
    for _ in range(len(samples) + 2):
        watch.sample()
    return watch.state()


@pytest.mark.parametrize(("old", "reasons", "name"), [(0, 0x4, "power cap"), (1, 0x20, "heat")])
def test_nvidia(old: int, reasons: int, name: str, nvml: FakeNvml) -> None:
    """Drivers before 535 have another name for the reasons of a low clock."""
    nvml.set(clock=1755, temperature=67, reasons=reasons, old=old)
    watch = monitor(make_run(fake_torch("CUDA")), 0)
    watch.sample()
    watch.sample()
    assert watch.state() == {
        "clock_mhz": 1755.0, "power_w": 700.0, "temperature_c": 67.0, "throttled": [name],
    }  # fmt: skip


def test_summary() -> None:
    """Median clock and power, the highest temperature; an error ends the samples."""
    samples = [{"clock_mhz": clock, "temperature_c": 60.0 + i} for i, clock in enumerate((345, 1980, 1980))]
    assert sampled(*samples) == {"clock_mhz": 1980.0, "temperature_c": 62.0}


def test_throttled_for_a_moment() -> None:
    """NVML reports "hardware slowdown" while a clock changes: one sample of it is no fault."""
    slow: Item = {"throttled": ["hardware slowdown", "power cap"]}
    assert sampled(slow, {"throttled": ["power cap"]}, {"throttled": []}) == {"throttled": ["power cap"]}
    assert sampled({"throttled": []}, {"throttled": []}) == {"throttled": []}


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NVML, no torch, a torch that fails: no samples, no error."""

    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    broken = fake_torch("CUDA")
    broken.cuda.get_device_properties = lambda index: 1 / 0
    for torch in (fake_torch("CUDA"), None, broken):
        watch = monitor(make_run(torch), 0)
        watch.sample()
        assert watch.state() == {}
