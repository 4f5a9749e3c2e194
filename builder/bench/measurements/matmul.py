"""Matrix products: how much the device computes, by precision; on CPUs also by number of cores."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from ..core import Item, Run, skip
from .accuracy import checked, product_error, random_matrix, require, wrong_results
from .precision import PRECISIONS, AllowTF32, unsupported
from .products import measure_product
from .timing import rate, timed

SIZES = {"cpu": (512, 1024, 2048), "gpu": (2048, 4096, 8192, 16384)}
#: Sizes for ``cpu.peak``: the matrices stay in the caches.
PEAK_SIZES = (512, 1024)
_CHECK = "largest error of a row against float64"


def measure_matmul(run: Run, precision: str) -> Item:
    """Matrix products of growing size, all checked. The fastest size counts."""
    if run.framework is not None:
        return measure_product(run, precision)
    torch = run.need_torch
    reason = unsupported(run, precision)
    if reason:
        raise skip(reason)

    products: list[Item] = []
    began, limit_s = time.monotonic(), run.share(4.0)
    with AllowTF32(torch, precision == "tf32"):
        for n in SIZES[run.kind]:
            # the next size takes about eight times as long as the last one
            if products and (time.monotonic() - began) * 5 > limit_s:
                break
            if run.on_gpu and 16 * n * n > torch.cuda.mem_get_info(run.index)[0] // 2:
                break
            products.append(_product(run, precision, n, limit_s / 8))

    fields: Item = {"device": run.device}
    if products:
        best = max(products, key=_speed)
        fields = {**best, **fields}
    shown = ("size", "median_gflop_per_s", "mad_gflop_per_s", "repeats")
    return {**fields, "sizes": [_only(product, shown) for product in products]}


def _product(run: Run, precision: str, n: int, limit_s: float) -> Item:
    """Checks and measures the product of two matrices of size ``n``."""
    torch = run.torch
    dtype = getattr(torch, PRECISIONS[precision].dtype)
    a = random_matrix(run, n, n, run.device).to(dtype=dtype)
    b = random_matrix(run, n, n + 1, run.device).to(dtype=dtype)

    error, limit = product_error(torch, a, b, torch.matmul(a, b)), PRECISIONS[precision].limit
    check = checked(_CHECK, error, limit, error <= limit)
    seen = f"the product of two {precision} matrices of size {n} is off by {error:.2g}"
    require(check, seen, wrong_results(), device=run.device, size=n)

    seconds = timed(run, partial(torch.matmul, a, b), limit_s=limit_s)
    work = {"flop": 2.0 * n**3, "bytes": 3.0 * n * n * a.element_size()}
    return {"size": n, **rate("gflop_per_s", 2e-9 * n**3, seconds), **check, **work}


def measure_peak(run: Run) -> Item:
    """The peak arithmetic speed of this processor, by cores; together with memory.triad, its roofline."""
    torch = run.need_torch
    threads = torch.get_num_threads()
    counts = sorted({1, threads, *(2**k for k in range(12) if 2**k < threads)})
    limit_s = run.share(2.5) / len(counts) / len(PEAK_SIZES)
    found: list[Item] = []
    try:
        for n in PEAK_SIZES:
            found += _by_cores(run, n, counts, limit_s)
    finally:
        torch.set_num_threads(threads)

    fastest = [max((item for item in found if item["cores"] == count), key=_speed) for count in counts]
    shown = ("cores", "size", "median_gflop_per_s", "mad_gflop_per_s")
    all_cores = next(item for item in fastest if item["cores"] == threads)
    cores = [_only(item, shown) for item in fastest]
    return {**all_cores, "device": "cpu", "threads": threads, "cores": cores}


def _by_cores(run: Run, n: int, counts: list[int], limit_s: float) -> list[Item]:
    """Checks the product of two matrices of size ``n``, and measures it on each number of cores."""
    torch = run.torch
    a, b = random_matrix(run, n, 3), random_matrix(run, n, 4)
    out = torch.empty_like(a)
    error, limit = product_error(torch, a, b, torch.mm(a, b)), PRECISIONS["fp32"].limit
    check = checked(_CHECK, error, limit, error <= limit)
    require(
        check, f"the product of two matrices of size {n} is off by {error:.2g}", wrong_results(), device="cpu"
    )

    found = []
    for count in counts:
        torch.set_num_threads(count)
        seconds = timed(run, partial(torch.mm, a, b, out=out), limit_s=limit_s)
        work = {"flop": 2.0 * n**3, "bytes": 12.0 * n * n}
        found.append(
            {"cores": count, "size": n, **work, **rate("gflop_per_s", 2e-9 * n**3, seconds), **check}
        )
    return found


def _speed(item: Item) -> float:
    return float(item["median_gflop_per_s"])


def _only(item: Item, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: item[key] for key in keys if key in item}
