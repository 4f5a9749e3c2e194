"""Checking the results of measurements against references."""

from __future__ import annotations

import math
from typing import Any, Iterable

from ..core import Item, Run

#: The advice about results that are wrong.
WRONG_RESULTS = (
    "wrong results: a fault of device, driver or library; "
    "if another node is right, replace this one"
)


def checked(what: str, value: Any, limit: Any, ok: bool) -> Item:
    """Return the field ``correctness`` of a measurement, which fails by it (see
    ``examine.perform``).

    Args:
        what: what was checked, for people.
        value: the value.
        limit: the value that was expected, or the largest one that is allowed.
        ok: whether the value is right.
    """
    return {"correctness": {"check": what, "value": value, "limit": limit, "ok": bool(ok)}}


def checked_error(what: str, error: float, limit: float) -> Item:
    """Return the field ``correctness`` of a measurement whose error must not exceed a limit."""
    return checked(what, error, limit, error <= limit)


def random_matrix(run: Run, n: int, seed: int, device: str = "cpu", dtype: Any = None) -> Any:
    """Return a square matrix of normal random numbers, float32 by default; on CPUs always equal."""
    generator = run.torch.Generator(device=device).manual_seed(seed)
    return run.torch.randn(n, n, generator=generator, device=device, dtype=dtype)


def product_error(torch: Any, a: Any, b: Any, product: Any) -> float:
    """Return the error of a matrix product: its largest difference from float64, relative.

    Both are multiplied by a random vector x of +1 and -1 (Freivalds' check): (a b) x is compared
    with a (b x), relative to the typical size of its entries. Every entry counts, and it costs
    three matrix-vector products instead of a matrix product in float64.

    Args:
        torch: the module.
        a, b: square matrices on one device.
        product: their product on that device, which is checked.
    """
    n = a.shape[0]
    signs = torch.randint(2, (n,), generator=torch.Generator().manual_seed(n)) * 2 - 1
    x = signs.double().to(a.device)
    expected = _times(torch, a, _times(torch, b, x))
    difference = _times(torch, product, x) - expected
    error = float((difference.abs().max() / expected.square().mean().sqrt()).item())
    return error if math.isfinite(error) else math.inf


def _times(torch: Any, matrix: Any, vector: Any) -> Any:
    """Return a product in float64, by blocks of rows: a float64 copy of the matrix may not fit."""
    return torch.cat([torch.mv(rows.double(), vector) for rows in matrix.split(1024)])


def worst_error(results: Iterable[Any], references: Iterable[Any]) -> float:
    """Return the largest error of some tensors, each relative to the norm of its reference."""
    worst = 0.0
    for result, reference in zip(results, references):
        error = float(((result.double().cpu() - reference).norm() / reference.norm()).item())
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst
