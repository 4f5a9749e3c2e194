"""The load under which clocks and the PCIe link are read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from builder.bench.machine import load, monitor
from builder.bench.machine.load import loaded_state
from tests.support.fake_cuda import FakeGpu
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


class Loaded:
    """torch on a GPU with a clock of its own. A product of 8192x8192 matrices takes 1.5 ms."""

    def __init__(self, arch: str = "sm_90") -> None:
        self.gpu = FakeGpu()
        self.torch = fake_torch("CUDA", arch=arch)
        cuda = self.gpu.cuda()
        self.torch.cuda.Event, self.torch.cuda.synchronize = cuda.Event, self.gpu.synchronize
        self.torch.cuda.device = self.device
        self.torch.float16, self.torch.bfloat16 = "float16", "bfloat16"
        self.torch.randn = self.randn
        self.torch.mm = self.mm
        self.kinds: set[Any] = set()
        self.idle_s = 0.0

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        yield

    def randn(self, *shape: int, device: str, dtype: str) -> str:
        assert device == "cuda:0"
        self.kinds.add(dtype)
        return dtype

    def mm(self, a: str, b: str) -> None:
        if self.gpu.launched:
            self.idle_s += max(0.0, self.gpu.host_s + self.gpu.launch_s - self.gpu.free_s)
        self.gpu.launch("mm", 1.5e-3)


@pytest.fixture
def nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(monitor, "PERIOD_S", 0.001)
    monkeypatch.setattr(load, "_MOST_S", math.inf)
    monkeypatch.setattr(load, "_PATIENCE_S", 120.0)
    return nvml


@pytest.mark.parametrize(("arch", "kind"), [("sm_75", "float16"), ("sm_90", "bfloat16")])
def test_loaded(arch: str, kind: str, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue never runs empty, so no figure is one of an idle GPU."""
    loaded = Loaded(arch)
    monkeypatch.setattr(time, "monotonic", lambda: loaded.gpu.host_s)
    nvml.set(clock=1755, reasons=0x4, generation=4)
    state = loaded_state(make_run(loaded.torch), 0)
    assert loaded.kinds == {kind}
    assert len(loaded.gpu.launched) * 1.5e-3 >= load.LOAD_S
    assert loaded.idle_s == 0
    health = {"ecc": True, "ecc_uncorrected": 0, "persistence": True}
    assert state == {
        **health,
        "remap_failed": False,
        "remap_pending": False,
        "clock_mhz": 1755.0,
        "clock_max_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "power_w": 650.0,
        "temperature_c": 61.0,
        "throttled": ["power cap"],
        "pcie": {"generation": 4, "width": 16, "max_generation": 5, "max_width": 16},
    }
