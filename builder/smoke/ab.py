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
from dataclasses import asdict, dataclass
from typing import Any, Literal

from builder.bench.report import format_value
from builder.smoke.changes import other_size, size_of
from builder.smoke.limits import floor_of
from builder.smoke.values import (
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
_OUTCOME_ORDER = {"slower": 0, "faster": 1, "same": 2, "shown": 3}


@dataclass(frozen=True, slots=True)
class PairFigure:
    """A measurement on one device with both images."""

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

    def to_json(self) -> dict[str, Any]:
        rounded = {"ratio": round(self.ratio, 4), "limit": round(self.limit, 4)}
        return {**asdict(self), **rounded, "rounds": [round(ratio, 4) for ratio in self.rounds]}

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

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "rounds": self.rounds,
            "figures": [figure.to_json() for figure in self.figures],
            "notes": list(self.notes),
        }


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
    estimates = {key: _estimate(values) for key, values in series.items()}
    noises = [_noise(key, estimate) for key, estimate in estimates.items() if key.decides]
    noise = statistics.median(noises or [0.0])
    figures = [_figure(key, series[key], estimates[key], max(noise, 1.0)) for key in series]
    figures.sort(key=lambda f: (_OUTCOME_ORDER[f.outcome], f.ratio, f.id, f.device))
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
    if len(set(map(_uuids, reports))) > 1:
        return "its runs were on different GPUs"
    if any(map(shares_gpu, reports)):
        return "other processes used the GPU"
    old, new = (_throttled(reports, side) for side in ("old", "new"))
    if old != new:
        side = "new" if new else "old"
        return f"only the {side} image was throttled ({', '.join(sorted(new or old))})"
    return ""


def _uuids(report: Report) -> tuple[str, ...]:
    return tuple(sorted(str(device.get("uuid", "")) for device in devices_of(report)))


def _throttled(reports: Sequence[Report], side: str) -> frozenset[str]:
    """Return the reasons of throttling with one image, apart from a power cap."""
    tested = [report for report, of in zip(reports, ROUND, strict=True) if of == side]
    measurements = (measurement for report in tested for measurement in report["measurements"])
    return frozenset().union(*map(faults_of, measurements))


# the statistic -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    """A figure on one device."""

    id: str
    device: str
    unit: str
    higher_is_better: bool
    floor: float
    decides: bool
    """Its kind decides, and the benchmark was bound to the GPU's NUMA node where that matters."""

    @classmethod
    def of(cls, value: Value) -> _Key:
        floor = floor_of(value.id, on_gpu=value.on_gpu)
        decides = floor.decides and not value.is_unbound
        better, change = value.higher_is_better, floor.change
        return cls(value.id, value.device_key, value.unit, better, change, decides)


@dataclass(frozen=True, slots=True)
class _Estimate:
    rounds: tuple[float, ...]
    """The change of each round as a logarithm; positive: better."""
    error: float
    """The standard error of their median."""

    @property
    def change(self) -> float:
        return statistics.median(self.rounds)

    @property
    def agrees(self) -> bool:
        """Whether at most a quarter of the rounds contradict the median in sign."""
        against = sum(1 for change in self.rounds if change * self.change < 0)
        return against <= len(self.rounds) // 4


_Series = dict[_Key, list[tuple[float, ...]]]
"""The values of each figure in each round."""


def _series(rounds: Sequence[Sequence[Report]]) -> tuple[_Series, list[str]]:
    """Return the values of each figure, and the names of figures that cannot be compared.

    Those are figures that a run does not have, or has of another size: it may depend on the speed.
    """
    runs = [_values(report) for reports in rounds for report in reports]
    series: _Series = {}
    missing: set[str] = set()
    for key in dict.fromkeys(itertools.chain(*runs)):
        found = [values[key] for values in runs if key in values]
        medians, sizes = zip(*found, strict=True)
        if len(found) < len(runs) or other_size(key.id, min(sizes), max(sizes)):
            missing.add(key.id)
        else:
            series[key] = [medians[i : i + len(ROUND)] for i in range(0, len(runs), len(ROUND))]
    return series, sorted(missing)


def _values(report: Report) -> dict[_Key, tuple[float, float]]:
    """Return each figure and its size."""
    values = (value for value in usable_values(report) if value.median > 0)
    return {_Key.of(value): (value.median, size_of(value)) for value in values}


def _estimate(rounds: Sequence[Sequence[float]]) -> _Estimate:
    """Return the changes of all rounds and their error, by logarithms of ``(old, new, new, old)``.

    What the two runs of an image differ by is drift and noise. The drift per run is the same in all
    rounds; the least squares of all differences yield it.
    """
    changes, differences = [], []
    for values in rounds:
        first, second, third, fourth = (math.log(value) for value in values)
        changes.append((second + third) / 2 - (first + fourth) / 2)
        differences += [(fourth - first, 3), (third - second, 1)]  # with the runs between
    drift = sum(runs * difference for difference, runs in differences) / (10 * len(rounds))
    squares = sum((difference - runs * drift) ** 2 / 2 for difference, runs in differences)
    sigma = math.sqrt(squares / (len(differences) - 1))
    of_median = 1.0 if len(rounds) < 3 else MEDIAN_ERROR
    return _Estimate(tuple(changes), of_median * sigma / math.sqrt(len(rounds)))


def _noise(key: _Key, estimate: _Estimate) -> float:
    """Return the change that noise explains, as a fraction of the floor."""
    return SIGMAS * estimate.error / key.floor


def _outcome(key: _Key, estimate: _Estimate, ratio: float, limit: float) -> Outcome:
    """Return the outcome of a figure by its ratio, which is above 1 if the new image is better."""
    if not key.decides:
        return "shown"
    if limit >= 1 or not estimate.agrees or 1 - limit <= ratio <= 1 / (1 - limit):
        return "same"
    return "slower" if ratio < 1 else "faster"


def _figure(
    key: _Key, values: Sequence[Sequence[float]], estimate: _Estimate, widened: float
) -> PairFigure:
    """Return the result of one figure.

    Args:
        key: of the figure.
        values: of all rounds.
        estimate: of these values.
        widened: the factor for all limits of this machine.
    """
    sign = 1 if key.higher_is_better else -1
    ratio = math.exp(sign * estimate.change)
    limit = key.floor * max(widened, _noise(key, estimate))
    return PairFigure(
        id=key.id,
        device="" if key.device == "cpu" else key.device,
        unit=key.unit,
        old=statistics.median(value for row in values for value in (row[0], row[3])),
        new=statistics.median(value for row in values for value in (row[1], row[2])),
        ratio=ratio,
        limit=limit,
        outcome=_outcome(key, estimate, ratio, limit),
        rounds=tuple(math.exp(sign * change) for change in estimate.rounds),
    )
