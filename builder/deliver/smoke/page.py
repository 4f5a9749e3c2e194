"""The history of images and smoke tests as one HTML page: no network, no script, light and dark.

The template escapes all text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from jinja2 import Environment, StrictUndefined, Template

from builder.bench.report import format_value
from builder.core.datafiles import read_beside
from builder.core.text import human_bytes
from builder.deliver.history import History, told_apart

from .changes import OUTCOME_ORDER, Change, ReportComparison, compare
from .reports import StoredReport, completed_runs
from .values import Report, devices_of, figures_of, findings_of, mapping, state_text

#: The number of images that the page shows, the newest ones.
IMAGES = 12
_STATUS_ORDER = {"fail": 0, "warn": 1, "pass": 2, "skip": 3}


@dataclass(frozen=True, slots=True)
class ImageRuns:
    """All runs of one image, and its comparison with the image before."""

    digest: str
    label: str
    """The dated tag, otherwise the day of the first run; with the digest if several have it."""
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
    """A figure over the images."""

    change: Change
    """The newest one; ``same`` if the newest image was not measured."""
    figures: tuple[tuple[str, float, int], ...]
    """The label of each image, its median, and of how many runs; the newest one last."""


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
    targets: Sequence[TargetView],
    untested: Mapping[str, Sequence[str]],
    *,
    made: str,
    histories: Mapping[str, History],
) -> str:
    """Return the page.

    Args:
        targets: what is shown of each target.
        untested: by target without a report, a message for each file that cannot be read.
        made: the time that the page shows.
        histories: the images of the targets that have a history.
    """
    return _template().render(targets=targets, untested=untested, made=made, histories=histories)


@functools.cache
def _template() -> Template:
    """Return the compiled template. To compile it takes longer than to render a page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.globals |= {"figures": figures_of, "state_text": state_text, "bytes": human_bytes}
    environment.globals |= {"value_text": format_value, "axis_top": axis_top}
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
    labels = told_apart({digest: runs[0].tag or runs[0].started[:10] for digest, runs in images})
    return [ImageRuns(digest, labels[digest], tuple(runs)) for digest, runs in images]


def trends_of(images: Sequence[ImageRuns]) -> list[Trend]:
    """Return the trend of each figure that changed with an image, the slower ones first."""
    series: dict[tuple[str, str], list[tuple[str, str, Change]]] = {}
    for old, new in pairwise(images):
        for change in new.comparison.changes if new.comparison else ():
            labelled = (old.label, new.label, change)
            series.setdefault((change.id, change.model), []).append(labelled)
    newest = set(images[-1].comparison.changes) if images[-1].comparison else set()
    trends = [_trend(changes, newest) for changes in series.values()]
    return sorted(trends, key=lambda trend: OUTCOME_ORDER[trend.change.outcome])


def _trend(series: Sequence[tuple[str, str, Change]], newest: set[Change]) -> Trend:
    """Return the medians of the images.

    Args:
        series: the labels of the older and the newer image, and the change between them.
        newest: the changes of the newest image.
    """
    (label, _, first), last = series[0], series[-1][2]
    medians = [(label, change.new, change.new_runs) for _, label, change in series]
    figures = ((label, first.old, first.runs), *medians)
    return Trend(last if last in newest else replace(last, outcome="same"), figures)


def axis_top(values: Iterable[float]) -> float:
    """Return a round number at or above these, half of which is round, too: the end of an axis."""
    most = max(values, default=0.0) or 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10) if step * unit >= most)
