"""The format of smoke reports: finds one in an output, checks it, and makes one where none is.

report.schema.json describes the format. The models here are the part of it that builder relies on;
the rest is checked in tests only.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from builder.bench.core import finding
from builder.bench.report import empty_report
from builder.bench.schema import EXIT_CODES, SCHEMA_VERSION
from builder.core.datafiles import read_beside
from builder.lock.config.recipe import Recipe

from .values import Report

#: The notation of times in reports.
TIME = "%Y-%m-%dT%H:%M:%SZ"
_Time = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class _SchemaModel(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _ReportEntry(_SchemaModel):
    """A probe, a measurement or a finding."""

    id: str
    status: Literal["pass", "warn", "fail", "skip"]
    seen: str
    advice: str
    fraction: Annotated[float, Field(lt=1e18)] | None = None


class _Grade(_SchemaModel):
    findings: list[_ReportEntry]


class _Image(_SchemaModel):
    packages: dict[str, Any] = {}


class _Report(_SchemaModel):
    verdict: Literal["pass", "warn", "fail", "error", "none"]
    probes: list[_ReportEntry]
    measurements: list[_ReportEntry]
    facts: dict[str, Any]
    started: _Time
    duration_s: float
    image: _Image | None = None
    grade: _Grade | None = None


def report_schema() -> dict[str, Any]:
    """Return the JSON schema of reports."""
    return dict(json.loads(read_beside(__file__, "report.schema.json")))


def find_report(text: str) -> dict[str, Any] | None:
    """Return the last report in an output, as the benchmark prints it: its lines are indented.

    The output may contain other text before and after it.
    """
    # Lines inside the report are indented, so a "{" alone on its line begins it.
    start = f"\n{text}".rfind("\n{\n")
    try:
        value, _ = json.JSONDecoder().raw_decode(text, max(start, 0))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "schema_version" in value else None


def benchmark_problem(value: Any) -> str:
    """Return the reason why a value cannot be the benchmark's report; empty if it can.

    Only builder itself says that an image is not tested (the verdict ``none``).
    """
    problem = report_problem(value)
    if not problem and value["verdict"] not in EXIT_CODES:
        return f"damaged report: unknown verdict {value['verdict']!r}"
    return problem


def report_problem(value: Any) -> str:
    """Return the reason why a value cannot be used as a report; empty if it can."""
    if not isinstance(value, dict) or "schema_version" not in value:
        return "not a smoke report"
    version = value["schema_version"]
    if version != SCHEMA_VERSION:
        return (
            f"a report of schema version {version!r}, not {SCHEMA_VERSION}: "
            "it was made by another version of builder"
        )
    try:
        _Report.model_validate(value)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"damaged report: {where}: {first['msg'].lower()}"
    problem = _check_consistency(value)
    return f"damaged report: {problem}" if problem else ""


def _check_consistency(report: Report) -> str:
    """Return the reason why the verdict contradicts the report's statuses; empty if it does not."""
    verdict = report["verdict"]
    statuses = {entry["status"] for entry in report["probes"] + report["measurements"]}
    if verdict == "pass" and not any(m["status"] == "pass" for m in report["measurements"]):
        return "verdict 'pass', but nothing was measured"
    if verdict in ("pass", "warn") and "fail" in statuses:
        return f"verdict {verdict!r}, but it contains status 'fail'"
    if verdict == "pass" and "warn" in statuses:
        return "verdict 'pass', but it contains status 'warn'"
    return ""


def could_not_run(recipe: Recipe, probe: str, seen: str, advice: str) -> dict[str, Any]:
    """Return a report with the verdict ``error``, for a benchmark that wrote no usable report.

    Args:
        recipe: the recipe of the image.
        probe: the id of its only probe: ``runner``, ``report``, ``watchdog`` or ``job``.
        seen: what happened.
        advice: what to do.
    """
    report = empty_report(recipe.gpu.vendor, recipe.gpu.architectures, None)
    return {**report, "probes": [finding(probe, "fail", seen, advice)]}
