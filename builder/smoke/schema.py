"""The format of smoke reports: finds one in an output, checks it, and makes one if the benchmark wrote none.

The JSON schema of the format is report.schema.json. The checks here are the part of it that builder relies
on; the rest is checked in tests only.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builder.bench.schema import EXIT_CODES, SCHEMA_VERSION, SEVERITY
from builder.config.recipe import Recipe
from builder.smoke.values import Report, number

_SCHEMA = Path(__file__).with_name("report.schema.json")
#: Texts of an output that are read as a report. An image can print millions that begin like one.
MAX_OBJECTS = 1000
#: The notation of times in reports.
TIME = "%Y-%m-%dT%H:%M:%SZ"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def report_schema() -> dict[str, Any]:
    """Returns the JSON schema of reports."""
    schema: dict[str, Any] = json.loads(_SCHEMA.read_text())
    return schema


def find_report(text: str) -> dict[str, Any] | None:
    """The last JSON object with a ``schema_version`` that starts a line of an output; None if there is none.

    The output may contain other text before and after it. Of what starts like an object, only the last
    :data:`MAX_OBJECTS` are read.
    """
    decoder = json.JSONDecoder()
    for start in itertools.islice(_line_starts_with_brace(text), MAX_OBJECTS):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "schema_version" in value:
            return value
    return None


def _line_starts_with_brace(text: str) -> Iterator[int]:
    """The position of every ``{`` that is the first character of a line, the last one first."""
    start = text.rfind("\n{")
    while start >= 0:
        yield start + 1
        start = text.rfind("\n{", 0, start)
    if text.startswith("{"):
        yield 0


def benchmark_problem(value: Any) -> str:
    """Why a value cannot be used as what the benchmark reported; empty if it can.

    Only builder itself says that an image is not tested (the verdict ``none``).
    """
    problem = report_problem(value)
    if not problem and value["verdict"] not in EXIT_CODES:
        return f"damaged report: unknown verdict {value['verdict']!r}"
    return problem


def report_problem(value: Any) -> str:
    """Why a value cannot be used as a report; empty if it can."""
    if not isinstance(value, dict) or "schema_version" not in value:
        return "not a smoke report"
    version = value["schema_version"]
    if version != SCHEMA_VERSION:
        return (
            f"a report of schema version {version!r}, not {SCHEMA_VERSION}: "
            "it was made by another version of builder"
        )
    for check in _CHECKS:
        problem = check(value)
        if problem:
            return f"damaged report: {problem}"
    return ""


def _check_verdict(report: Report) -> str:
    verdict = report.get("verdict")
    return "" if str(verdict) in (*EXIT_CODES, "none") else f"unknown verdict {verdict!r}"


def _check_entries(report: Report) -> str:
    for kind in ("probes", "measurements"):
        entries = report.get(kind)
        if not isinstance(entries, list):
            return f"{kind} is not a list"
        for entry in entries:
            if not _has_status(entry):
                return f"an entry of {kind} has no valid status"
            if not _has_texts(entry):
                return f"an entry of {kind} lacks id, seen or advice"
    return ""


def _check_facts(report: Report) -> str:
    return "" if isinstance(report.get("facts"), dict) else "facts is not a mapping"


def _check_time(report: Report) -> str:
    started, duration = report.get("started"), report.get("duration_s")
    if not isinstance(started, str) or not _TIME.fullmatch(started):
        return f"started {started!r} is not a time in UTC"
    if not isinstance(duration, int | float) or isinstance(duration, bool):
        return "duration_s is not a number"
    return ""


def _check_image(report: Report) -> str:
    image = report.get("image", {})
    if not isinstance(image, dict):
        return "image is not a mapping"
    return "" if isinstance(image.get("packages", {}), dict) else "image.packages is not a mapping"


def _check_grade(report: Report) -> str:
    grade = report.get("grade")
    if grade is None:
        return ""
    findings = grade.get("findings") if isinstance(grade, dict) else None
    if not isinstance(findings, list) or not all(_is_finding(finding) for finding in findings):
        return "malformed grade"
    return ""


def _check_consistency(report: Report) -> str:
    """The verdict must not be better than any status in the report. Relies on the earlier checks."""
    verdict = report["verdict"]
    statuses = {entry["status"] for entry in report["probes"] + report["measurements"]}
    if verdict == "pass" and not any(m["status"] == "pass" for m in report["measurements"]):
        return "verdict 'pass', but nothing was measured"
    if verdict in ("pass", "warn") and "fail" in statuses:
        return f"verdict {verdict!r}, but it contains status 'fail'"
    if verdict == "pass" and "warn" in statuses:
        return "verdict 'pass', but it contains status 'warn'"
    return ""


#: All checks, in this order: a later one may rely on the earlier ones.
_CHECKS: tuple[Callable[[Report], str], ...] = (
    _check_verdict,
    _check_entries,
    _check_facts,
    _check_time,
    _check_image,
    _check_grade,
    _check_consistency,
)


def _has_status(entry: Any) -> bool:
    return isinstance(entry, dict) and str(entry.get("status")) in SEVERITY


def _has_texts(entry: dict[str, Any]) -> bool:
    return all(isinstance(entry.get(key), str) for key in ("id", "seen", "advice"))


def _is_finding(entry: Any) -> bool:
    if not _has_status(entry) or not _has_texts(entry):
        return False
    return entry.get("fraction") is None or number(entry, "fraction") is not None


def could_not_run(recipe: Recipe, probe: str, seen: str, advice: str) -> dict[str, Any]:
    """A report with the verdict ``error``, for a benchmark that wrote no usable report.

    Args:
        recipe: the recipe of the image.
        probe: the id of its only probe: ``runner``, ``report``, ``watchdog`` or ``job``.
        seen: what happened.
        advice: what to do.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "error",
        "started": datetime.datetime.now(datetime.UTC).strftime(TIME),
        "duration_s": 0.0,
        "expect": {
            "gpu": recipe.gpu.vendor,
            "architectures": list(recipe.gpu.architectures),
            "devices": None,
        },
        "facts": {},
        "probes": [{"id": probe, "status": "fail", "seen": seen, "advice": advice}],
        "measurements": [],
    }
