"""All limits: of the grade, and the floors below which a change between two images never counts.

Every number is a fraction. docs/smoke.md explains each limit. Floors are at least what published
runs of one image on one GPU differ by: "<0.3% of mean runtime" on a quiet machine
(pytorch/pytorch#5799), 0.46 to 0.57 % for products over 20 processes
(flashinfer-ai/flashinfer#4439), 1 to 2 % by time of day (Llama 3). On an H200 six runs had
standard deviations of 0.02 % (memory) to 1.3 % (fp8), see docs/tried.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail", "skip"]
Limits = tuple[float, float]
"""Fractions of the reference: below the first the status is ``warn``, below the second ``fail``."""

#: Limits by what a value is compared with. A figure of reference.yml may have limits of its own.
LIMITS: dict[str, Limits] = {
    "achieved": (0.80, 0.50),  # published figures for this GPU
    "acceptance": (0.80, 0.50),  # the limit of a vendor or a site for accepting it
    "peak": (0.35, 0.20),  # theoretical peak; published figures reach 0.42 of it and more
    "peak.fp64": (0.30, 0.15),  # AMD's matrix units: 0.50 for the best size, half of it for others
    "peak.fp8": (0.30, 0.15),
    "peak.copy": (0.63, 0.40),
    "peak.triad": (0.65, 0.40),
    "peak.transfer": (0.50, 0.15),
    "equals": (0.90, 0.75),  # devices of the same kind in one run
}
#: A GPU's value with a larger spread (standard deviation over median) is unsteady.
UNSTEADY = 0.15
#: A value above its reference by more than this factor does not pass silently.
TOO_HIGH = 1.10
#: On a GPU, smaller products do not reach the published speeds. If one takes less than HOST_BOUND_S, it can
#: pass, but not warn or fail: what is slow may be the host that starts it.
LEAST_PRODUCT, HOST_BOUND_S = 8192, 1e-3
#: Below so many bytes, an all-reduce is not compared with a figure for more bytes.
LEAST_REDUCTION = 1 << 30


@dataclass(frozen=True, slots=True)
class Floor:
    """The smallest change of a kind of measurement that can count."""

    change: float
    decides: bool = True
    """A change of this kind alone can make an image slower, in an A/B run."""


_SHOWN = Floor(0.20, decides=False)
#: By a pattern of whole ids, for figures of CPUs and of GPUs; the first one counts.
_ON_CPUS = {r"matmul\.\w+|memory\.\w+|conv\.training|attention": Floor(0.10)}
_ON_GPUS = {
    r"matmul\.\w+": Floor(0.02),
    r"memory\.\w+": Floor(0.015),
    r"transfer\.\w+_pinned": Floor(0.02),
    r"conv\.training|attention": Floor(0.03),
    r"allreduce\.node": Floor(0.05),
}


def floor_of(name: str, *, on_gpu: bool) -> Floor:
    """Return the floor of a measurement, by its id and whether its value is that of a GPU."""
    table = _ON_GPUS if on_gpu else _ON_CPUS
    return next((floor for pattern, floor in table.items() if re.fullmatch(pattern, name)), _SHOWN)
