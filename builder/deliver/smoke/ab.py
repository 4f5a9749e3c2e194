"""Two images against each other on one machine: rounds of old, new, new, old (docs/smoke.md).

A drift of the machine (heat, clocks) moves both images of a round by the same amount:

    speed of the machine   \\
                            \\_ old
                              \\_ new      (new + new) / 2 - (old + old) / 2  =  the change alone,
                                \\_ new    if the drift is linear
                                  \\_ old

The change of a figure is the median of its rounds' changes. What is left when change and drift are
taken out is noise, which widens the limit.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from builder.bench.report import format_value

from .changes import OUTCOME_ORDER, other_size, size_of
from .limits import Floor, floor_of
from .values import (
    MEDIAN_ERROR,
    SIGMAS,
    Report,
    Value,
    devices_of,
    faults_of,
    shares_gpu,
    usable_values,
)

#: Which image each run of a round tests.
ROUND = ("old", "new", "new", "old")
#: ``shown``: a figure of a kind that does not decide.
Outcome = Literal["slower", "faster", "same", "shown"]
#: ``unsteady``: the machine was not steady enough for a verdict.
Verdict = Literal["slower", "same", "unsteady"]

#: Noise of a figure as a fraction of its floor: the machine is unsteady if this is the median of the figures.
_UNSTEADY = 1.5
#: The fewest rounds for a verdict: with two, modes of the clock look like an image too often.
MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class PairFigure:
    """A measurement on one device with both images; ratios and the limit have four digits."""

    id: str
    device: str
    """``cuda:0`` or ``rank 3``; empty for a CPU."""
    unit: str
    old: float
    """The median of the old image's runs, in ``unit``."""
    new: float
    ratio: float
    """Above 1 if the new image is better; drift is taken out."""
    limit: float
    """The change that counts, as a fraction."""
    outcome: Outcome
    rounds: tuple[float, ...]
    """The ratio of each round."""

    def __str__(self) -> str:
        device = f" ({self.device})" if self.device else ""
        old, new = self.values
        return f"{self.id}{device}: {old} -> {new}, {self.ratio - 1:+.1%} (limit {self.limit:.1%})"

    @property
    def values(self) -> tuple[str, str]:
        """The values of both images for people."""
        return format_value(self.old, self.unit), format_value(self.new, self.unit)


@dataclass(frozen=True, slots=True)
class Ab:
    """The result of all rounds."""

    verdict: Verdict
    figures: tuple[PairFigure, ...]
    rounds: int
    """The number of rounds that were used."""
    notes: tuple[str, ...] = ()

    @property
    def slower(self) -> tuple[PairFigure, ...]:
        return tuple(figure for figure in self.figures if figure.outcome == "slower")


def compare_rounds(rounds: Sequence[Sequence[Report]]) -> Ab:
    """Compare the two images of some rounds.

    Args:
        rounds: the reports of each round in the order of :data:`ROUND`. A round does not count if a
            run was aborted, on other GPUs, with other processes, or throttled with one image only.
    """
    reasons = list(map(_unusable, rounds))
    used = [reports for reports, reason in zip(rounds, reasons, strict=True) if not reason]
    notes = [f"round {i} is left out: {reason}" for i, reason in enumerate(reasons, 1) if reason]
    series, missing = _series(used)
    noises = [one.noise for one in series if one.floor.decides]
    widened = max(statistics.median(noises or [0.0]), 1.0)
    figures = [one.figure(widened) for one in series]
    figures.sort(key=lambda f: (OUTCOME_ORDER[f.outcome], f.ratio, f.id, f.device))
    # the slower ones come first
    verdict: Verdict = "slower" if figures and figures[0].outcome == "slower" else "same"
    if problem := _no_verdict(len(used), len(rounds), noises):
        verdict = "unsteady"
        notes.append(f"no verdict: {problem}")
    if missing:
        why = "because not all runs measured it in the same way"
        notes.append(f"not compared, {why}: {', '.join(missing)}")
    return Ab(verdict, tuple(figures), len(used), tuple(notes))


def _no_verdict(used: int, rounds: int, noises: Sequence[float]) -> str:
    """Return the reason why there is no verdict; empty if there is one.

    Args:
        used: the number of rounds that count.
        rounds: the number of all rounds.
        noises: of the figures that decide.
    """
    if used < MIN_ROUNDS or not noises:
        return f"{used} of {rounds} rounds could be used, {len(noises)} figures"
    times = statistics.median(noises)
    if times <= _UNSTEADY:
        return ""
    runs = f"the runs of one image differ {times:.1f} times as much as the limits allow for"
    return f"this machine is not steady: {runs}"


# which rounds count ------------------------------------------------------------------------------


def _unusable(reports: Sequence[Report]) -> str:
    """Return the reason why a round does not count; empty: it does."""
    if len(reports) < len(ROUND) or any(report["verdict"] == "error" for report in reports):
        return "a run ended without a report"
    if len(set(map(_gpus, reports))) > 1:
        return "its runs were on different GPUs"
    if any(map(shares_gpu, reports)):
        return "other processes used the GPU"
    old, new = (_throttled(reports, side) for side in ("old", "new"))
    if old != new:
        side = "new" if new else "old"
        return f"only the {side} image was throttled ({', '.join(sorted(new or old))})"
    return ""


def _gpus(report: Report) -> tuple[str, ...]:
    return tuple(sorted(str(device.get("uuid", "")) for device in devices_of(report)))


def _throttled(reports: Sequence[Report], side: str) -> frozenset[str]:
    """Return the reasons of throttling with one image, apart from a power cap."""
    tested = [report for report, of in zip(reports, ROUND, strict=True) if of == side]
    measurements = (measurement for report in tested for measurement in report["measurements"])
    return frozenset().union(*map(faults_of, measurements))


# the statistic -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Series:
    """A figure on one device, in all rounds."""

    values: Sequence[Value]
    """Of all runs, in the order of :data:`ROUND`."""
    floor: Floor
    changes: tuple[float, ...]
    """The change of each round as a logarithm."""
    error: float
    """The standard error of their median."""

    @property
    def noise(self) -> float:
        """The change that noise explains, as a fraction of the floor."""
        return SIGMAS * self.error / self.floor.change

    def figure(self, widened: float) -> PairFigure:
        """Return the result; ``widened`` is the factor for all limits of this machine."""
        value = self.values[0]
        sign = 1 if value.higher_is_better else -1
        ratio = math.exp(sign * statistics.median(self.changes))
        limit = self.floor.change * max(widened, self.noise)
        medians: dict[str, list[float]] = {"old": [], "new": []}
        for side, run in zip(itertools.cycle(ROUND), self.values, strict=False):
            medians[side].append(run.median)
        return PairFigure(
            id=value.id,
            device="" if value.device_key == "cpu" else value.device_key,
            unit=value.unit,
            old=statistics.median(medians["old"]),
            new=statistics.median(medians["new"]),
            ratio=round(ratio, 4),
            limit=round(limit, 4),
            outcome=self._outcome(ratio, limit),
            rounds=tuple(round(math.exp(sign * change), 4) for change in self.changes),
        )

    def _outcome(self, ratio: float, limit: float) -> Outcome:
        """Return the outcome by the ratio, which is above 1 if the new image is better."""
        if not self.floor.decides:
            return "shown"
        middle = statistics.median(self.changes)
        # At most a quarter of the rounds may contradict the median in sign.
        against = sum(1 for change in self.changes if change * middle < 0)
        if limit >= 1 or against > len(self.changes) // 4 or 1 - limit <= ratio <= 1 / (1 - limit):
            return "same"
        return "slower" if ratio < 1 else "faster"


def _series(rounds: Sequence[Sequence[Report]]) -> tuple[list[_Series], list[str]]:
    """Return the values of each figure, and the names of figures that cannot be compared.

    Those are figures that a run does not have, or has of another size: it may depend on the speed.
    """
    runs = [_values(report) for reports in rounds for report in reports]
    series: list[_Series] = []
    missing: set[str] = set()
    for key in dict.fromkeys(itertools.chain(*runs)):
        found = [values[key] for values in runs if key in values]
        sizes = list(map(size_of, found))
        name = found[0].id
        if len(found) < len(runs) or other_size(name, min(sizes), max(sizes)):
            missing.add(name)
        else:
            series.append(_Series(found, key[-1], *_estimate(found)))
    return series, sorted(missing)


#: What makes values of two runs comparable.
_Key = tuple[str, str, str, bool, Floor]


def _values(report: Report) -> dict[_Key, Value]:
    """Return the value of each figure on each device."""
    values = (value for value in usable_values(report) if value.median > 0)
    return {(v.id, v.device_key, v.unit, v.higher_is_better, _floor(v)): v for v in values}


def _floor(value: Value) -> Floor:
    """Return the floor of a figure; it decides only if the process was bound where that matters."""
    floor = floor_of(value.id, on_gpu=value.on_gpu)
    return replace(floor, decides=floor.decides and not value.is_unbound)


def _estimate(values: Sequence[Value]) -> tuple[tuple[float, ...], float]:
    """Return the changes of all rounds and their error, by logarithms of ``(old, new, new, old)``.

    What the two runs of an image differ by is drift and noise. The drift per run is the same in all
    rounds; the least squares of all differences yield it.
    """
    logarithms = [math.log(value.median) for value in values]
    rounds = len(values) // len(ROUND)
    changes, differences = [], []
    for i in range(0, len(values), len(ROUND)):
        first, second, third, fourth = logarithms[i : i + len(ROUND)]
        changes.append((second + third) / 2 - (first + fourth) / 2)
        differences += [(fourth - first, 3), (third - second, 1)]  # with the runs between
    drift = sum(runs * difference for difference, runs in differences) / (10 * rounds)
    squares = sum((difference - runs * drift) ** 2 / 2 for difference, runs in differences)
    sigma = math.sqrt(squares / (len(differences) - 1))
    of_median = 1.0 if rounds < 3 else MEDIAN_ERROR
    return tuple(changes), of_median * sigma / math.sqrt(rounds)
