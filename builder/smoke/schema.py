"""The report of the smoke test: its schema, its checks, and a report for a benchmark that wrote none."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any

from builder.bench.schema import EXIT_CODES, SCHEMA_VERSION, SEVERITY
from builder.config.recipe import Recipe
from builder.model import Lock
from builder.smoke.grade import number

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def find_report(text: str) -> dict[str, Any] | None:
    """The last JSON object on a line of its own in an output that may hold more than it should, if there is one."""
    found = None
    decoder = json.JSONDecoder()
    for start in _objects(text):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "schema_version" in value:
            found = value
    return found


def _objects(text: str) -> Iterator[int]:
    start = -1
    while (start := text.find("{", start + 1)) >= 0:
        if start == 0 or text[start - 1] == "\n":
            yield start


def fault(value: Any) -> str:
    """What keeps a value from being believed as a report, in words; empty when nothing does."""
    if not isinstance(value, dict) or "schema_version" not in value:
        return "no smoke report"
    if value["schema_version"] != SCHEMA_VERSION:
        version = value["schema_version"]
        return f"a report of schema version {version!r}, not {SCHEMA_VERSION}: it was made by another version of builder"
    said = _fault(value)
    return f"a damaged report: {said}" if said else ""


def _fault(report: dict[str, Any]) -> str:
    """A hand-written part of the schema, which itself is checked in tests only."""
    if str(report.get("verdict")) not in EXIT_CODES:
        return f"verdict {report.get('verdict')!r}"
    worst = "pass"
    for kind in ("probes", "measurements"):
        items = report.get(kind)
        if not isinstance(items, list):
            return f"{kind} is no list"
        for item in items:
            if not isinstance(item, dict) or str(item.get("status")) not in SEVERITY:
                return f"an entry of {kind} without a status"
            if not all(isinstance(item.get(key), str) for key in ("id", "seen", "advice")):
                return f"an entry of {kind} without id, seen or advice"
            if item["status"] == "fail" or (item["status"] == "warn" and worst == "pass"):
                worst = item["status"]
    if not isinstance(report.get("facts"), dict):
        return "facts is no mapping"
    if not isinstance(report.get("started"), str) or not _TIME.fullmatch(report["started"]):
        return f"started {report.get('started')!r} is no time in UTC"
    duration = report.get("duration_s")
    if not isinstance(duration, int | float) or isinstance(duration, bool):
        return "duration_s is no number"
    image = report.get("image", {})
    if not isinstance(image, dict) or not isinstance(image.get("packages", {}), dict):
        return "image is no mapping"
    graded = report.get("grade")
    if graded is not None:
        findings = graded.get("findings") if isinstance(graded, dict) else None
        if not isinstance(findings, list) or not all(_is_finding(f) for f in findings):
            return "its grade is none"
    if report["verdict"] == "pass" and not any(m["status"] == "pass" for m in report["measurements"]):
        return "verdict 'pass', though nothing was measured"
    if (report["verdict"] == "pass" and worst != "pass") or (report["verdict"] == "warn" and worst == "fail"):
        return f"verdict {report['verdict']!r}, though something in it says {worst!r}"
    return ""


def _is_finding(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and str(value.get("status")) in SEVERITY
        and all(isinstance(value.get(key), str) for key in ("id", "seen", "advice"))
        and (value.get("fraction") is None or number(value, "fraction") is not None)
    )


def could_not_run(recipe: Recipe, probe: str, seen: str, advice: str) -> dict[str, Any]:
    """A report with the verdict ``error``, for a benchmark that gave none."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "error",
        "started": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
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


def packages_of(lock: Lock, platform: str) -> dict[str, str]:
    """Name and version (and build, of conda packages) of what a lock puts into an image, as reports keep it."""
    out: dict[str, str] = {}
    for package in sorted(lock.for_platform(platform), key=lambda p: p.manager):
        name = f"{package.name} (pip)" if package.name in out else package.name
        out[name] = f"{package.version} {package.build}".strip()
    return dict(sorted(out.items()))
