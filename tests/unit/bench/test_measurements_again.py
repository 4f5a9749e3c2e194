"""A CPU on which another program comes and goes: nothing fails that is not slow."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.core import Item, Run
from builder.bench.examine import perform
from builder.bench.measurements import again
from builder.bench.measurements.timing import rate, timed
from builder.smoke.grade import Expected, grade
from builder.smoke.reference import references
from tests.support.reports import report
from tests.support.schema import check_report
from tests.support.smoke import make_run

PEAK, BANDWIDTH = 190e9, 35e9
BIG, SMALL, ARRAY = 1024, 512, 128 << 20
SLICE_S = 4e-3


class BusyMachine:
    """A processor with a clock of its own. Another program comes and goes, and takes 3/4 to 7/8 of it.

    With ``slices`` it does so as a scheduler does: this process runs for 4 ms, then waits.

        other program   _____###########______##########____
        with slices     _____# # # # # #______ # # # # # ___
    """

    def __init__(self, rng: random.Random, slices: bool) -> None:
        self.rng, self.slices = rng, slices
        self.now = 0.0
        self.slow = rng.random() < 0.5
        self.factor = 1.0
        self.until = 0.0

    def be_quiet(self) -> None:
        """The other program never comes."""
        self.slow, self.until = False, 1e9

    def _switch(self) -> None:
        self.slow = not self.slow
        self.factor = self.rng.uniform(4, 8)
        self.until = self.now + self.rng.uniform(0.2, 4)

    def work(self, seconds: float) -> None:
        """Lets so much time pass that the processor works for ``seconds``."""
        while seconds > 1e-12:
            if self.now >= self.until:
                self._switch()
            left = self.until - self.now
            if not self.slow:
                step = min(seconds, left)
                self.now += step
                seconds -= step
            elif self.slices:
                position = self.now % (SLICE_S * self.factor)
                if position < SLICE_S - 1e-9:
                    step = min(seconds, SLICE_S - position, left)
                    self.now += step
                    seconds -= step
                else:
                    self.now += min(SLICE_S * self.factor - position + 1e-9, left)
            else:
                step = min(seconds * self.factor, left)
                self.now += step
                seconds -= step / self.factor

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Array:
    """What the measurements use of a tensor of ``ARRAY`` bytes."""

    def __init__(self, machine: BusyMachine) -> None:
        self.machine = machine

    def remainder_(self, number: int) -> Array:
        return self

    def copy_(self, other: Array) -> None:
        self.machine.work(2 * ARRAY / BANDWIDTH)

    def __ne__(self, other: object) -> Any:
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 0))


class SimulatedRun:
    """A run of the benchmark on such a machine."""

    def __init__(self, patch: pytest.MonkeyPatch, seed: int, slices: bool, slowness: float = 1.0) -> None:
        """``slowness``: by this factor the big product is slower than the processor allows. A negative
        ``seed``: no other program runs."""
        self.machine = machine = BusyMachine(random.Random(seed), slices)
        if seed < 0:
            machine.be_quiet()
        self.slowness = slowness
        for name in ("perf_counter", "monotonic"):
            patch.setattr(time, name, lambda: machine.now)
        patch.setattr(again, "random_matrix", lambda run, n, seed: SimpleNamespace(n=n))
        patch.setattr(again, "product_error", lambda *a: 0.0)
        array = Array(machine)
        torch = SimpleNamespace(
            mm=self.multiply,
            empty_like=lambda a: a,
            arange=lambda *a, **more: array,
            zeros_like=lambda a: Array(machine),
            add=lambda a, b, **more: machine.work(3 * ARRAY / BANDWIDTH),
            float32=None,
        )
        self.run: Run = make_run(torch, expect="none")
        self.multiply_big = lambda: self.multiply(SimpleNamespace(n=BIG))
        self.measure("matmul.fp32", self.multiply_big, "gflop_per_s", 2e-9 * BIG**3, BIG)
        machine.wait(2.5)  # other measurements
        self.measure(
            "cpu.peak",
            lambda: self.multiply(SimpleNamespace(n=SMALL)),
            "gflop_per_s",
            2e-9 * SMALL**3,
            SMALL,
        )
        machine.wait(2.5)
        self.measure("memory.copy", lambda: array.copy_(array), "gb_per_s", 2e-9 * ARRAY, ARRAY)
        self.measure("memory.triad", lambda: torch.add(array, array), "gb_per_s", 3e-9 * ARRAY, ARRAY)

    def multiply(self, a: Any, *_: Any, **more: Any) -> None:
        slowness = self.slowness if a.n == BIG else 1.0
        self.machine.work(slowness * 2 * a.n**3 / PEAK)

    def measure(self, name: str, function: Any, unit: str, amount: float, size: int) -> None:
        run = self.run
        seconds = timed(SimpleNamespace(torch=None, synchronize=lambda: None), function, limit_s=0.5)  # type: ignore[arg-type]
        check: Item = {"correctness": {"check": "c", "value": 0, "limit": 0, "ok": True}}
        fields = {"device": "cpu", "size": size, "flop": 2.0 * size**3, "bytes": 12.0 * size**2}
        run.results.append(perform(name, lambda: {**rate(unit, amount, seconds), **fields, **check}))

    def verdict(self, *, with_again: bool = True) -> str:
        results = list(self.run.results)
        if with_again:
            results.append(perform("again.matmul", lambda: again.measure_product_again(self.run)))
            results.append(perform("again.copy", lambda: again.measure_copy_again(self.run)))
        made = grade(report(results), references(), Expected())
        check_report(made)
        return str(made["verdict"])


@pytest.mark.parametrize("slices", [False, True])
def test_no_false_failure(monkeypatch: pytest.MonkeyPatch, slices: bool) -> None:
    """Another program that comes and goes lets no run of 50 fail; without the repetition a third does."""
    runs = (SimulatedRun(monkeypatch, seed, slices) for seed in range(50))
    before, after = zip(*((run.verdict(with_again=False), run.verdict()) for run in runs), strict=True)
    assert before.count("fail") >= 5
    assert after.count("fail") == 0 and after.count("warn") <= before.count("warn")


@pytest.mark.parametrize("slices", [False, True])
def test_true_failure(monkeypatch: pytest.MonkeyPatch, slices: bool) -> None:
    """A library that reaches a sixth of the processor's speed fails, whatever else runs.

    It is missed only where cpu.peak alone met the other program, as without the repetition.
    """
    before = after = 0
    for seed in range(20):
        made = SimulatedRun(monkeypatch, seed, slices, slowness=6.0)
        before += made.verdict(with_again=False) == "fail"
        after += made.verdict() == "fail"
    assert before >= 5 and after >= 0.7 * before


def test_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another program nothing is measured again; what is slow is, and fails."""
    made = SimulatedRun(monkeypatch, -1, False)
    assert made.verdict() == "pass"
    skipped = perform("again.matmul", lambda: again.measure_product_again(made.run))
    assert skipped["status"] == "skip" and "not needed: matmul.fp32 reaches 100 %" in skipped["seen"]
    slow = SimulatedRun(monkeypatch, -1, False, slowness=6.0)
    assert slow.verdict() == "fail"
    found = perform("again.matmul", lambda: again.measure_product_again(slow.run))
    assert found["median_fraction"] == pytest.approx(1 / 6, rel=0.01) and found["repeats"] >= again.LEAST


def test_nothing_to_repeat() -> None:
    """Where one of the two was not measured, there is nothing to compare."""
    found = perform("again.copy", lambda: again.measure_copy_again(make_run()))
    assert (found["status"], found["seen"]) == (
        "skip",
        "memory.copy and memory.triad were not both measured",
    )
