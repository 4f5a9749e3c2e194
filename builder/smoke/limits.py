"""The limits of grading, and the comparison of a value with them. docs/grading.md explains each limit."""

from __future__ import annotations

from typing import Literal

from builder.smoke.values import Value

Status = Literal["pass", "warn", "fail", "skip"]
Limits = tuple[float, float]
"""Fractions of the reference: below the first the status is ``warn``, below the second ``fail``."""

#: Limits by what a value is compared with.
LIMITS: dict[str, Limits] = {
    "achieved": (0.80, 0.50),  # published figures for this GPU
    "acceptance": (0.80, 0.50),  # the vendor's acceptance limit
    "peak": (0.40, 0.20),  # theoretical peak; published figures reach 0.45 to 0.98 of it
    "peak.memory": (0.60, 0.35),
    "peak.transfer": (0.50, 0.15),
    "equals": (0.90, 0.75),  # devices of the same kind in one run
    "roofline": (0.50, 0.25),  # matrix products on a CPU
    "scaling": (0.50, 0.25),  # all cores of a CPU compared with as many times one core
}
#: Limits of measurements that reach a smaller part of a CPU's roofline. A limit of 0 never fails.
ROOFLINE_LIMITS: dict[str, Limits] = {"conv.training": (0.05, 0.0), "attention": (0.05, 0.0)}
#: Half precision compared with fp32 on an unknown GPU.
CONSISTENCY_LIMITS: Limits = (0.90, 0.0)
#: A GPU's value with a larger spread (standard deviation over median) is unsteady.
UNSTEADY = 0.15
#: A value above the theoretical peak by more than this factor is a wrong measurement.
IMPOSSIBLE = 1.10
#: If other processes take more than this fraction of a CPU's time, none of its values fails.
BUSY = 0.30


def evaluate(value: Value, reference: float, limits: Limits) -> tuple[Status, float]:
    """Compares a value with a reference in the same unit.

    A value counts as below a limit only if noise cannot explain it: if its upper bound is below the limit.

    Returns:
        The status, and the median as a fraction of the reference.
    """
    warn_below, fail_below = limits
    best_case = value.upper_bound / reference
    status: Status = "pass"
    if best_case < fail_below:
        status = "fail"
    elif best_case < warn_below:
        status = "warn"
    return status, value.median / reference
