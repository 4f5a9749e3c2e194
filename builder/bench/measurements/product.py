"""The test of TensorFlow and JAX: one matrix product, which must be right. Nothing is timed."""

from __future__ import annotations

import math

from ..core import Item, Run, skip
from .accuracy import checked_error
from .precision import PRECISIONS

_SIZE = 256
_CHECK = "largest error of a product against float64"


def measure_product(run: Run) -> Item:
    """Multiply two matrices on each device of this rank."""
    framework = run.framework
    if framework is None:
        raise skip(f"no {run.options.framework}")
    import numpy

    generator = numpy.random.RandomState(_SIZE)
    a, b = (generator.standard_normal((_SIZE, _SIZE)).astype(numpy.float32) for _ in range(2))
    expected = a.astype(numpy.float64) @ b.astype(numpy.float64)
    devices = [f"cuda:{index}" for index in run.own_gpus] or [run.device]
    worst = 0.0
    for device in devices:
        difference = framework.product(a, b, device) - expected
        error = float(abs(difference).max() / math.sqrt(float((expected**2).mean())))
        worst = max(worst, error if math.isfinite(error) else math.inf)
    check = checked_error(_CHECK, worst, PRECISIONS["fp32"].limit)
    return {"seen": f"right on {', '.join(devices)}", "device": devices[0], **check}
