"""The cost of a kernel's launch, on a stand-in for a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.core import Run
from builder.bench.examine import perform
from builder.bench.measurements import launch
from tests.support.fake_cuda import FakeGpu
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


class Counter:
    """A number on a GPU; adding to it launches a kernel."""

    def __init__(self, gpu: FakeGpu, kernel_s: float, lost: int) -> None:
        self.gpu, self.kernel_s, self.value = gpu, kernel_s, -lost

    def add_(self, number: int) -> None:
        self.gpu.launch("add", self.kernel_s)
        self.value += number

    def item(self) -> int:
        return self.value


def run_on(
    patch: pytest.MonkeyPatch, gpu: FakeGpu, kernel_s: float = 2e-6, *, lost: int = 0
) -> dict[str, Any]:
    """The result on a GPU whose kernels take ``kernel_s``; ``lost`` of them do nothing."""
    torch = fake_torch("CUDA")
    torch.cuda = SimpleNamespace(**{**vars(torch.cuda), **vars(gpu.cuda())})
    torch.int32 = None
    torch.zeros = lambda *a, **more: Counter(gpu, kernel_s, lost)
    gpu.use_clock(patch)
    run: Run = make_run(torch, expect="nvidia", budget=1e9)
    return perform("launch", lambda: launch.measure_launch(run))


def test_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue hides the kernels behind their launches; a single kernel is waited for."""
    found = run_on(monkeypatch, FakeGpu(launch_s=5e-6))
    assert found["status"] == "pass" and found["median_us"] == pytest.approx(5.0, rel=0.01)
    assert found["round_trip_us"] == pytest.approx(7.0, rel=0.01)
    assert (found["repeats"], found["better"], found["device"]) == (launch.QUEUES, "lower", "cuda:0")


def test_first_calls_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_on(monkeypatch, FakeGpu(launch_s=5e-6, first_s=3.0))
    assert max(found["samples_us"]) < 6


def test_slow_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each kernel takes longer than its launch, as with a blocking launch, that is seen."""
    assert run_on(monkeypatch, FakeGpu(), 40e-6)["median_us"] == pytest.approx(40.0, rel=0.01)


def test_kernels_that_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_on(monkeypatch, FakeGpu(), lost=7)
    assert found["status"] == "fail" and "kernels that ran" in found["seen"]


def test_long_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow host the time limit ends it."""
    found = run_on(monkeypatch, FakeGpu(launch_s=1e-3))
    assert found["repeats"] == 3
