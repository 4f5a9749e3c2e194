"""Time on a GPU: warm, in batches, without launches; on a stand-in with a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench import examine as examine_module
from builder.bench.core import BUDGETS_S, EXCUSED_S, Run
from builder.bench.examine import examine, perform
from builder.bench.measurements import MEASUREMENTS, matmul
from builder.bench.measurements import timing as module
from builder.bench.measurements.accuracy import checked
from builder.bench.measurements.timing import Timing, rate, timed
from builder.bench.options import parse
from builder.bench.probes import compiler, gpu_memory
from builder.smoke.options import SmokeOptions
from tests.support.fake_cuda import FakeGpu, fake_gpu_torch
from tests.support.smoke import make_run

KERNEL_S = 100e-6
STATE = {"clock_mhz": 1980.0, "power_w": 690.0, "temperature_c": 61.0, "throttled": ["power cap"]}
#: Floating-point operations per second of four GPUs: an H200, an A100, a GCD of a MI250X, a T4.
FAST = {"float64": 60e12, "float32": 50e12, "tf32": 400e12, "float16": 750e12, "bfloat16": 790e12,
        "float8_e4m3fn": 1450e12}  # fmt: skip
AMPERE = {"float64": 18e12, "float32": 19e12, "tf32": 120e12, "float16": 250e12, "bfloat16": 250e12}
CDNA2 = {"float64": 27e12, "float32": 33e12, "float16": 120e12, "bfloat16": 120e12}
SLOW = {"float64": 0.25e12, "float32": 7e12, "float16": 25e12}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FakeGpu, Run]]:
    """``made(ramp_s=0.2)``: such a GPU, with its clock in use, and a rank on it."""

    def make(
        speeds: dict[str, float] = FAST, architecture: str = "sm_90", budget: float | None = None, **gpu: Any
    ) -> tuple[FakeGpu, Run]:
        found = FakeGpu(**gpu)
        found.use_clock(monkeypatch)
        torch = fake_gpu_torch(found, speeds, architecture)
        return found, make_run(torch, expect="nvidia", budget=budget)

    @contextmanager
    def watched(run: Run, index: int) -> Iterator[Any]:
        yield SimpleNamespace(state=lambda: STATE)

    monkeypatch.setattr(module, "monitor", watched)
    monkeypatch.setattr(matmul, "product_error", lambda *arguments: 0.0)
    return make


Made = Callable[..., tuple[FakeGpu, Run]]


def time_kernel(gpu: FakeGpu, run: Run, seconds: float = KERNEL_S) -> Timing:
    return timed(run, lambda: gpu.launch("kernel", seconds))


def test_launch_is_not_measured(made: Made) -> None:
    """The host needs 15 us for a launch, which is 15 % of this kernel (A3)."""
    timing = time_kernel(*made(launch_s=15e-6))
    assert rate("x", 1.0, timing)["median_x"] == pytest.approx(1 / KERNEL_S, rel=0.002)


def test_one_synchronization_per_batch(made: Made) -> None:
    """Batches of 50 ms: some ten synchronizations, not one for each of the samples."""
    gpu, run = made()
    timing = time_kernel(gpu, run)
    assert 100 < len(timing) < 400 and gpu.synchronizations < len(timing) / 5


@pytest.mark.parametrize("seconds", [25e-6, 0.5e-3, 9e-3, 0.06, 0.6, 3.0])
def test_long_enough(seconds: float, made: Made) -> None:
    """A kernel warms up for 0.25 s and is sampled for 0.4 s; slow ones at least 3 times, nothing for ever."""
    gpu, run = made(launch_s=10e-6)
    timing = time_kernel(gpu, run, seconds)
    assert len(timing) >= (5 if seconds < 0.4 else 3)
    assert gpu.host_s >= 0.65 and gpu.host_s <= 0.85 + 7 * seconds


def test_ramp_does_not_count(made: Made) -> None:
    """The clock needs 0.2 s from idle to its maximum (A4)."""
    timing = time_kernel(*made(ramp_s=0.2))
    assert rate("x", 1.0, timing)["median_x"] == pytest.approx(1 / KERNEL_S, rel=0.002)


def test_power_limit(made: Made) -> None:
    """The power limit acts after 0.4 s: visible as burst against sustained; the headline is the median."""
    item = rate("x", KERNEL_S, time_kernel(*made(cap_after_s=0.4, capped=0.8)))
    assert item["burst_x"] == pytest.approx(1.0, rel=0.01)
    assert item["sustained_x"] == pytest.approx(0.8, rel=0.01)
    assert 0.79 < item["median_x"] < 1.01


def test_fields(made: Made) -> None:
    """The state of the GPU during the samples is beside its figure; a figure of a CPU has none of this."""
    item = rate("gb_per_s", 1.0, time_kernel(*made(first_s=2.0)))
    assert {key: item[key] for key in STATE} == STATE
    assert item["first_s"] == pytest.approx(2.0, rel=0.01)
    plain = rate("gb_per_s", 1.0, Timing([1.0, 1.0]))
    assert not [key for key in plain if key.startswith(("sustained", "burst", "first"))]


def test_first_call_is_not_of_the_budget(made: Made) -> None:
    """MIOpen may search for 30 s (A7): what is left for the other measurements does not depend on it."""
    gpu, run = made(first_s=30.0)
    run.started = 0.0
    time_kernel(gpu, run)
    assert gpu.host_s > 30 and run.left_s > BUDGETS_S["gpu"] - 2
    for _ in range(9):
        gpu._seen.clear()
        time_kernel(gpu, run)
    assert run.left_s < 0, "--timeout would end the run before its budget does"


def test_cpu() -> None:
    """On a CPU the clock measures, at most 40 times."""
    run = make_run(None)
    run.framework = SimpleNamespace(gpus=0, module=None)
    calls: list[int] = []
    timing = timed(run, lambda: calls.append(1), limit_s=60)
    assert len(timing) == 40 and len(calls) == 42 and timing.first_s is None


# sizes -----------------------------------------------------------------------------------------------------


def sizes(item: dict[str, Any]) -> list[int]:
    return [product["size"] for product in item["sizes"]]


@pytest.mark.parametrize(("first_s", "budget"), [(0.0, None), (1.0, None), (5.0, None), (0.3, 3.0)])
def test_first_call_does_not_limit_sizes(first_s: float, budget: float | None, made: Made) -> None:
    """A first call of a second, or 3 s of budget, leave the sizes that fill an H200 (A1)."""
    _, run = made(first_s=first_s, budget=budget)
    item = matmul.measure_matmul(run, "bf16")
    assert sizes(item)[:3] == [2048, 4096, 8192] and item["size"] >= 8192
    assert item["median_gflop_per_s"] == pytest.approx(790e3, rel=0.01)


def test_slow_sizes_are_left_out(made: Made) -> None:
    """Double precision on a T4: size 4096 takes 0.55 s, size 8192 would take 4.4 s for each product."""
    gpu, run = made(SLOW, "sm_75")
    assert sizes(matmul.measure_matmul(run, "fp64")) == [2048, 4096]
    assert gpu.host_s < 6


@pytest.mark.parametrize(("architecture", "status"), [("sm_90", "fail"), ("gfx942", "pass")])
def test_other_bits_under_load(architecture: str, status: str, made: Made) -> None:
    """A GPU that computes another product when it is warm is broken (B4); AMD's libraries promise nothing."""
    gpu, run = made(FAST | {"float8_e4m3fnuz": 1e15}, architecture)
    right = run.torch.matmul

    def flaky(a: Any, b: Any) -> Any:
        product = right(a, b)
        product.dtype += " warm" if len(gpu.launched) > 100 else ""
        return product

    run.torch.matmul = flaky
    item = perform("matmul.bf16", lambda: matmul.measure_matmul(run, "bf16"))
    assert item["status"] == status
    if status == "fail":
        assert "under load, 1 entries of the same bf16 product of size 2048 differ" in item["seen"]


def test_tf32_that_is_not_in_force(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's switch changes nothing, as on MI300 with torch 2.7: fp32 speed is no figure of TF32 (A2)."""
    slow = {key: value for key, value in FAST.items() if key != "tf32"}
    for architecture in ("sm_90", "gfx942"):
        _, run = made(slow, architecture)
        item = perform("matmul.tf32", lambda run=run: matmul.measure_matmul(run, "tf32"))
        assert item["status"] == "skip" and "has no effect" in item["seen"]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    item = perform("matmul.tf32", lambda: matmul.measure_matmul(run, "tf32"))
    assert "NVIDIA_TF32_OVERRIDE=0" in item["seen"]
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


# a whole run -----------------------------------------------------------------------------------------------

#: Seconds of the kernel, and of the host before it: arrays, pinned memory, checks.
OTHERS = {
    "memory.copy": (0.5e-3, 0.2),
    "memory.triad": (0.8e-3, 0.3),
    "transfer.h2d_pinned": (5e-3, 0.5),
    "transfer.h2d_pageable": (25e-3, 0.2),
    "transfer.d2h_pinned": (5e-3, 0.5),
    "transfer.d2h_pageable": (25e-3, 0.2),
    "attention": (10e-3, 0.5),
    "conv.training": (7e-3, 0.5),
}
#: Seconds of those that rank 0 measures alone: at least, and their share.
ALONE = {
    "torch.import_time": (4.0, 8.0),
    "dataloader": (2.0, 5.0),
    "checkpoint.write": (0.5, 2.5),
    "checkpoint.read": (0.3, 2.0),
}
#: Seconds of probes whose time is not that of the budget.
PROBES_S = {
    "torch.import": 6.0,
    "gpu.compute": 1.0,
    "gpu.clocks": 1.0,
    "gpu.memory": 2.0,
    "torch.compile": 15.0,
}


def whole(gpu: FakeGpu, run: Run, monkeypatch: pytest.MonkeyPatch, slower: float = 1.0) -> list[str]:
    """The measurements of a whole run, in order; products are the real ones, others take virtual time."""
    check = checked("x", 0, 0, True)

    def other(name: str) -> Callable[[Run], Any]:
        def look(run: Run) -> Any:
            if name in ALONE:
                gpu.host_s += max(ALONE[name][0], run.share(ALONE[name][1]))
                return {}
            kernel_s, host_s = OTHERS.get(name, (2e-3, 0.2))
            gpu.host_s += host_s
            return {**rate("x", 1.0, timed(run, lambda: gpu.launch(name, slower * kernel_s))), **check}

        return look

    planned = [
        m if m.id.startswith("matmul.") else m._replace(look=other(m.id))
        for m in MEASUREMENTS
        if m.scope != "all"
    ]
    monkeypatch.setattr(examine_module, "MEASUREMENTS", planned)
    monkeypatch.setattr(examine_module, "PROBES", [])
    monkeypatch.setattr(examine_module, "facts", lambda run: {})
    monkeypatch.setattr(examine_module, "spin", lambda run: setattr(gpu, "host_s", gpu.host_s + 0.06))
    events = list(examine(run, lambda: {}))
    found = [event["measurement"] for event in events if "measurement" in event]
    assert not [item for item in found if item["status"] == "fail"], found
    return [item["id"] for item in found if item["status"] == "pass"]


@pytest.mark.parametrize(
    ("speeds", "architecture", "slower"),
    [(FAST, "sm_90", 1.0), (AMPERE, "sm_80", 2.5), (CDNA2, "gfx90a", 4.0), (SLOW, "sm_75", 10.0)],
    ids=["H200", "A100", "MI250X", "T4"],
)
def test_whole_run_fits(
    speeds: dict[str, float],
    architecture: str,
    slower: float,
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warm run on one GPU ends within 90 s with its probes, and nothing is left out."""
    gpu, run = made(speeds, architecture, first_s=0.2, launch_s=10e-6)
    whole(gpu, run, monkeypatch, slower)
    assert gpu.host_s + sum(PROBES_S.values()) < 90 and run.missed == []


def test_cold_node_fits() -> None:
    """Eight ranks that find nothing in any cache reach their end before --timeout."""
    import_s, turns_s, together_s = 40.0, 7 * 6.0, 40.0
    rank_s = (
        BUDGETS_S["gpu"] + EXCUSED_S + PROBES_S["gpu.clocks"] + 2 * gpu_memory._LIMIT_S + compiler.LIMIT_S
    )
    assert import_s + turns_s + together_s + rank_s < parse([]).timeout == SmokeOptions().timeout_s


def test_slow_import(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import took 80 s, and a library searches 1.5 s for each kernel: nothing is left out (A6, A7)."""
    gpu, run = made(first_s=1.5)
    gpu.host_s = 80.0
    done = whole(gpu, run, monkeypatch)
    assert run.missed == [] and done[0] == "matmul.bf16"


def test_what_is_graded_comes_first(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 6 s the products in bf16 and the memory are measured, not the start of Python."""
    gpu, run = made(budget=6.0)
    done = whole(gpu, run, monkeypatch)
    assert done[0] == "matmul.bf16" and "memory.copy" in done and "torch.import_time" in run.missed
    alone = [m.id for m in MEASUREMENTS if m.scope == "once"]
    others = [m.id for m in MEASUREMENTS if m.scope == "device"]
    order = [m.id for m in MEASUREMENTS]
    assert max(order.index(name) for name in others) < min(order.index(name) for name in alone)
