"""How measurements measure time, and how the report shows it.

On a GPU the device's own events measure. Calls are queued in batches, with one synchronization for
each:

    host   |call|begin|call|end|call|begin|call|end| ... |--- waits ---|
    GPU         |call    |timed     |call     |timed     | ...

The GPU is busy when the host queues an event, so that an interval holds the work and not its
launch. A batch has at least ``BATCH_S`` of work and at most ``MOST_PAIRS`` intervals; further calls
between them are not timed. Batches before the clock has risen (``WARM_UP_S``) do not count.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, Callable, Iterable, List

from ..core import Item, Run
from ..machine.monitor import Monitor, monitor

#: Seconds of work on a GPU before the first sample: its clock needs some 10 ms, its power limit some 100 ms.
WARM_UP_S = 0.25
#: Seconds of work on a GPU from which samples are taken, at least.
SAMPLING_S = 0.4
#: Seconds of work of a batch, at least.
BATCH_S = 0.05
#: The largest number of timed calls of a batch.
MOST_PAIRS = 16
#: The largest number of calls of a batch.
_MOST_CALLS = 2000
#: The least number of samples, if the function is not slow; the largest one, on CPUs.
_LEAST, _MOST = 5, 40


class Timing(List[float]):
    """The seconds of each repetition, in order, and the GPU's ``machine.monitor`` state."""

    def __init__(self, seconds: Iterable[float] = (), state: Item | None = None) -> None:
        super().__init__(seconds)
        self.state: Item = state or {}


def timed(run: Run, function: Callable[[], Any], limit_s: float = 0.6) -> Timing:
    """Return the seconds of each repetition of a function, after some runs for warm-up.

    On a GPU the device's own events measure, else the clock does.

    Args:
        run: whose device is measured.
        function: what is measured.
        limit_s: repeat no longer than this, but at least 5 times (3 times on a slow machine); not
            on GPUs, which repeat for ``SAMPLING_S``.
    """
    if run.torch is not None and run.on_gpu:
        return _timed_on_gpu(run, function)
    least = 3 if clock_seconds(function) > limit_s else _LEAST
    function()

    samples = Timing()
    end = time.perf_counter() + limit_s
    while len(samples) < least or (len(samples) < _MOST and time.perf_counter() < end):
        samples.append(clock_seconds(function))
    return samples


def clock_seconds(function: Callable[[], Any]) -> float:
    """Return the seconds of one call by the host's clock."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _timed_on_gpu(run: Run, function: Callable[[], Any]) -> Timing:
    function()  # libraries load, and kernels are searched and compiled
    run.synchronize()
    samples = Timing()
    batch = Batch(run, function)
    began = time.perf_counter()
    each_s = batch.run(1, 1)[0]
    while time.perf_counter() - began < WARM_UP_S:
        each_s = statistics.median(batch.run(*_calls(each_s)))

    calls, pairs = _calls(each_s)
    least = _LEAST if each_s < SAMPLING_S else 3
    began = time.perf_counter()
    batch.watch = monitor(run, run.index)
    while len(samples) < least or time.perf_counter() - began < SAMPLING_S:
        samples.extend(batch.run(calls, pairs))
    samples.state = batch.watch.state()
    return samples


def _calls(each_s: float) -> tuple[int, int]:
    """Return the number of calls of a batch, and the number of those that are timed.

    The first call keeps the GPU busy while the host queues the next one, and is not timed. A call
    that takes a whole batch needs none: its launch does not matter.
    """
    if each_s >= BATCH_S:
        return 1, 1
    calls = min(_MOST_CALLS, math.ceil(BATCH_S / max(each_s, 1e-9)))
    return calls + 1, min(calls, MOST_PAIRS)


class Batch:
    """Calls of a function that are queued on a GPU, some of them between two events."""

    def __init__(self, run: Run, function: Callable[[], Any]) -> None:
        self.owner = run
        self.function = function
        self.events: list[tuple[Any, Any]] = []
        self.watch = Monitor()

    def run(self, calls: int, pairs: int) -> list[float]:
        """Return the seconds of ``pairs`` of the calls; the first is timed only if all are."""
        event = self.owner.torch.cuda.Event
        while len(self.events) < pairs:
            self.events.append((event(enable_timing=True), event(enable_timing=True)))

        queued = 0
        for number in range(calls):
            if (number + 1) * pairs // calls == queued:
                self.function()
                continue
            begin, end = self.events[queued]
            begin.record()
            self.function()
            end.record()
            queued += 1
        self.watch.sample()
        self.owner.synchronize()
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in self.events[:pairs]]


def spread(unit: str, samples: list[float]) -> Item:
    """Return median, median absolute deviation (MAD), samples and their number, by unit."""
    median = statistics.median(samples)
    return {
        "median_" + unit: median,
        "mad_" + unit: statistics.median(abs(sample - median) for sample in samples),
        "samples_" + unit: samples,
        "repeats": len(samples),
    }


def rate(unit: str, amount: float, seconds: Timing, **fields: Any) -> Item:
    """Return ``spread`` of an amount per second, a GPU's state in the meantime, and ``fields``."""
    item = {**spread(unit, [amount / s for s in seconds]), "better": "higher"}
    return {**item, **seconds.state, **fields}
