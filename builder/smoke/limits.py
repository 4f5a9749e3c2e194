"""The limits of grading, and the comparison of a value with them. docs/grading.md explains each limit."""

from __future__ import annotations

from typing import Literal

from builder.smoke.values import Value

Status = Literal["pass", "warn", "fail", "skip"]
Limits = tuple[float, float]
"""Fractions of the reference: below the first the status is ``warn``, below the second ``fail``."""

#: Limits by what a value is compared with. A figure of reference.yml may have limits of its own.
LIMITS: dict[str, Limits] = {
    "achieved": (0.80, 0.50),  # published figures for this GPU
    "measured": (0.80, 0.50),  # figures that this project measured
    "acceptance": (0.80, 0.50),  # the limit of a vendor or a site for accepting it
    "peak": (0.35, 0.20),  # theoretical peak; published figures reach 0.42 of it and more
    "peak.fp64": (0.30, 0.15),  # AMD's matrix units: 0.50 for the best size, half of it for others
    "peak.fp8": (0.30, 0.15),
    "peak.copy": (0.60, 0.35),
    "peak.triad": (0.60, 0.35),
    "peak.transfer": (0.50, 0.15),
    "equals": (0.90, 0.75),  # devices of the same kind in one run
    "site": (0.90, 0.75),  # what GPUs of the same model reached here before
    "roofline": (0.50, 0.25),  # matrix products on a CPU
    "scaling": (0.50, 0.25),  # all cores of a CPU compared with as many times one core
}
#: Limits of measurements that reach a smaller part of a CPU's roofline. A limit of 0 never fails.
ROOFLINE_LIMITS: dict[str, Limits] = {"conv.training": (0.05, 0.0), "attention": (0.05, 0.0)}
#: Half precision compared with fp32 on an unknown GPU.
CONSISTENCY_LIMITS: Limits = (0.90, 0.0)
#: A GPU's value with a larger spread (standard deviation over median) is unsteady.
UNSTEADY = 0.15
#: A value above the theoretical peak by more than this factor is a wrong measurement. GPUs for games run
#: above the clock that their peak is computed from.
IMPOSSIBLE = 1.25
#: A value above a published one by more than this factor says that the published one is too low.
TOO_LOW = 1.15
#: On a GPU, smaller products do not reach the published speeds. If one takes less than HOST_BOUND_S, it can
#: pass, but not warn or fail: what is slow may be the host that starts it.
LEAST_PRODUCT = 8192
#: Below so many bytes, an all-reduce is not compared with a figure for more bytes, unless it is SMALL_SLOWER
#: times slower still; below the second number of bytes, never.
LEAST_REDUCTION, LATENCY_BOUND = 1 << 30, 64 << 20
SMALL_SLOWER = 2.0
#: Two GPUs may share a link to the host: if several GPUs copy at once, each may have half of it.
SHARED_LINK = 0.5
#: A repeat on a GPU shorter than this many seconds may take the host longer to start than the GPU to run.
HOST_BOUND_S = 1e-3
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
