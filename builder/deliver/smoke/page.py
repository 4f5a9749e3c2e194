"""The history of smoke tests as one HTML page: no network, no script, light and dark.

The template escapes all text.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from jinja2 import Environment, StrictUndefined, Template

from builder.bench.report import format_value
from builder.core.datafiles import read_beside

from .changes import OUTCOME_ORDER, Change, ReportComparison, compare
from .reports import StoredReport, completed_runs
from .table import AB_ADVICE
from .values import Report, devices_of, figures_of, findings_of, mapping, state_text

#: The number of images that the page shows, the newest ones.
IMAGES = 12
_STATUS_ORDER = {"fail": 0, "warn": 1, "pass": 2, "skip": 3}
#: The drawing of a trend.
_WIDTH, _HEIGHT, _MARGIN = 220.0, 48.0, 6.0

Targets = Mapping[str, tuple[Sequence[StoredReport], Sequence[str]]]
"""By target: what :func:`builder.deliver.smoke.reports.read_folder` returns."""


@dataclass(frozen=True, slots=True)
class ImageRuns:
    """All runs of one image, and its comparison with the image before."""

    digest: str
    label: str
    """The dated tag, otherwise the day of the first run."""
    runs: tuple[StoredReport, ...]
    """The newest one last."""
    comparison: ReportComparison | None = None

    @property
    def latest(self) -> Report:
        """The newest report; of one that measured everything, if there is one."""
        return sorted(self.runs, key=lambda run: run.is_whole)[-1].report

    @property
    def changed(self) -> tuple[Change, ...]:
        return self.comparison.changed if self.comparison else ()


@dataclass(frozen=True, slots=True)
class Trend:
    """A figure over the images, as points of an SVG polyline."""

    id: str
    model: str
    points: str
    """Empty for a single image."""
    first: str
    last: str
    outcome: str
    """``slower``, ``faster`` or ``same``, against the image before."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """Everything that the page shows about a target."""

    name: str
    images: tuple[ImageRuns, ...]
    trends: tuple[Trend, ...]
    problems: tuple[str, ...]
    """A message for each report that cannot be read."""

    @property
    def report(self) -> Report:
        return self.images[-1].latest

    @property
    def verdict(self) -> str:
        return str(self.report["verdict"])

    @property
    def slower(self) -> tuple[str, ...]:
        """The figures of the newest image that are slower than usual, each once."""
        return tuple(dict.fromkeys(c.id for c in self.images[-1].changed if c.outcome == "slower"))

    @property
    def findings(self) -> list[dict[str, object]]:
        """The findings of the grade, the failed ones first."""
        found = findings_of(self.report)
        return sorted(found, key=lambda f: _STATUS_ORDER.get(str(f["status"]), 4))

    @property
    def machines(self) -> tuple[str, ...]:
        """The GPUs with their number, and the processor."""
        names = [str(device.get("name")) for device in devices_of(self.report)]
        found = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
        cpu = mapping(self.report.get("facts", {}).get("cpu"))
        if cpu.get("model"):
            found.append(f"{cpu['model']}, {cpu.get('usable_cores', '?')} cores")
        return tuple(found)


def render(
    targets: Sequence[TargetView], untested: Mapping[str, Sequence[str]], *, made: str
) -> str:
    """Return the page.

    Args:
        targets: what is shown of each target.
        untested: by target without a report, a message for each file that cannot be read.
        made: the time that the page shows.
    """
    return _template().render(targets=targets, untested=untested, made=made, ab_advice=AB_ADVICE)


@functools.cache
def _template() -> Template:
    """Return the compiled template. To compile it takes longer than to render a page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.globals |= {"figures": figures_of, "state_text": state_text}
    return environment.from_string(read_beside(__file__, "report.html.j2"))


def view(name: str, stored: Sequence[StoredReport], problems: Sequence[str]) -> TargetView:
    """Return the part of the page about a target that has at least one report.

    Args:
        name: the target.
        stored: its reports, the newest last.
        problems: a message for each report that cannot be read.
    """
    images = group_by_image(stored)
    compared = [images[0]]
    for old, new in pairwise(images):
        comparison = compare(completed_runs(new.runs), completed_runs(old.runs))
        compared.append(replace(new, comparison=comparison))
    return TargetView(name, tuple(compared), tuple(trends_of(compared)), tuple(problems))


def group_by_image(stored: Sequence[StoredReport]) -> list[ImageRuns]:
    """Return the newest :data:`IMAGES` images, by their first test."""
    groups: dict[str, list[StoredReport]] = {}
    for report in stored:
        groups.setdefault(report.digest or report.source, []).append(report)
    images = list(groups.items())[-IMAGES:]
    return [ImageRuns(d, runs[0].tag or runs[0].started[:10], tuple(runs)) for d, runs in images]


def trends_of(images: Sequence[ImageRuns]) -> list[Trend]:
    """Return the trend of each figure that changed with an image, the slower ones first."""
    series: dict[tuple[str, str], list[Change]] = {}
    for image in images:
        for change in image.comparison.changes if image.comparison else ():
            series.setdefault((change.id, change.model), []).append(change)
    newest = set(images[-1].comparison.changes) if images[-1].comparison else set()
    trends = [_trend(changes, is_new=changes[-1] in newest) for changes in series.values()]
    return sorted(trends, key=lambda trend: OUTCOME_ORDER[trend.outcome])


def _trend(changes: Sequence[Change], *, is_new: bool) -> Trend:
    """Return the line through the images' medians, at least 16 % high: steady looks steady."""
    values = [changes[0].old, *(change.new for change in changes)]
    middle = (max(values) + min(values)) / 2
    half = max((max(values) - min(values)) / 2, 0.08 * middle)
    step = (_WIDTH - 2 * _MARGIN) / (len(values) - 1)
    scale = (_HEIGHT / 2 - _MARGIN) / half
    points = " ".join(
        f"{_MARGIN + i * step:.1f},{_HEIGHT / 2 - (value - middle) * scale:.1f}"
        for i, value in enumerate(values)
    )
    newest = changes[-1]
    first, last = (format_value(value, newest.unit) for value in (values[0], values[-1]))
    return Trend(newest.id, newest.model, points, first, last, newest.outcome if is_new else "same")
