"""Matrix products: how much the device computes, by precision; on CPUs also by number of cores."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core import Item, Run, one_line, skip
from .accuracy import checked, product_error, random_matrix, require, wrong_results
from .precision import PRECISIONS, AllowTF32, dtype_of, tf32_off, unsupported
from .products import measure_product
from .timing import fits, rate, timed

SIZES = {"cpu": (512, 1024, 2048), "gpu": (2048, 4096, 8192, 16384)}
#: From this size on a product fills every GPU.
LARGE = 8192
#: Sizes for ``cpu.peak``: the matrices stay in the caches.
PEAK_SIZES = (512, 1024)
_CHECK = "largest error of a row against float64"
_FLAKY = "a unit of the GPU is faulty, or its clock or voltage is too far off: take the node out of service"
#: Seconds for all sizes on a CPU, for one size on a GPU.
_LIMIT_S = 4.0


def measure_matmul(run: Run, precision: str) -> Item:
    """Matrix products of growing size, all checked. The fastest size counts, a large one if possible."""
    if run.framework is not None:
        return measure_product(run, precision)
    torch = run.need_torch
    reason = unsupported(run, precision)
    if not reason and dtype_of(run, precision) is None:
        reason = f"torch {torch.__version__} has no {PRECISIONS[precision].dtype}"
    if not reason and precision == "tf32":
        reason = tf32_off(run)
    if reason:
        raise skip(reason)

    products: list[Item] = []
    limit_s = run.share(_LIMIT_S) / 8
    with AllowTF32(torch, precision == "tf32"):
        for n in SIZES[run.kind]:
            # the next size takes eight times as long as the last one
            if products and not fits(
                run, 8e-9 * products[-1]["flop"] / _speed(products[-1]), limit_s, _LIMIT_S
            ):
                break
            # two factors, the first and the last result, and one more in the making
            if run.on_gpu and 5 * n * n * _bytes(precision) > torch.cuda.mem_get_info(run.index)[0] // 2:
                break
            products.append(_product(run, precision, n, limit_s))

    if not products:
        raise skip("too little free memory")
    shown = ("size", "median_gflop_per_s", "mad_gflop_per_s", "sustained_gflop_per_s", "repeats", "first_s")
    sizes = [_only(product, shown) for product in products]
    # Published figures are those of large sizes; small ones do not fill a GPU.
    large = [product for product in products if product["size"] >= LARGE]
    best: Item = max(large or products, key=_speed)
    return {**best, "device": run.device, "sizes": sizes}


def _bytes(precision: str) -> int:
    return 8 if precision == "fp64" else 4  # factors are made as float32


def _product(run: Run, precision: str, n: int, limit_s: float) -> Item:
    """Measures and checks the product of two matrices of size ``n``."""
    torch = run.torch
    dtype = dtype_of(run, precision)
    made = torch.float64 if precision == "fp64" else torch.float32
    a = random_matrix(run, n, n, run.device, made).to(dtype=dtype)
    b = random_matrix(run, n, n + 1, run.device, made).to(dtype=dtype)
    multiply = partial(torch.matmul, a, b)
    if precision == "fp8":
        b = b.t()  # the library wants it by columns
        multiply = partial(_scaled_product, torch, a, b, torch.ones(1, device=run.device))
        try:
            multiply()
        except RuntimeError as e:
            raise skip(f"torch multiplies no {precision} matrices here: {one_line(e)}") from None

    results: list[Any] = []

    def step() -> None:
        results[1:] = [multiply()]  # keeps the first and the last one

    multiplied = timed(run, step, limit_s=limit_s)
    error, limit = product_error(torch, a, b, results[0]), PRECISIONS[precision].limit
    check = checked(_CHECK, error, limit, error <= limit)
    seen = f"the product of two {precision} matrices of size {n} is off by {error:.2g}"
    require(check, seen, wrong_results(), device=run.device, size=n)
    _require_same_bits(run, results[0], results[-1], precision)

    work = {"flop": 2.0 * n**3, "bytes": 3.0 * n * n * a.element_size()}
    return {"size": n, **rate("gflop_per_s", 2e-9 * n**3, multiplied), **check, **work}


def _scaled_product(torch: Any, a: Any, b: Any, scale: Any) -> Any:
    product = torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    return product[0] if isinstance(product, tuple) else product  # a tuple up to torch 2.4


def _require_same_bits(run: Run, first: Any, last: Any, precision: str) -> None:
    """Raises a failure if a GPU computed another product under load than at first.

    cuBLAS guarantees the same bits on one stream; the libraries for AMD's GPUs do not.
    """
    if not run.on_gpu or run.build != "CUDA" or run.torch.equal(first, last):
        return
    wrong = int((first != last).sum().item())
    check = checked("entries that differ between the first and the last product", wrong, 0, False)
    seen = f"under load, {wrong} entries of the same {precision} product of size {len(first)} differ"
    require(check, seen, _FLAKY, device=run.device, size=len(first))


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
