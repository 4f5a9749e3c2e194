"""Grading GPUs by the site's own baseline: the median of the last runs on GPUs of the same model.

Published figures are the best results of their authors, so their limits are wide. What this site's GPUs
reached with the same version of the framework is a closer reference: docs/grading.md states the rule.

    stored runs        o  o   o o  o  o  o  o        of one figure, size, GPU model, power limit, framework
    first baseline     |--median--|                  the first five; shown if the present one is far below
    present baseline              |--median--|       the last 20 of a year, at most three of one GPU
"""

from __future__ import annotations

import datetime
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.smoke.causes import slowing_variables, state_of
from builder.smoke.conditions import conditions_of
from builder.smoke.finding import PUBLISHED, Basis, Finding, value_finding
from builder.smoke.limits import BUSY, LIMITS, UNSTEADY, evaluate
from builder.smoke.machines import shares_gpu
from builder.smoke.reports import StoredReport, read_files
from builder.smoke.schema import TIME
from builder.smoke.values import (
    Report,
    Value,
    devices_of,
    facts_of,
    format_value,
    mapping,
    mappings,
    number,
    rank_item,
    unit_of,
    usable_measurements,
    values_of,
)

#: Runs of a baseline: at least, at most, and at most of one GPU if that leaves enough.
LEAST, MOST, MOST_OF_ONE_GPU = 5, 20, 3
#: Days after which a run no longer counts.
OLDEST_DAYS = 365
#: Files that are read: the newest, and the oldest for the first baseline.
_NEWEST_FILES, _OLDEST_FILES = 1000, 100
#: A baseline that is below the first one of the site by more than this is noted.
DECAY = 0.05
#: What is graded: figures that the GPU alone decides. Those that depend on the host or on files vary more
#: than the limits between two runs.
_GRADED = ("matmul.", "memory.copy", "memory.triad", "conv.training", "attention", "allreduce.node")
_ADVICE = (
    "check clock, power and heat (nvidia-smi -q -d PERFORMANCE, rocm-smi) and other processes on the GPU; "
    "to see what differs: builder smoke TARGET --compare previous"
)
#: No figure of a GPU is as small as this, in GFLOP/s or GB/s. A fraction of it could be infinite.
_SMALLEST = 1e-6
#: What must be equal for two figures to be comparable.
_Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Sample:
    """A figure of one run: the median over the run's GPUs of one model."""

    started: str
    gpus: tuple[str, ...]
    """The GPUs' uuids; of an old report without uuids its file, so that it counts as other GPUs."""
    median: float


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What the site's GPUs usually reach."""

    median: float
    runs: int
    gpus: int
    """The number of different GPUs, or groups of GPUs that ran together."""
    first: _Sample | None
    """The first baseline of the site, if the present one is far below."""


def baseline_reports(report: Report, folder: Path | None) -> list[StoredReport]:
    """The stored reports of all targets that may be a report's baseline.

    Left out are damaged reports, those of a clock that is ahead (they would stay the newest for years), and
    of very many files those of the middle.

    Args:
        report: the report to be graded. One without GPUs has no baseline.
        folder: ``reports``, with a folder for each target; None: nothing is stored.
    """
    if folder is None or not devices_of(report):
        return []
    paths = sorted(folder.glob("*/*.json"), key=lambda path: (path.stem.partition("-")[2], path))
    if len(paths) > _NEWEST_FILES + _OLDEST_FILES:
        paths = paths[:_OLDEST_FILES] + paths[-_NEWEST_FILES:]
    tomorrow = _days_before(datetime.datetime.now(datetime.UTC).strftime(TIME), -1)
    return [stored for stored in read_files(paths)[0] if stored.started <= tomorrow]


def grade_by_baseline(
    report: Report, devices: Sequence[dict[str, Any]], stored: Sequence[StoredReport]
) -> list[Finding]:
    """Compares the values of each GPU with what GPUs of its model reached here before.

    Args:
        report: the report.
        devices: the facts about its GPUs.
        stored: reports of earlier runs, of any target.
    """
    earlier = [s for s in stored if s.report.get("verdict") in ("pass", "warn") and not shares_gpu(s.report)]
    earlier = sorted((s for s in earlier if s.report != report), key=lambda s: s.started)
    if not earlier:
        return []
    findings = []
    for measurement in usable_measurements(report):
        known: dict[_Key, _Baseline | None] = {}  # most GPUs of a run have the same
        for value in _graded_values(measurement):
            facts = facts_of(value, devices)
            own = {**measurement, **rank_item(value, measurement)}
            key = _key(report, own, facts)
            if key is None:
                continue
            if key not in known:
                known[key] = _baseline(_samples(earlier, own, key), str(report["started"]))
            baseline = known[key]
            if baseline is not None:
                causes = _causes(report, measurement)
                state = state_of(value, measurement, facts)
                findings.append(_compare(value, baseline, str(facts["name"]), causes, state))
    return findings


def with_baseline(findings: Sequence[Finding], by_site: Sequence[Finding], report: Report) -> list[Finding]:
    """All findings; where the site has a baseline, a published figure can only fail.

    A value that is unsteady keeps its warning.

    Args:
        findings: by other rules.
        by_site: those of :func:`grade_by_baseline`.
        report: the report that was graded.
    """
    known = {(finding.id, finding.device) for finding in by_site}
    steady = {
        (value.id, value.where)
        for measurement in usable_measurements(report)
        for value in values_of(measurement)
        if value.spread <= UNSTEADY
    }
    out = []
    for finding in findings:
        is_low = finding.fraction is not None and finding.fraction < 1
        is_limit = finding.status == "warn" and finding.basis in PUBLISHED and is_low
        if is_limit and (finding.id, finding.device) in known & steady:
            seen = f"{finding.seen}; the site's baseline decides"
            finding = replace(finding, status="pass", seen=seen, advice="")
        out.append(finding)
    return [*out, *by_site]


def _graded_values(measurement: Mapping[str, Any]) -> Iterator[Value]:
    name = str(measurement.get("id"))
    if name.startswith(_GRADED) or name.endswith("_pinned"):
        yield from (
            v for v in values_of(measurement) if v.on_gpu and v.median > _SMALLEST and v.higher_is_better
        )


def _key(report: Report, measurement: Mapping[str, Any], facts: Mapping[str, Any]) -> _Key | None:
    """What must be equal in another report; None if the GPU is unknown."""
    if not facts.get("name"):
        return None
    power = number(facts, "power_limit_w")
    transport: _Key = ()
    if str(measurement.get("id")).startswith("allreduce"):
        ranks = measurement.get("members") or mapping(report.get("launch")).get("ranks")
        transport = (str(ranks), str(measurement.get("backend")), str(measurement.get("algorithm")))
    return (
        str(facts["name"]),
        str(facts.get("mig") or ""),
        None if power is None else round(power / 10),
        _framework(report),
        number(measurement, "size"),
        f"sustained_{unit_of(measurement)}" in measurement,  # before, GPUs were measured cold
        *transport,
    )


def _framework(report: Report) -> str:
    """Name and minor version of the framework, for example ``torch 2.13``."""
    facts = report.get("facts", {})
    framework = facts.get("framework")
    if not isinstance(framework, dict):
        framework = {"name": "torch", **mapping(facts.get("torch"))}
    return f"{framework.get('name')} {'.'.join(str(framework.get('version')).split('.')[:2])}"


def _samples(stored: Sequence[StoredReport], wanted: Mapping[str, Any], key: _Key) -> Iterator[_Sample]:
    """The same figure in other runs: same measurement, size and key."""
    for run in stored:
        devices = devices_of(run.report)
        for measurement in run.report["measurements"]:
            same = measurement["id"] == wanted["id"] and measurement["status"] == "pass"
            lost = number(measurement, "lost_fraction") or 0.0
            if not same or lost > BUSY or conditions_of(measurement).faults:
                continue
            sized = _at_size(measurement, wanted.get("size"))
            found = [(value, facts_of(value, devices)) for value in _graded_values(sized)]
            found = [(value, facts) for value, facts in found if _key(run.report, sized, facts) == key]
            if found:
                uuids = sorted(str(facts.get("uuid") or run.source) for _, facts in found)
                median = statistics.median(value.median for value, _ in found)
                yield _Sample(run.started, tuple(uuids), median)


def _at_size(measurement: Mapping[str, Any], size: Any) -> Mapping[str, Any]:
    """The measurement at this size: its best one, or another one that it lists; empty if it has none."""
    if measurement.get("size") == size:
        return measurement
    for item in mappings(measurement.get("sizes")):
        if item.get("size") == size:
            return {**measurement, **item, "ranks": None}
    return {}


def _baseline(samples: Iterator[_Sample], started: str) -> _Baseline | None:
    """The baseline of a run; None if there are too few runs.

    Args:
        samples: of the same figure, the newest last.
        started: when the run under test began. Later runs count: a report may be graded again.
    """
    # a copy of a report is the same run
    all_runs = list({(sample.started, sample.median): sample for sample in samples}.values())
    oldest = _days_before(started, OLDEST_DAYS)
    newest_first = [sample for sample in reversed(all_runs) if sample.started >= oldest]
    counted: Counter[tuple[str, ...]] = Counter()
    limited = []
    for sample in newest_first:
        counted[sample.gpus] += 1
        if counted[sample.gpus] <= MOST_OF_ONE_GPU:
            limited.append(sample)
    used = (limited if len(limited) >= LEAST else newest_first)[:MOST]
    if len(used) < LEAST:
        return None
    median = statistics.median(sample.median for sample in used)
    first = statistics.median(sample.median for sample in all_runs[:LEAST])
    decayed = median < (1 - DECAY) * first
    return _Baseline(
        median=median,
        runs=len(used),
        gpus=len({sample.gpus for sample in used}),
        first=replace(all_runs[0], median=first) if decayed else None,
    )


def _days_before(started: str, days: int) -> str:
    """A time so many days before another one, in the same notation."""
    try:
        return (datetime.datetime.strptime(started, TIME) - datetime.timedelta(days=days)).strftime(TIME)
    except (ValueError, OverflowError):
        return ""


def _causes(report: Report, measurement: Mapping[str, Any]) -> list[str]:
    """What explains a low value apart from the image and the GPU."""
    causes = [f"{variable} is set" for variable in slowing_variables(report, str(measurement["id"]))]
    if shares_gpu(report) or (number(measurement, "lost_fraction") or 0.0) > BUSY:
        causes.append("another program used the GPU")
    return causes


def _compare(value: Value, baseline: _Baseline, model: str, causes: Sequence[str], state: str) -> Finding:
    """The finding about a value.

    Args:
        value: the value.
        baseline: what it is compared with.
        model: the name of the GPU.
        causes: what explains a low value, so that it cannot fail.
        state: the GPU's clock and temperature.
    """
    status, fraction = evaluate(value, baseline.median, LIMITS["site"])
    gpus = f" on {baseline.gpus} GPUs" if baseline.gpus > 1 else ""
    runs = f"median of the last {baseline.runs} runs here{gpus}, {model}"
    reference = format_value(baseline.median, value.unit)
    seen = [f"{format_value(value.median, value.unit)}: {fraction:.0%} of {reference} ({runs})"]
    if status != "pass":
        status = "warn" if causes else status
        seen += [*causes, state]
    if baseline.first is not None:
        first = format_value(baseline.first.median, value.unit)
        seen.append(f"the first {LEAST} runs, from {baseline.first.started[:10]}, reached {first}")
    text = "; ".join(filter(None, seen))
    return value_finding(value, status, text, _ADVICE, Basis("site", baseline.median), fraction)
