"""Time on a GPU: warm, in batches, without launches; on a stand-in with a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.core import Run
from builder.bench.examine import perform
from builder.bench.measurements import matmul
from builder.bench.measurements import timing as module
from builder.bench.measurements.timing import Timing, rate, timed
from tests.support.fake_cuda import FakeGpu, fake_gpu_torch
from tests.support.smoke import make_run

KERNEL_S = 100e-6
STATE = {"clock_mhz": 1980.0, "power_w": 690.0, "temperature_c": 61.0, "throttled": ["power cap"]}
#: Floating-point operations per second of four GPUs: an H200, an A100, a GCD of a MI250X, a T4.
FAST = {"float64": 60e12, "float32": 50e12, "tf32": 400e12, "float16": 750e12, "bfloat16": 790e12,
        "float8_e4m3fn": 1450e12}  # fmt: skip
SLOW = {"float64": 0.25e12, "float32": 7e12, "float16": 25e12}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FakeGpu, Run]]:
    """``made(first_s=0.2)``: such a GPU, with its clock in use, and a rank on it."""

    def make(
        speeds: dict[str, float] = FAST, architecture: str = "sm_90", budget: float | None = None, **gpu: Any
    ) -> tuple[FakeGpu, Run]:
        found = FakeGpu(**gpu)
        found.use_clock(monkeypatch)
        torch = fake_gpu_torch(found, speeds, architecture)
        return found, make_run(torch, expect="nvidia", budget=budget)

    watch = SimpleNamespace(sample=lambda: None, state=lambda: STATE)
    monkeypatch.setattr(module, "monitor", lambda run, index: watch)
    monkeypatch.setattr(matmul, "product_error", lambda *arguments: 0.0)
    return make


Made = Callable[..., tuple[FakeGpu, Run]]


def time_kernel(gpu: FakeGpu, run: Run, seconds: float = KERNEL_S) -> Timing:
    return timed(run, lambda: gpu.launch("kernel", seconds))


def test_launch_is_not_measured(made: Made) -> None:
    """The host needs 15 us for a launch, which is 15 % of this kernel (A3)."""
    timing = time_kernel(*made(launch_s=15e-6))
    assert rate("x", 1.0, timing)["median_x"] == pytest.approx(1 / KERNEL_S, rel=0.002)


@pytest.mark.parametrize("seconds", [25e-6, 9e-3, 0.6])
def test_long_enough(seconds: float, made: Made) -> None:
    """A kernel warms up for 0.25 s and is sampled for 0.4 s; slow ones at least 3 times, nothing
    for ever.
    """
    gpu, run = made(launch_s=10e-6)
    timing = time_kernel(gpu, run, seconds)
    assert len(timing) >= (5 if seconds < 0.4 else 3)
    assert gpu.host_s >= 0.65 and gpu.host_s <= 0.85 + 7 * seconds


# sizes -------------------------------------------------------------------------------------------


def sizes(item: dict[str, Any]) -> list[int]:
    return [product["size"] for product in item["sizes"]]


@pytest.mark.parametrize(("first_s", "budget"), [(5.0, None), (0.3, 3.0)])
def test_first_call_does_not_limit_sizes(first_s: float, budget: float | None, made: Made) -> None:
    """A first call of a second, or 3 s of budget, leave the sizes that fill an H200 (A1)."""
    _, run = made(first_s=first_s, budget=budget)
    item = matmul.measure_matmul(run, "bf16")
    assert sizes(item)[:3] == [2048, 4096, 8192] and item["size"] >= 8192
    assert item["median_gflop_per_s"] == pytest.approx(790e3, rel=0.01)


def test_slow_sizes_are_left_out(made: Made) -> None:
    """Double precision on a T4: size 4096 takes 0.55 s, size 8192 would take 4.4 s for each
    product.
    """
    gpu, run = made(SLOW, "sm_75")
    assert sizes(matmul.measure_matmul(run, "fp64")) == [2048, 4096]
    assert gpu.host_s < 6


@pytest.mark.parametrize(("architecture", "status"), [("sm_90", "fail"), ("gfx942", "pass")])
def test_other_bits_under_load(architecture: str, status: str, made: Made) -> None:
    """A GPU that computes another product when it is warm is broken (B4); AMD's libraries promise
    nothing.
    """
    gpu, run = made(FAST | {"float8_e4m3fnuz": 1e15}, architecture)
    right = run.torch.matmul

    def flaky(a: Any, b: Any) -> Any:
        product = right(a, b)
        product.dtype += f" {len(gpu.launched) // 100}"
        return product

    run.torch.matmul = flaky
    item = perform("matmul.bf16", lambda: matmul.measure_matmul(run, "bf16"))
    assert item["status"] == status
    if status == "fail":
        assert "under load, 1 entries of the same bf16 product of size 2048 differ" in item["seen"]


def test_other_bits_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """One difference that a second product does not show is a warning, with its figure."""
    _, run = made()
    found = iter([1, 0, 0, 0, 0])
    monkeypatch.setattr(matmul, "_differing", lambda run, results: next(found))
    item = perform("matmul.bf16", lambda: matmul.measure_matmul(run, "bf16"))
    assert item["status"] == "warn" and "those of a second product do not" in item["seen"]
    assert item["median_gflop_per_s"] > 0 and item["device"] == "cuda:0"


def test_tf32_that_is_not_in_force(made: Made) -> None:
    """torch's switch changes nothing, as on MI300 with torch 2.7: fp32 speed is no figure of TF32
    (A2).
    """
    slow = {key: value for key, value in FAST.items() if key != "tf32"}
    for architecture in ("sm_90", "gfx942"):
        _, run = made(slow, architecture)
        item = perform("matmul.tf32", lambda run=run: matmul.measure_matmul(run, "tf32"))
        assert item["status"] == "skip" and "has no effect" in item["seen"]
    _, run = made(FAST, "gfx942")
    assert matmul.measure_matmul(run, "tf32")["median_gflop_per_s"] == pytest.approx(400e3, rel=0.01)


def test_fp8(made: Made) -> None:
    """MI300 has a type of its own; a torch that refuses, or has no such type, is a skip."""
    _, run = made({**FAST, "float8_e4m3fnuz": 1e15}, "gfx942")
    assert matmul.measure_matmul(run, "fp8")["median_gflop_per_s"] == pytest.approx(1e6, rel=0.01)
    _, run = made()
    assert matmul.measure_matmul(run, "fp8")["size"] >= 8192

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0"
        )

    run.torch._scaled_mm = refuse
    assert "is only supported" in perform("x", lambda: matmul.measure_matmul(run, "fp8"))["seen"]
    del run.torch.float8_e4m3fn
    item = perform("x", lambda: matmul.measure_matmul(run, "fp8"))
    assert item["status"] == "skip" and item["seen"] == "torch 2.9 has no float8_e4m3fn"
