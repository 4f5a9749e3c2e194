"""Matrix products: how much the device computes, by precision."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core import Item, Run, fail, one_line, skip, warn
from .accuracy import checked, checked_error, product_error, random_matrix
from .precision import PRECISIONS, AllowTF32, dtype_of, tf32_off, unsupported
from .timing import Timing, rate, timed

SIZES = {"cpu": (512, 1024, 2048), "gpu": (2048, 4096, 8192, 16384)}
#: From this size on a product fills every GPU.
LARGE = 8192
_CHECK = "largest error of a row against float64"
_ONCE = "run the test again: a GPU that computes other bits a second time is faulty"
_FLAKY = "a unit of the GPU is faulty, or its clock or voltage is too far off: take the node out of service"
#: Seconds for all sizes on a CPU, for one size on a GPU.
_LIMIT_S = 4.0
#: The least number of products of a size, for warm-up and as samples.
_CALLS = 7


def measure_matmul(run: Run, precision: str) -> Item:
    """Multiply matrices of growing size, all checked. The fastest large size counts."""
    torch = run.need_torch
    _require(run, precision)
    products: list[Item] = []
    limit_s = run.share(_LIMIT_S) / 8
    with AllowTF32(torch, precision == "tf32"):
        for n in SIZES[run.kind]:
            if not _fits(run, precision, n, products):
                break
            products.append(_product(run, precision, n, limit_s))

    if not products:
        raise skip("too little free memory")
    shown = ("size", "median_gflop_per_s", "mad_gflop_per_s", "repeats")
    sizes = [{key: product[key] for key in shown if key in product} for product in products]
    # Published figures are those of large sizes; small ones do not fill a GPU.
    large = [product for product in products if product["size"] >= LARGE]
    wrong = [product for product in products if not product["correctness"]["ok"]]
    best: Item = wrong[0] if wrong else max(large or products, key=_speed)
    return {**best, "device": run.device, "sizes": sizes}


def _require(run: Run, precision: str) -> None:
    """Raise a skip if this device or torch has no products in a precision."""
    reason = unsupported(run, precision)
    if not reason and dtype_of(run, precision) is None:
        reason = f"torch {run.torch.__version__} has no {PRECISIONS[precision].dtype}"
    if not reason and precision == "tf32":
        reason = tf32_off(run)
    if reason:
        raise skip(reason)


def _fits(run: Run, precision: str, n: int, products: list[Item]) -> bool:
    """Return whether there is time and memory for size ``n``: 8 times the time of the last."""
    once_s = 8e-9 * products[-1]["flop"] / _speed(products[-1]) if products else 0.0
    if not run.on_gpu:
        return _CALLS * once_s <= run.share(_LIMIT_S)
    # two factors, the first and the last result, and one more in the making
    needed = 5 * n * n * (8 if precision == "fp64" else 4)  # factors are made as float32
    free = run.torch.cuda.mem_get_info(run.index)[0]
    return _CALLS * once_s <= min(_LIMIT_S, run.left_s) and needed <= free // 2


def _product(run: Run, precision: str, n: int, limit_s: float) -> Item:
    """Measure and check the product of two matrices of size ``n``."""
    torch = run.torch
    a, b, results, seconds = _repeated(run, precision, n, limit_s, seed=n)
    error = product_error(torch, a, b, results[0])
    check = checked_error(f"{_CHECK}, size {n}", error, PRECISIONS[precision].limit)
    item = {**rate("gflop_per_s", 2e-9 * n**3, seconds, size=n, flop=2.0 * n**3), **check}
    wrong = _differing(run, results)
    if wrong and check["correctness"]["ok"]:
        del a, b, results
        _look_again(run, precision, item, wrong, limit_s)
    return item


def _repeated(
    run: Run, precision: str, n: int, limit_s: float, seed: int
) -> tuple[Any, Any, list[Any], Timing]:
    """Return two random factors, their first and last product, and the seconds of each product."""
    torch = run.torch
    dtype = dtype_of(run, precision)
    made = torch.float64 if precision == "fp64" else torch.float32
    a = random_matrix(run, n, seed, run.device, made).to(dtype=dtype)
    b = random_matrix(run, n, seed + 1, run.device, made).to(dtype=dtype)
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

    seconds = timed(run, step, limit_s=limit_s)
    return a, b, results, seconds


def _scaled_product(torch: Any, a: Any, b: Any, scale: Any) -> Any:
    product = torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    return product[0] if isinstance(product, tuple) else product  # a tuple up to torch 2.4


def _differing(run: Run, results: list[Any]) -> int:
    """Return the number of entries that a GPU computed differently under load than at first.

    cuBLAS guarantees the same bits on one stream; the libraries for AMD's GPUs do not.
    """
    first, last = results[0], results[-1]
    if not run.on_gpu or run.build != "CUDA" or run.torch.equal(first, last):
        return 0
    return int((first != last).sum().item())


def _look_again(run: Run, precision: str, item: Item, wrong: int, limit_s: float) -> None:
    """Measure other factors: raise a failure if their product changes, too, else a warning."""
    n = int(item["size"])
    seen = f"under load, {wrong} entries of the same {precision} product of size {n} differ"
    _, _, results, _ = _repeated(run, precision, n, limit_s, seed=n + 2)
    again = _differing(run, results)
    if not again:
        fields = {**item, "device": run.device}
        raise warn(f"{seen}; those of a second product do not", _ONCE, **fields)
    check = checked("entries that differ between the first and the last product", again, 0, False)
    raise fail(f"{seen}; of a second product, {again}", _FLAKY, device=run.device, size=n, **check)


def _speed(item: Item) -> float:
    return float(item["median_gflop_per_s"])
