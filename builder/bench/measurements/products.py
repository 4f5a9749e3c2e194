"""Matrix products and a training in TensorFlow or JAX, checked with NumPy."""

from __future__ import annotations

import math
import time
from typing import Any

from ..core import Item, Run, fail, skip
from .accuracy import checked, require, wrong_results
from .digits import packed_digits
from .precision import PRECISIONS
from .timing import fits, rate, spread, timed

SIZES = {"cpu": (512, 1024, 2048), "gpu": (1024, 2048, 4096, 8192)}
#: Of the training.
ACCURACY, STEPS, BATCH, TESTED, WARM_UP = 0.9, 200, 64, 200, 10
_HIDDEN, _RATE = 64, 0.05
#: Seconds for a size.
_LIMIT_S = 6.0
_CHECK = "largest error of a row against float64"


def measure_product(run: Run, precision: str) -> Item:
    """Matrix products of growing size, all checked. The fastest size counts."""
    if precision == "bf16" and not run.on_gpu:
        raise skip("on GPUs only")
    products: list[Item] = []
    limit_s = run.share(_LIMIT_S) / 8
    for n in SIZES[run.kind]:
        # the next size takes eight times as long as the last one
        if products and not fits(run, 8 * products[-1]["flop"] / _speed(products[-1]), limit_s, _LIMIT_S):
            break
        products.append(_product(run, precision, n, limit_s))
    best = max(products, key=_speed)
    shown = ("size", "median_gflop_per_s", "mad_gflop_per_s", "repeats")
    sizes = [{key: product[key] for key in shown} for product in products]
    return {**best, "device": run.device, "sizes": sizes}


def _speed(product: Item) -> float:
    return 1e9 * float(product["median_gflop_per_s"])


def _product(run: Run, precision: str, n: int, limit_s: float) -> Item:
    """Checks and measures the product of two matrices of size ``n``."""
    a, b = random_matrices(n)
    started = time.perf_counter()
    again, product = run.need_framework.product(a, b, precision, run.device)
    first_s = time.perf_counter() - started
    error, limit = numpy_error(a, b, product), PRECISIONS[precision].limit
    check = checked(_CHECK, error, limit, error <= limit)
    seen = f"the product of two {precision} matrices of size {n} is off by {error:.2g}"
    require(check, seen, wrong_results(), device=run.device, size=n)
    seconds = timed(run, again, limit_s=limit_s)
    work = {"flop": 2.0 * n**3, "bytes": 3.0 * n * n * (2 if precision == "bf16" else 4)}
    speed = rate("gflop_per_s", 2e-9 * n**3, seconds)
    return {"size": n, "compile_s": first_s - min(seconds), **speed, **check, **work}


def random_matrices(n: int) -> tuple[Any, Any]:
    """Two square matrices of normally distributed float32 numbers, the same on every machine."""
    import numpy

    generator = numpy.random.RandomState(n)
    return tuple(generator.standard_normal((n, n)).astype(numpy.float32) for _ in range(2))  # type: ignore


def numpy_error(a: Any, b: Any, product: Any) -> float:
    """The error of a matrix product: its largest difference from float64, over the typical size of entries.

    Both sides are multiplied by a random vector x of +1 and -1 (Freivalds' check): (a b) x is compared with
    a (b x). Every entry counts.
    """
    import numpy

    x = numpy.random.RandomState(1).choice([-1.0, 1.0], size=len(a))
    expected = _times(a, _times(b, x))
    difference = _times(product, x) - expected
    error = float(abs(difference).max() / math.sqrt(float((expected**2).mean())))
    return error if math.isfinite(error) else math.inf


def _times(matrix: Any, vector: Any) -> Any:
    """A matrix-vector product in float64, by blocks of rows: a float64 copy of the matrix may not fit."""
    import numpy

    blocks = [matrix[row : row + 1024].astype(numpy.float64) @ vector for row in range(0, len(matrix), 1024)]
    return numpy.concatenate(blocks)


def measure_training(run: Run) -> Item:
    """Time of a training step of a small dense network, from fixed weights, to a given accuracy."""
    import numpy

    values = numpy.frombuffer(packed_digits(), dtype=numpy.uint8)
    images = values[:-1000].reshape(1000, 64).astype(numpy.float32) / 4
    labels = values[-1000:].astype(numpy.int32)
    generator = numpy.random.RandomState(7)
    weights = []
    for wide, narrow in ((64, _HIDDEN), (_HIDDEN, 10)):
        weights.append((generator.standard_normal((wide, narrow)) / math.sqrt(wide)).astype(numpy.float32))
        weights.append(numpy.zeros(narrow, numpy.float32))

    step, predict = run.need_framework.train(weights, _RATE, run.device)
    losses, milliseconds = [], []
    for number in range(STEPS):
        batch = numpy.arange(number * BATCH, (number + 1) * BATCH) % (1000 - TESTED)
        started = time.perf_counter()
        losses.append(step(images[batch], labels[batch]))
        milliseconds.append(1e3 * (time.perf_counter() - started))
        if not math.isfinite(losses[-1]):
            seen = f"the loss is {losses[-1]} at step {number}"
            raise fail(seen, wrong_results(), device=run.device, step=number)

    accuracy = float((predict(images[-TESTED:]) == labels[-TESTED:]).mean())
    fields: Item = {
        "device": run.device,
        "first_step_ms": milliseconds[0],
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    right = accuracy >= ACCURACY and losses[-1] < losses[0]
    check = checked("accuracy on digits not trained on", accuracy, ACCURACY, right)
    seen = f"accuracy {accuracy:.3f} after {STEPS} steps; at least {ACCURACY:g} is expected"
    require(check, seen, "the training does not converge: " + wrong_results(), **fields)
    return {**spread("ms", milliseconds[WARM_UP:]), "better": "lower", **fields, **check}
