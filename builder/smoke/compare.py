"""Comparing the smoke tests of two images by a robust test. docs/grading.md states the rule.

A change counts if it exceeds both a fixed floor and what noise explains. The noise of one side is the
standard error of the median of its runs. With one run that is the error of the run's own median; with three
runs or more also the differences between the runs:

    runs of the old image    |--x--|   |--x--|     within: the typical length of a bar
                               |--x--|             between: how far the x are apart
    noise = max(within, between) / sqrt(number of runs)
    limit = max(floor, 3 * sqrt(noise_old ** 2 + noise_new ** 2))
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from builder.smoke.limits import BUSY
from builder.smoke.packages import PackageChange, changed_packages
from builder.smoke.reports import StoredReport
from builder.smoke.values import (
    MAD_TO_SIGMA,
    SIGMAS,
    Report,
    Value,
    devices_of,
    format_value,
    number,
    usable_measurements,
    values_of,
)

#: ``other``: on another machine; ``busy``: on a machine that was busy. Both are shown and not evaluated.
Outcome = Literal["same", "slower", "faster", "other", "busy"]

#: Smaller changes never count. They occur between runs of one image. By kind of measurement, as a fraction.
FLOORS = {"gpu": 0.05, "cpu": 0.15, "files": 0.30}
#: Measurements that depend on file systems, and on what the kernel has cached.
_FILES = re.compile(
    r"\w+\.(import_time|first_kernel)|python\.start|imports|command|checkpoint\.\w+|dataloader"
)
_OUTCOME_ORDER = {"slower": 0, "faster": 1, "same": 2, "busy": 3, "other": 4}
_STATUS_ORDER = {"skip": 0, "pass": 0, "warn": 1, "fail": 2}


@dataclass(frozen=True, slots=True)
class Change:
    """A measurement on one device, before and after."""

    id: str
    device: str
    """``cuda:0`` or ``rank 3``; empty for a CPU."""
    unit: str
    old: float
    """The median of the runs' medians, in ``unit``."""
    new: float
    ratio: float
    """Above 1 if the new image is better."""
    limit: float
    """The change that counts, as a fraction."""
    outcome: Outcome
    runs: tuple[int, int] = (1, 1)
    """The number of runs that were used, old and new."""
    machines: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        device = f" ({self.device})" if self.device else ""
        old, new = format_value(self.old, self.unit), format_value(self.new, self.unit)
        text = f"{self.id}{device}: {old} -> {new}"
        if self.outcome == "other":
            return f"{text}, on another machine: before {self.machines[0]}, now {self.machines[1]}"
        if self.outcome == "busy":
            return f"{text}, on a busy machine"
        word = "slower" if self.ratio < 1 else "faster"
        return f"{text}, {abs(self.ratio - 1):.0%} {word} (limit {self.limit:.0%})"

    def to_json(self) -> dict[str, Any]:
        out = {
            "id": self.id,
            "device": self.device,
            "unit": self.unit,
            "old": self.old,
            "new": self.new,
            "ratio": round(self.ratio, 4),
            "limit": round(self.limit, 4),
            "outcome": self.outcome,
            "runs": list(self.runs),
        }
        if self.outcome == "other":
            out["machines"] = list(self.machines)
        return out


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

    Values of different devices or processors are listed and not evaluated. The same applies to values of a
    processor if other processes took much of its time in all runs of one side.

    Args:
        new: one run or more of the new image, the newest last.
        old: one run or more of the old image, the newest last.
        old_packages: the packages of the old image, if its reports do not list them.
    """
    after, before = _samples(new), _samples(old)
    changes = [_change(before[key], after[key]) for key in after if key in before]
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
    busy = sorted({change.id for change in changes if change.outcome == "busy"})
    if busy:
        notes.append(f"not evaluated, because other processes used the machine: {', '.join(busy)}")
    return Comparison(
        old=tuple(old),
        new=tuple(new),
        changes=tuple(changes),
        probes=tuple(_worse_probes(old[-1], new[-1])),
        packages=packages,
        notes=tuple(notes),
    )


def _packages(runs: Sequence[StoredReport]) -> dict[str, str] | None:
    listed = [run.packages for run in runs if run.packages is not None]
    return listed[-1] if listed else None


@dataclass(frozen=True, slots=True)
class _Sample:
    """The value of a measurement on one device in one run."""

    value: Value
    machine: str
    busy: bool
    """Other processes took much of the processor's time."""


def _samples(runs: Sequence[StoredReport]) -> dict[tuple[str, str], list[_Sample]]:
    """The samples of all runs by measurement and device. Wrong results are left out."""
    out: dict[tuple[str, str], list[_Sample]] = {}
    for run in runs:
        unsteady = _is_unsteady(run.report)
        for measurement in usable_measurements(run.report):
            busy = unsteady or (number(measurement, "lost_fraction") or 0.0) > BUSY
            for value in values_of(measurement):
                if value.median > 0:
                    machine = machine_of(run.report, measurement, value)
                    sample = _Sample(value, machine, busy and not value.on_gpu)
                    out.setdefault((value.id, value.device_key), []).append(sample)
    return out


def _is_unsteady(report: Report) -> bool:
    probes = report["probes"]
    return any(p["id"] == "machine.steady" and p["status"] in ("warn", "fail") for p in probes)


def machine_of(report: Report, measurement: Mapping[str, Any], value: Value) -> str:
    """The machine that a value was measured on: the GPU, or the processor and its number of usable cores."""
    if value.on_gpu:
        return _gpu_name(report, measurement, value)
    cpu = report.get("facts", {}).get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    limits = [number(cpu, "usable_cores"), number(cpu, "quota_cores")]
    cores = min((limit for limit in limits if limit is not None), default=None)
    model = cpu.get("model", "a CPU")
    return f"{model}, {cores:g} cores" if cores is not None else str(model)


def _gpu_name(report: Report, measurement: Mapping[str, Any], value: Value) -> str:
    devices = devices_of(report)
    index = value.device.partition(":")[2]
    candidates = [d for d in devices if value.rank is not None and d.get("rank") == value.rank]
    candidates += devices[int(index) : int(index) + 1] if index.isdigit() else devices[:1]
    if candidates:
        return str(candidates[0].get("name"))
    return str(measurement.get("device_name", "a GPU"))


def _change(old: list[_Sample], new: list[_Sample]) -> Change:
    """Compares the samples of one measurement on one device. Busy runs are left out if there are others."""
    busy = all(s.busy for s in old) or all(s.busy for s in new)
    old = [s for s in old if not s.busy] or old
    new = [s for s in new if not s.busy] or new
    old_center, old_noise = _center([s.value for s in old])
    new_center, new_noise = _center([s.value for s in new])
    value, machines = new[-1].value, (old[-1].machine, new[-1].machine)
    comparable = machines[0] == machines[1] and old[-1].value.unit == value.unit
    ratio = new_center / old_center if value.higher_is_better else old_center / new_center
    limit = max(_floor(value), SIGMAS * math.hypot(old_noise, new_noise))
    outcome: Outcome = _outcome(ratio, limit)
    if not comparable:
        outcome = "other"
    elif busy:
        outcome = "busy"
    return Change(
        id=value.id,
        device="" if value.device_key == "cpu" else value.device_key,
        unit=value.unit,
        old=old_center,
        new=new_center,
        ratio=ratio,
        limit=limit,
        outcome=outcome,
        runs=(len(old), len(new)),
        machines=machines,
    )


def _outcome(ratio: float, limit: float) -> Outcome:
    if limit < 1 and ratio < 1 - limit:
        return "slower"
    if limit < 1 and ratio > 1 / (1 - limit):
        return "faster"
    return "same"


def _center(values: Sequence[Value]) -> tuple[float, float]:
    """The median of the runs' medians, and its standard error as a fraction of it."""
    medians = [value.median for value in values]
    center = statistics.median(medians)
    within = statistics.median(value.error / value.median for value in values)
    between = 0.0
    if len(values) >= 3:
        between = MAD_TO_SIGMA * statistics.median(abs(m - center) for m in medians) / center
    return center, max(within, between) / math.sqrt(len(values))


def _floor(value: Value) -> float:
    if _FILES.fullmatch(value.id):
        return FLOORS["files"]
    return FLOORS["gpu" if value.on_gpu else "cpu"]


def _worse_probes(old: StoredReport, new: StoredReport) -> list[ProbeChange]:
    before = {probe["id"]: probe["status"] for probe in old.report["probes"]}
    after = {probe["id"]: probe["status"] for probe in new.report["probes"]}
    return [
        ProbeChange(name, before[name], status)
        for name, status in sorted(after.items())
        if name in before and _STATUS_ORDER[status] > _STATUS_ORDER[before[name]]
    ]
