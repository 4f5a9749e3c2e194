"""The data of the HTML page, computed from stored reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from builder.smoke.change import Change
from builder.smoke.compare import Comparison, compare
from builder.smoke.conditions import conditions_of
from builder.smoke.figures import FigureRow, figure_rows
from builder.smoke.grade import Expected, grade
from builder.smoke.images import ImageRuns, group_by_image
from builder.smoke.reference import References
from builder.smoke.reports import StoredReport
from builder.smoke.roofline import Roofline, roofline
from builder.smoke.trends import Comparisons, Trend, trends_of
from builder.smoke.values import Report, devices_of, findings_of, format_value, mapping, value_of

_SHOWN_OUTCOMES: tuple[str, ...] = ("slower", "faster", "host")
_STATUS_ORDER = {"fail": 0, "warn": 1, "pass": 2, "skip": 3}


@dataclass(frozen=True, slots=True)
class ImageRow:
    """A row of the table of images."""

    image: ImageRuns
    report: Report
    """The newest report of the image."""
    comparison: Comparison | None
    """With the image before it; None for the first image."""
    slower: tuple[str, ...]
    """The measurements that got slower, each once."""
    faster: tuple[str, ...]
    not_counted: tuple[str, ...]
    """The measurements that got slower for reasons of the host or of files, which alone do not count."""
    summary: str
    """``unchanged`` or ``not comparable``; empty if something got slower or faster."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """Everything that the page shows about a target."""

    name: str
    images: tuple[ImageRuns, ...]
    report: Report
    """The newest report."""
    machines: tuple[str, ...]
    comparison: Comparison | None
    """The newest image compared with the one before it."""
    against: str
    """The label of that image; empty if there is only one."""
    figures: tuple[FigureRow, ...]
    """What the GPUs reached; empty for a CPU."""
    trends: tuple[Trend, ...]
    """Empty if there is one image only."""
    roofline: Roofline | None
    findings: tuple[dict[str, Any], ...]
    """The findings of the grade, the failed ones first."""
    problems: tuple[str, ...]
    """A message for each report that cannot be read."""
    rows: tuple[ImageRow, ...]

    @property
    def verdict(self) -> str:
        return str(self.report["verdict"])

    @property
    def regressions(self) -> tuple[Change, ...]:
        return self.comparison.regressions if self.comparison else ()


def view(
    name: str, stored: Sequence[StoredReport], problems: Sequence[str], figures: References
) -> TargetView:
    """The data of a target that has at least one report.

    Args:
        name: the target.
        stored: its reports, the newest last.
        problems: a message for each report that cannot be read.
        figures: the reference figures, for reports without a grade and for the roofline.
    """
    images = group_by_image([ensure_graded(report, figures) for report in stored])
    comparisons = [None, *(compare(new.completed, old.completed) for old, new in pairwise(images))]
    newest = images[-1]
    report = newest.latest.report
    findings = findings_of(report)
    return TargetView(
        name=name,
        images=tuple(images),
        report=report,
        machines=_machines(report),
        comparison=comparisons[-1],
        against=images[-2].label if len(images) > 1 else "",
        figures=tuple(figure_rows(newest.completed[-1].report, findings_of(newest.completed[-1].report))),
        trends=tuple(trends_of(images, comparisons)) if len(images) > 1 else (),
        roofline=roofline(newest.completed[-1].report, figures),
        findings=tuple(sorted(findings, key=lambda f: _STATUS_ORDER.get(str(f.get("status")), 4))),
        problems=tuple(problems),
        rows=tuple(_rows(images, comparisons)),
    )


def ensure_graded(stored: StoredReport, figures: References) -> StoredReport:
    """A report with a grade: its own, otherwise one by the hardware that the report itself expects."""
    report = stored.report
    if report["verdict"] == "error" or isinstance(report.get("grade"), dict):
        return stored
    expect = mapping(report.get("expect"))
    vendor = expect.get("gpu")
    listed = expect.get("architectures")
    architectures = tuple(str(a) for a in listed) if isinstance(listed, list) else ()
    expected = Expected(vendor if vendor in ("nvidia", "amd") else "none", architectures)
    return replace(stored, report=grade(report, figures, expected))


def format_measurement(measurement: Mapping[str, Any]) -> str:
    """A measurement for people: ``248 TFLOP/s ± 0.3% (21 times)``, and the state of the GPU.

    Empty if it has no value.
    """
    value = value_of(measurement)
    if value is None:
        return ""
    spread = f" ± {value.mad / value.median:.1%}" if value.median > 0 else ""
    state = str(conditions_of(measurement))
    text = f"{format_value(value.median, value.unit)}{spread} ({value.repeats} times)"
    return f"{text}; {state}" if state else text


def _machines(report: Report) -> tuple[str, ...]:
    """The GPUs with their number, and the processor."""
    names = [str(device.get("name")) for device in devices_of(report)]
    machines = []
    for name in dict.fromkeys(names):
        count = names.count(name)
        machines.append(f"{count} x {name}" if count > 1 else name)
    cpu = report.get("facts", {}).get("cpu")
    if isinstance(cpu, dict) and cpu.get("model"):
        machines.append(f"{cpu['model']}, {cpu.get('usable_cores', '?')} cores")
    return tuple(machines)


def _rows(images: Sequence[ImageRuns], comparisons: Comparisons) -> list[ImageRow]:
    """The table of images, the newest first."""
    pairs = list(zip(images, comparisons, strict=True))
    return [_row(image, comparison) for image, comparison in reversed(pairs)]


def _row(image: ImageRuns, comparison: Comparison | None) -> ImageRow:
    changes = comparison.changes if comparison else ()
    slower, faster, not_counted = (
        tuple(dict.fromkeys(change.id for change in changes if change.outcome == outcome))
        for outcome in _SHOWN_OUTCOMES
    )
    summary = ""
    if not slower and not faster:
        summary = "not comparable" if comparison and changes and not comparison.evaluated else "unchanged"
    return ImageRow(image, image.latest.report, comparison, slower, faster, not_counted, summary)
