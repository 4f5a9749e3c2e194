"""How measurements measure time, and how the report shows it."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

from ..core import Item, Run


def timed(
    run: Run, function: Callable[[], Any], most: int = 40, limit_s: float = 0.6, exactly: int | None = None
) -> list[float]:
    """Seconds of each repetition of a function, after two runs for warm-up.

    On a GPU the device's own events measure the time of torch, else the clock does: functions of other
    frameworks return when the device is done.

    Args:
        run: whose device is measured.
        function: what is measured.
        most: the largest number of repetitions.
        limit_s: repeat no longer than this, but at least 5 times (3 times on a slow machine).
        exactly: repeat this often, however long it takes; for collectives, where all ranks must agree.
    """
    started = time.perf_counter()
    function()
    least = 3 if time.perf_counter() - started > limit_s else 5
    function()
    run.synchronize()

    once = _time_on_gpu if run.torch is not None and run.on_gpu else _time_on_cpu
    if exactly is not None:
        return [once(run, function) for _ in range(exactly)]
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < least or (len(samples) < most and time.perf_counter() - started < limit_s):
        samples.append(once(run, function))
    return samples


def _time_on_gpu(run: Run, function: Callable[[], Any]) -> float:
    event = run.torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    function()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _time_on_cpu(run: Run, function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def spread(unit: str, samples: list[float]) -> Item:
    """Median, median absolute deviation (MAD), samples and their number, under names that end in the unit."""
    median = statistics.median(samples)
    return {
        "median_" + unit: median,
        "mad_" + unit: statistics.median(abs(sample - median) for sample in samples),
        "samples_" + unit: samples,
        "repeats": len(samples),
    }


def rate(unit: str, amount: float, seconds: list[float]) -> Item:
    """``spread`` of an amount per second.

    ``lost_fraction`` is the part of the whole time that went beyond the median: large if something disturbed
    the run.
    """
    lost = 1 - min(1.0, statistics.median(seconds) * len(seconds) / sum(seconds))
    return {**spread(unit, [amount / s for s in seconds]), "better": "higher", "lost_fraction": lost}


def spin(run: Run, seconds: float = 0.06) -> None:
    """Computes for a short time, to measure this process's share of a core (probe ``machine.steady``)."""
    wall, busy = time.perf_counter(), time.thread_time()
    number = 1
    while time.perf_counter() - wall < seconds:
        for _ in range(2000):
            number = number * 1103515245 % 2147483647
    run.wall_s += time.perf_counter() - wall
    run.busy_s += time.thread_time() - busy
