"""What it costs to start a kernel on a GPU: the limit of programs with many small operations."""

from __future__ import annotations

import time
from typing import Any

from ..core import Item, Run
from .accuracy import checked
from .timing import spread

#: Kernels of a queue, and queues.
QUEUE, QUEUES = 1000, 20
#: Kernels that are waited for one by one.
SINGLE = 100


def measure_launch(run: Run) -> Item:
    """Microseconds for each kernel of a long queue; ``round_trip_us`` with waiting for each one.

    The kernel adds 1 to a single number. It runs for less time than its launch takes, so the host, the driver
    and torch decide. Variables such as CUDA_LAUNCH_BLOCKING show here.
    """
    torch = run.need_torch
    counter = torch.zeros(1, dtype=torch.int32, device=run.device)
    _queue(run, counter, QUEUE)

    samples: list[float] = []
    limit_s, began = run.share(1.0), time.perf_counter()
    while len(samples) < 3 or (len(samples) < QUEUES and time.perf_counter() - began < limit_s):
        samples.append(1e6 * _queue(run, counter, QUEUE) / QUEUE)
    trips = sorted(1e6 * _queue(run, counter, 1) for _ in range(SINGLE))

    count, expected = int(counter.item()), (len(samples) + 1) * QUEUE + SINGLE
    check = checked("kernels that ran", count, expected, count == expected)
    fields = {"device": run.device, "round_trip_us": trips[SINGLE // 2]}
    return {**spread("us", samples), "better": "lower", **fields, **check}


def _queue(run: Run, counter: Any, length: int) -> float:
    """Seconds from the first launch of a queue to the end of its last kernel."""
    run.synchronize()
    started = time.perf_counter()
    for _ in range(length):
        counter.add_(1)
    run.synchronize()
    return time.perf_counter() - started
