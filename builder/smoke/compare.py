"""Comparing the smoke tests of two images by a robust test. docs/grading.md states the rule.

A change counts if it exceeds both a fixed floor and what noise explains. The noise of one side is the
standard error of the median of its runs, plus the differences between GPUs if both sides were not measured on
one and the same:

    runs of the old image    |--x--|   |--x--|     within: the typical length of a bar
                               |--x--|             between: how far the x are apart
    run   = max(within, between, what is usual for this kind of measurement)
    noise = sqrt(run ** 2 / number of runs + device ** 2 / number of GPUs)
    limit = max(floor, 3 * sqrt(noise_old ** 2 + noise_new ** 2))

Floors, usual runs and usual devices are in ``kinds``. The usual noise always applies: the noise within a run
says little about runs, and three runs are often closer together than the next three.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.smoke.change import Change, Outcome
from builder.smoke.changed import Difference, differences
from builder.smoke.kinds import Kind, kind_of
from builder.smoke.machines import Machine, disturbance, machine
from builder.smoke.packages import PackageChange, changed_packages
from builder.smoke.reports import StoredReport
from builder.smoke.together import doubts, together
from builder.smoke.values import (
    MAD_TO_SIGMA,
    SIGMAS,
    Value,
    number,
    rank_item,
    usable_measurements,
    values_of,
)

_OUTCOME_ORDER = {"slower": 0, "host": 1, "faster": 2, "same": 3, "busy": 4, "other": 5}
_STATUS_ORDER = {"skip": 0, "pass": 0, "warn": 1, "fail": 2}
#: Sizes that differ by this factor or more are different measurements.
_OTHER_SIZE = 4
#: Measurements whose amount of work is fixed, where others use the fastest of several sizes.
_FIXED_WORK = ("conv.training", "attention")


@dataclass(frozen=True, slots=True)
class ProbeChange:
    """A probe whose status got worse."""

    id: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of two images side by side."""

    old: tuple[StoredReport, ...]
    new: tuple[StoredReport, ...]
    changes: tuple[Change, ...]
    probes: tuple[ProbeChange, ...] = ()
    """The probes that got worse."""
    packages: tuple[PackageChange, ...] | None = None
    """The packages that differ; None if the packages of one image are unknown."""
    notes: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The changes that are slower by more than their limit."""
        return tuple(change for change in self.changes if change.outcome == "slower")

    @property
    def evaluated(self) -> bool:
        """Whether any value could be evaluated: without one "nothing slower" would mean nothing."""
        return any(change.evaluated for change in self.changes)

    @property
    def differences(self) -> tuple[Difference, ...]:
        return differences(self.old, self.new, self.packages)

    def to_json(self) -> dict[str, Any]:
        packages = self.packages
        return {
            "old": _side_to_json(self.old),
            "new": _side_to_json(self.new),
            "changes": [change.to_json() for change in self.changes],
            "regressions": [change.id for change in self.regressions],
            "probes": [{"id": probe.id, "old": probe.old, "new": probe.new} for probe in self.probes],
            "packages": None
            if packages is None
            else [{"name": p.name, "old": p.old, "new": p.new} for p in packages],
            "notes": list(self.notes),
        }


def _side_to_json(runs: Sequence[StoredReport]) -> dict[str, Any]:
    newest = runs[-1]
    return {"digest": newest.digest, "tag": newest.tag, "started": newest.started, "runs": len(runs)}


def compare(
    new: Sequence[StoredReport],
    old: Sequence[StoredReport],
    *,
    old_packages: Mapping[str, str] | None = None,
) -> Comparison:
    """Compares the runs of two images, measurement by measurement and device by device.

    Values of GPUs or processors of different names, and values that were measured in different ways, are
    listed and not evaluated. The same applies if something disturbed all runs of one side.

    Args:
        new: one run or more of the new image, the newest last.
        old: one run or more of the old image, the newest last.
        old_packages: the packages of the old image, if its reports do not list them.
    """
    after, before = _samples(new), _samples(old)
    pairs = [_Pair(before[key], after[key]) for key in after if key in before]
    changes = together([_change(pair) for pair in pairs])
    changes.sort(key=lambda c: (_OUTCOME_ORDER[c.outcome], c.ratio, c.id, c.device))
    packages_before, packages_after = old_packages or _packages(old), _packages(new)
    packages = None
    if packages_before is not None and packages_after is not None:
        packages = tuple(changed_packages(packages_before, packages_after))
    notes = []
    missing = sorted({measurement for measurement, _ in before.keys() - after.keys()})
    if missing:
        notes.append(f"only measured before: {', '.join(missing)}")
    if packages is None:
        which = "older" if packages_before is None else "newer"
        notes.append(f"the report of the {which} image does not list its packages")
    return Comparison(
        old=tuple(old),
        new=tuple(new),
        changes=tuple(changes),
        probes=tuple(_worse_probes(old[-1], new[-1])),
        packages=packages,
        notes=(*notes, *doubts(changes)),
    )


def _packages(runs: Sequence[StoredReport]) -> dict[str, str] | None:
    listed = [run.packages for run in runs if run.packages is not None]
    return listed[-1] if listed else None


@dataclass(frozen=True, slots=True)
class _Sample:
    """The value of a measurement on one device in one run."""

    value: Value
    machine: Machine
    method: tuple[str, float, bool]
    """Unit; size or work; whether the GPU was warm."""
    disturbance: str
    """Why the value cannot be trusted; empty if nothing is known."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The samples of a measurement on one device, of all runs of both sides."""

    old: list[_Sample]
    new: list[_Sample]


def _samples(runs: Sequence[StoredReport]) -> dict[tuple[str, str], list[_Sample]]:
    """The samples of all runs by measurement and device. Wrong results are left out."""
    out: dict[tuple[str, str], list[_Sample]] = defaultdict(list)
    for run in runs:
        for measurement in usable_measurements(run.report):
            for value in values_of(measurement):
                if value.median > 0:
                    kind = kind_of(value.id, on_gpu=value.on_gpu)
                    sample = _Sample(
                        value,
                        machine(run.report, measurement, value),
                        _method(measurement, value),
                        disturbance(run.report, measurement, value, host_bound=kind.host_bound),
                    )
                    out[value.id, value.device_key].append(sample)
    return out


def _method(measurement: Mapping[str, Any], value: Value) -> tuple[str, float, bool]:
    """How a value was measured.

    Reports from before sustained values existed measured a GPU while its clock rose and before its power
    limit acted. Their values are not those of today on the same GPU.
    """
    return value.unit, size_of(measurement, value), f"sustained_{value.unit}" in measurement


def size_of(measurement: Mapping[str, Any], value: Value) -> float:
    """The size at which a value was measured, or the amount of work if that is fixed; 0 if it is unknown.

    Each rank may have had time for another size.
    """
    own = {**measurement, **rank_item(value, measurement)}
    return number(own, "flop" if value.id in _FIXED_WORK else "size") or 0.0


def other_size(name: str, old: float, new: float) -> str:
    """What makes a measurement of two sizes two different ones; empty if they can be compared."""
    if not (old and new) or old == new:
        return ""
    if name in _FIXED_WORK:
        return "amount of work"
    return "size" if max(old, new) >= _OTHER_SIZE * min(old, new) else ""


class _Side:
    """The runs of one side that are used."""

    def __init__(self, samples: list[_Sample], kind: Kind) -> None:
        self.runs = len(samples)
        self.last = samples[-1]
        self.center, self.error = _center([sample.value for sample in samples], kind.run)
        #: What the devices are named; "" if unknown.
        self.devices = {sample.machine.device for sample in samples}
        self.device_error = kind.device / math.sqrt(len(self.devices))


def _change(pair: _Pair) -> Change:
    """Compares the samples of one measurement on one device.

    Runs that were disturbed, on another machine, or measured in another way than the newest one are left out
    if there are others.
    """
    newest = pair.new[-1]
    value = newest.value
    kind = kind_of(value.id, on_gpu=value.on_gpu)
    old, new = (_Side(_usable(side, newest), kind) for side in (pair.old, pair.new))
    machines = old.last.machine, new.last.machine
    ratio = new.center / old.center if value.higher_is_better else old.center / new.center
    same_device = old.devices == new.devices and len(old.devices) == 1 and "" not in old.devices
    device_error = 0.0 if same_device else math.hypot(old.device_error, new.device_error)
    run_error = math.hypot(old.error, new.error)
    limit = max(kind.floor, SIGMAS * math.hypot(run_error, device_error))
    outcome: Outcome = _outcome(ratio, limit)
    reason = _incomparable(old.last, new.last)
    if reason:
        outcome = "other"
    elif old.last.disturbance or new.last.disturbance:
        outcome, reason = "busy", f"not evaluated: {old.last.disturbance or new.last.disturbance}"
    elif outcome == "slower" and not _decides(kind, *machines):
        outcome, reason = "host", "not counted, because it depends on the host and on files"
    return Change(
        id=value.id,
        device="" if value.device_key == "cpu" else value.device_key,
        unit=value.unit,
        old=old.center,
        new=new.center,
        ratio=ratio,
        floor=kind.floor,
        limit=limit,
        run_limit=max(kind.floor, SIGMAS * run_error),
        outcome=outcome,
        on_gpu=value.on_gpu,
        runs=(old.runs, new.runs),
        machines=(machines[0].name, machines[1].name),
        devices=(len(old.devices), len(new.devices)),
        same_device=same_device,
        differences=_differences(old, new) if value.on_gpu and outcome != "other" else (),
        reason=reason,
    )


def _usable(samples: list[_Sample], newest: _Sample) -> list[_Sample]:
    """The samples that can be compared with the newest one; those of them that nothing disturbed."""
    comparable = [s for s in samples if not _incomparable(s, newest)] or samples
    return [s for s in comparable if not s.disturbance] or comparable


def _differences(old: _Side, new: _Side) -> tuple[str, ...]:
    """What differs between the GPUs of both sides, of one name."""
    found = old.last.machine.changes_to(new.last.machine)
    if "" in old.devices | new.devices:
        return ("perhaps another GPU of the same kind", *found)
    return ("another GPU of the same kind", *found) if old.devices != new.devices else found


def _incomparable(old: _Sample, new: _Sample) -> str:
    """Why two values cannot be compared; empty if they can."""
    if old.machine.name != new.machine.name:
        return f"on another machine: before {old.machine.name}, now {new.machine.name}"
    (old_unit, old_size, old_warm), (new_unit, new_size, new_warm) = old.method, new.method
    other_way = old_unit != new_unit or (new.value.on_gpu and old_warm != new_warm)
    if other_way:
        return "measured in another way by another version of builder"
    what = other_size(new.value.id, old_size, new_size)
    return f"measured with another {what}: before {old_size:g}, now {new_size:g}" if what else ""


def _decides(kind: Kind, old: Machine, new: Machine) -> bool:
    """Whether a slower value is a regression by itself."""
    return kind.decides and not (kind.host_bound and old.cpu != new.cpu)


def _outcome(ratio: float, limit: float) -> Outcome:
    if limit < 1 and ratio < 1 - limit:
        return "slower"
    if limit < 1 and ratio > 1 / (1 - limit):
        return "faster"
    return "same"


def _center(values: Sequence[Value], usual: float) -> tuple[float, float]:
    """The median of the runs' medians, and its standard error as a fraction of it.

    Args:
        values: of the runs of one side.
        usual: the least standard deviation between runs that is assumed.
    """
    medians = [value.median for value in values]
    center = statistics.median(medians)
    within = statistics.median(value.error / value.median for value in values)
    between = 0.0
    if len(values) >= 3:
        between = MAD_TO_SIGMA * statistics.median(abs(m - center) for m in medians) / center
    return center, max(within, between, usual) / math.sqrt(len(values))


def _worse_probes(old: StoredReport, new: StoredReport) -> list[ProbeChange]:
    before = {probe["id"]: probe["status"] for probe in old.report["probes"]}
    after = {probe["id"]: probe["status"] for probe in new.report["probes"]}
    return [
        ProbeChange(name, before[name], status)
        for name, status in sorted(after.items())
        if name in before and _STATUS_ORDER[status] > _STATUS_ORDER[before[name]]
    ]
