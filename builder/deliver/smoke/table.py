"""A smoke report, a table of changes and an A/B run as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.core.text import Table, listed

from .ab import Ab
from .abrun import Side
from .changes import OUTCOME_ORDER, ReportComparison
from .finding import TOO_LOW_NOTE
from .grade import MEANINGS
from .limits import TABLE
from .run import SmokeReport
from .values import figures_of, findings_of, number, state_text, unit_of

_AB_TITLES = {"slower": "slower", "same": "not slower", "unsteady": "no verdict"}
#: The figures that are shown without ``--all``, the first ones of these that a report has.
_HEADLINES: Sequence[str] = TABLE["headlines"]
_HEADLINE_COUNT = 6
AB_ADVICE = (
    "this table decides nothing: runs at different times differ by heat, clocks and neighbours; "
    "builder smoke TARGET --ab OLD NEW runs both images in turn"
)


def render(report: SmokeReport, *, everything: bool = False) -> Table:
    """Return the verdict, the problems with what to do, and six figures.

    Args:
        report: the result of a smoke test.
        everything: show every probe, measurement and finding.
    """
    table = _table(f"smoke test: {report.verdict} in {report.duration_s:.1f} s ({report.runner})")
    probes, measurements = report.report["probes"], report.report["measurements"]
    findings = findings_of(report.report)
    fractions = _fractions(findings)
    shown = _headlines(measurements)
    for entry in (*probes, *measurements):
        if everything or _is_problem(entry) or entry["id"] in shown:
            _add_entry(table, entry, fractions.get(entry["id"], ""))
    for finding in findings:
        if everything or _is_problem(finding) or TOO_LOW_NOTE in finding["seen"]:
            _add_entry(table, finding)
    more = "" if everything else "; --all shows every probe and figure"
    table.caption = f"{MEANINGS[report.verdict][:-1]}{more}"
    return table


def _table(title: str) -> Table:
    return Table(("", "name", "result"), title=title)


def _is_problem(entry: Mapping[str, Any]) -> bool:
    return entry["status"] in ("warn", "fail", "error")


def _headlines(measurements: list[dict[str, Any]]) -> list[str]:
    known = {str(item["id"]) for item in measurements if item["status"] == "pass" and unit_of(item)}
    return [name for name in _HEADLINES if name in known][:_HEADLINE_COUNT]


def _fractions(findings: list[dict[str, Any]]) -> dict[str, str]:
    """Return ``98% of the reference`` by measurement that passed, on its first device."""
    fractions: dict[str, str] = {}
    for finding in findings:
        fraction = number(finding, "fraction")
        if fraction is not None and finding["status"] == "pass":
            fractions.setdefault(finding["id"], f"{fraction:.0%} of the reference")
    return fractions


def _add_entry(table: Table, entry: dict[str, Any], fraction: str = "") -> None:
    text = entry["seen"]
    if not text:
        text = f"{figures_of(entry)} {fraction}".rstrip()
        state = state_text(entry)
        text += f"\n{state}" if state else ""
    if entry["advice"]:
        text += f"\n-> {entry['advice']}"
    table.rows.append((entry["status"], entry["id"], text))


def render_changes(comparison: ReportComparison, name: str) -> Table:
    """Return the figures that are slower or faster than usual in earlier runs.

    Args:
        comparison: with the earlier runs.
        name: of the earlier runs, for people.
    """
    old = comparison.old[-1]
    count = len(comparison.changed) or "nothing"
    table = _table(
        f"compared with {name} ({old.started[:10]}, {old.digest[:19]}, "
        f"{len(comparison.old)} runs): {count} changed beyond what is usual"
    )
    for change in sorted(comparison.changes, key=lambda change: OUTCOME_ORDER[change.outcome]):
        if change.outcome != "same":
            table.rows.append((change.outcome, change.id, f"{change.text}; {change.model}"))
    if not comparison.changes:
        text = "no figure was measured on the same model of device, in the same way"
        table.rows.append(("", "", text))
    table.rows += [("", "", line) for line in _about(comparison)]
    return table


def _about(comparison: ReportComparison) -> Iterator[str]:
    if not comparison.changed:
        return
    if comparison.differences:
        yield f"what differs: {'; '.join(comparison.differences)}"
    if comparison.packages:
        yield f"packages: {listed([package.text for package in comparison.packages], 10)}"
    yield AB_ADVICE


def render_ab(result: Ab, sides: Mapping[str, Side]) -> Table:
    """Return each figure with both images, its change and its limit. The title is the verdict.

    Args:
        result: of all rounds.
        sides: the images, ``old`` and ``new``.
    """
    names = {side: f"{image.name} ({image.digest[:19]})" for side, image in sides.items()}
    table = Table(
        ("", "name", "old", "new", "speed", "limit"),
        title=f"{names['new']} against {names['old']}: {_AB_TITLES[result.verdict]}; {result.rounds} rounds",
        caption="\n".join(result.notes),
    )
    for figure in result.figures:
        limit = "" if figure.outcome == "shown" else f"{100 * figure.limit:.1f} %"
        name = f"{figure.id} ({figure.device})" if figure.device else figure.id
        change = f"{100 * (figure.ratio - 1):+.1f} %"
        table.rows.append((figure.outcome, name, *figure.values, change, limit))
    return table
