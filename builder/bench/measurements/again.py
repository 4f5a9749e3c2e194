"""Measurements of a CPU that look too slow, once more beside what they are compared with.

Where other programs come and go, cpu.peak may fall into a quiet moment and the matrix products into a busy
one. In turns, both meet the same load, and only their ratio counts:

    other program   ________########________########____
    cpu.peak        **                                        quiet: fast
    matmul.fp32               ******                          busy: a quarter of the speed
    again.matmul                      *o o* *o o* *o          each pair in one moment: the true ratio
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable

from ..core import Item, Run, median_key, skip
from .accuracy import checked, product_error, random_matrix
from .precision import PRECISIONS
from .timing import clock_seconds, spread

#: A measurement that reaches this fraction of its limit is right; grading warns below it.
ENOUGH = 0.5
#: Pairs of measurements: at least, at most, and the seconds after which no further one begins.
LEAST, MOST, LIMIT_S = 5, 21, 3.0


def measure_product_again(run: Run) -> Item:
    """matmul.fp32 and cpu.peak in turns, with the same number of operations."""
    product, peak = _doubtful(run, "matmul.fp32", "cpu.peak")
    torch, n = run.need_torch, int(product["size"])
    # More calls meet the other programs more often, so those for the peak are not the longer ones.
    small = min(n, int(peak["size"]))
    a, b = (random_matrix(run, n, seed) for seed in (n, n + 1))
    c, d = (random_matrix(run, small, seed) for seed in (3, 4))
    out, small_out = torch.empty_like(a), torch.empty_like(c)
    times = round((n / small) ** 3)

    fractions = in_turns(
        partial(torch.mm, a, b, out=out),
        partial(_repeat, partial(torch.mm, c, d, out=small_out), times),
        (n / small) ** 3 / times,
    )
    error, limit = product_error(torch, a, b, out), PRECISIONS["fp32"].limit
    check = checked("largest error of a row against float64", error, limit, error <= limit)
    return {**spread("fraction", fractions), "better": "higher", "device": "cpu", "size": n, **check}


def measure_copy_again(run: Run) -> Item:
    """memory.copy and memory.triad in turns, on arrays of the same size."""
    copy, _ = _doubtful(run, "memory.copy", "memory.triad")
    torch, size = run.need_torch, int(copy["size"])
    source = torch.arange(size // 4, dtype=torch.float32).remainder_(1000)
    target, total = torch.zeros_like(source), torch.zeros_like(source)

    fractions = in_turns(
        partial(target.copy_, source),
        partial(torch.add, source, target, alpha=3, out=total),
        2 / 3,  # arrays that a copy and a triad move
    )
    wrong = int((source != target).sum().item())
    check = checked("words that differ after the copy", wrong, 0, wrong == 0)
    return {**spread("fraction", fractions), "better": "higher", "device": "cpu", "size": size, **check}


def _doubtful(run: Run, name: str, limit: str) -> tuple[Item, Item]:
    """Two results of this run. Raises a skip if there is no doubt about the first."""
    results = {item["id"]: item for item in run.results if item["status"] == "pass"}
    if name not in results or limit not in results:
        raise skip(f"{name} and {limit} were not both measured")
    first, second = results[name], results[limit]
    fraction = float(first[median_key(first)]) / float(second[median_key(second)])
    if fraction >= ENOUGH:
        raise skip(f"not needed: {name} reaches {100 * fraction:.0f} % of {limit}")
    return first, second


def _repeat(function: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        function()


def in_turns(first: Callable[[], Any], second: Callable[[], Any], work: float) -> list[float]:
    """The speed of the first function as a fraction of that of the second, for each pair of calls.

    The order changes from pair to pair, so that a load with the same rhythm does not meet the same one.

    Args:
        first: what is measured.
        second: what it is compared with; it should take about as long.
        work: the work of a call of the first function, as a multiple of that of the second.
    """
    first()
    second()
    fractions: list[float] = []
    began = time.perf_counter()
    while len(fractions) < LEAST or (len(fractions) < MOST and time.perf_counter() - began < LIMIT_S):
        if len(fractions) % 2:
            second_s, first_s = clock_seconds(second), clock_seconds(first)
        else:
            first_s, second_s = clock_seconds(first), clock_seconds(second)
        fractions.append(work * second_s / first_s)
    return fractions
