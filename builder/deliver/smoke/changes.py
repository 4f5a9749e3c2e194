"""What changed between stored runs: a table for people, which decides nothing.

Runs at different times differ by more than an image does: by heat, clocks, placement and
neighbours. So a change is shown beside what earlier runs differed by, and ``builder smoke --ab`` is
the only way to call an image slower.

    earlier runs      |  x    x x    x  |         usual: from the lowest to the highest
    shown             |                 |--floor--|   o   a value beyond both
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from builder.bench.report import format_value

from .limits import RUNS_NEEDED, floor_of
from .packages import PackageChange, changed_packages
from .reports import StoredReport
from .values import Value, devices_of, model_of, number, shares_gpu, usable_values

Outcome = Literal["slower", "faster", "same", "unjudged"]
#: The order in which figures are shown, by their outcome; ``shown`` is of A/B runs only.
OUTCOME_ORDER = {"slower": 0, "faster": 1, "same": 2, "unjudged": 3, "shown": 3}
#: Measurements whose amount of work is fixed, where others use the fastest of several sizes.
_FIXED_WORK = ("conv.training", "attention")
#: Sizes that differ by this factor or more are different measurements.
_OTHER_SIZE = 4
#: What makes figures of two runs comparable: measurement and unit.
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after: the median over a run's devices, and over runs."""

    id: str
    model: str
    """Of the GPUs, or of the processor."""
    unit: str
    old: float
    new: float
    usual: tuple[float, float]
    """The lowest and the highest of the earlier runs."""
    runs: int
    """The number of earlier runs."""
    ratio: float
    """Above 1 if the new one is better, with four digits."""
    outcome: Outcome
    """``unjudged``: there are too few earlier runs."""
    new_runs: int
    """The number of runs of ``new``."""

    @property
    def text(self) -> str:
        """The change: ``248 TFLOP/s -> 225 TFLOP/s, -9.3 % (usual: 246 to 249, 5 runs)``."""
        old, new = (format_value(value, self.unit) for value in (self.old, self.new))
        return f"{old} -> {new}, {100 * (self.ratio - 1):+.1f} % ({self.usual_text})"

    @property
    def usual_text(self) -> str:
        """What the earlier runs tell, or that they are too few."""
        if self.outcome == "unjudged":
            return f"{self.runs} of {RUNS_NEEDED} runs: no judgement yet"
        if self.runs == 1:
            return "1 run, no usual spread"
        low, high = (format_value(value, self.unit) for value in self.usual)
        return f"usual: {low} to {high}, {self.runs} runs"


@dataclass(frozen=True, slots=True)
class ReportComparison:
    """The runs of two images side by side."""

    old: tuple[StoredReport, ...]
    new: tuple[StoredReport, ...]
    changes: tuple[Change, ...]
    differences: tuple[str, ...]
    """What else differs: the GPU, its driver, the image."""
    packages: tuple[PackageChange, ...] | None
    """The packages that differ; None if the packages of one image are unknown."""

    @property
    def changed(self) -> tuple[Change, ...]:
        """The changes beyond what is usual, the slower ones first."""
        return tuple(change for change in self.changes if change.outcome in ("slower", "faster"))

    def to_json(self) -> dict[str, Any]:
        packages = self.packages
        return {
            "old": _side_to_json(self.old),
            "new": _side_to_json(self.new),
            "changes": list(map(asdict, self.changes)),
            "differences": list(self.differences),
            "packages": None if packages is None else [package.text for package in packages],
        }


def _side_to_json(runs: Sequence[StoredReport]) -> dict[str, Any]:
    newest = runs[-1]
    out = {"digest": newest.digest, "tag": newest.tag, "started": newest.started}
    return {**out, "runs": len(runs)}


def compare(new: Sequence[StoredReport], old: Sequence[StoredReport]) -> ReportComparison:
    """Compare runs of machines of the same kind, measurement by measurement.

    Args:
        new: one run or more, the newest last.
        old: one earlier run or more, the newest last.
    """
    # Another GPU is another machine, whatever the image.
    model = model_of(new[-1].report)
    before, after = _medians(old, model), _medians(new, model)
    found = (_change(model, before[key], after[key]) for key in after if key in before)
    changes = sorted(filter(None, found), key=lambda change: change.ratio)
    packages = None
    if old[-1].packages is not None and new[-1].packages is not None:
        packages = tuple(changed_packages(old[-1].packages, new[-1].packages))
    differences = tuple(_differences(old[-1], new[-1]))
    return ReportComparison(tuple(old), tuple(new), tuple(changes), differences, packages)


def _medians(runs: Sequence[StoredReport], model: str) -> dict[_Key, list[Value]]:
    """Return the figures of a model's runs that nothing else disturbed, the newest last.

    A figure is the value on the first device, with the median of all devices.
    """
    runs = [run for run in runs if model_of(run.report) == model]
    undisturbed = [run for run in runs if not shares_gpu(run.report)] or runs
    out: dict[_Key, list[Value]] = defaultdict(list)
    for run in undisturbed:
        values = (value for value in usable_values(run.report) if value.median > 0)
        for key, group in itertools.groupby(values, lambda value: (value.id, value.unit)):
            of_devices = list(group)
            median = statistics.median(value.median for value in of_devices)
            out[key].append(replace(of_devices[0], median=median))
    return out


def _change(model: str, old: Sequence[Value], new: Sequence[Value]) -> Change | None:
    """Return the change of a figure; None if no earlier run measured it at this size."""
    newest = new[-1]
    name, unit, size = newest.id, newest.unit, size_of(newest)
    earlier = [one.median for one in old if not other_size(name, size_of(one), size)]
    if not earlier:
        return None
    before, after = statistics.median(earlier), statistics.median(one.median for one in new)
    low, high = min(earlier), max(earlier)
    floor = floor_of(name, on_gpu=newest.on_gpu)
    outcome: Outcome = "same"
    if len(earlier) < floor.runs:
        outcome = "unjudged"
    elif after > high * (1 + floor.change):
        outcome = "faster" if newest.higher_is_better else "slower"
    elif after < low * (1 - floor.change):
        outcome = "slower" if newest.higher_is_better else "faster"
    ratio = after / before if newest.higher_is_better else before / after
    usual, runs, ratio = (low, high), len(earlier), round(ratio, 4)
    return Change(name, model, unit, before, after, usual, runs, ratio, outcome, len(new))


def size_of(value: Value) -> float:
    """Return the size at which a value was measured, or the amount of work if that is fixed; or 0.

    Each rank may have had time for another size.
    """
    own = {**value.measurement, **value.item}
    return number(own, "flop" if value.id in _FIXED_WORK else "size") or 0.0


def other_size(name: str, old: float, new: float) -> bool:
    """Return whether a measurement of two sizes is two different ones."""
    if not (old and new) or old == new:
        return False
    return name in _FIXED_WORK or max(old, new) >= _OTHER_SIZE * min(old, new)


def _differences(old: StoredReport, new: StoredReport) -> list[str]:
    """Return the differences between two runs apart from their figures."""
    same = new.digest and old.digest == new.digest
    found = ["the image is the same: what differs is the machine" if same else "another image"]
    for what, key in (("driver", "driver"), ("power limit", "power_limit_w"), ("", "uuid")):
        before, after = _facts(old, key), _facts(new, key)
        if not before or not after or before == after:
            continue
        moved = f"{what} {', '.join(before)} -> {', '.join(after)}"
        gpus = "other GPUs" if len(after) > 1 else "another GPU"
        found.append(moved if what else gpus)
    return found


def _facts(stored: StoredReport, key: str) -> list[str]:
    found = {str(device.get(key) or "")[:80] for device in devices_of(stored.report)} - {""}
    return sorted(found)[:3] if key != "uuid" else sorted(found)
