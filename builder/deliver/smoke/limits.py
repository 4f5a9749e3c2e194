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

from pydantic import TypeAdapter

from builder.core.datafiles import table

Status = Literal["pass", "warn", "fail", "skip"]
Limits = tuple[float, float]
"""Fractions of the reference: below the first the status is ``warn``, below the second ``fail``."""

#: All values of limits.yaml.
TABLE = table(__file__, "limits.yaml")
#: Limits by what a value is compared with. A figure of reference.yml may have limits of its own.
LIMITS = TypeAdapter(dict[str, Limits]).validate_python(TABLE["limits"])
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
    runs: int = 1
    """The number of earlier runs without which a change between stored runs means nothing."""


#: The number of earlier runs of figures whose spread nobody published.
RUNS_NEEDED: int = TABLE["runs"]
_SHOWN = Floor(0.20, decides=False, runs=RUNS_NEEDED)
#: The smallest change by a pattern of whole ids, for figures of CPUs and of GPUs.
_FLOORS = TypeAdapter(dict[str, dict[str, float]]).validate_python(TABLE["floors"])


def floor_of(name: str, *, on_gpu: bool) -> Floor:
    """Return the floor of a measurement, by its id and whether its value is that of a GPU."""
    changes, runs = (_FLOORS["gpu"], 1) if on_gpu else (_FLOORS["cpu"], RUNS_NEEDED)
    fitting = (Floor(floor, runs=runs) for ids, floor in changes.items() if re.fullmatch(ids, name))
    return next(fitting, _SHOWN)
