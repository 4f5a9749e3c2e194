"""The report: its verdict, the table for people, and where it goes."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any, Mapping, Sequence

from .core import Item, median_key
from .ranks.child import complain
from .schema import EXIT_CODES, SCHEMA_VERSION

#: By unit: how it is shown, and the unit that is a thousand times as large.
_UNITS = {"gflop_per_s": ("GFLOP/s", "TFLOP/s"), "gb_per_s": ("GB/s", "TB/s")}


def empty_report(gpu: str, architectures: Sequence[str], devices: int | None) -> Item:
    """Return the report of a run without results, on the GPUs that were expected."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "error",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "duration_s": 0.0,
        "expect": {"gpu": gpu, "architectures": list(architectures), "devices": devices},
        "launch": {"ranks": 1, "nodes": 1, "by": "single"},
        "facts": {},
        "probes": [],
        "measurements": [],
    }


def verdict(report: Item) -> str:
    """Return the worst of all findings; ``error`` if nothing failed and nothing was measured."""
    statuses = {item["status"] for item in report["probes"] + report["measurements"]}
    if "fail" in statuses:
        return "fail"
    if not any(is_measured(item) for item in report["measurements"]):
        return "error"
    return "warn" if "warn" in statuses else "pass"


def is_measured(item: Item) -> bool:
    """Return whether a measurement has a figure; one with a warning may have one, too."""
    return item["status"] == "pass" or bool(median_key(item))


def table(report: Item) -> str:
    """Return the report for people."""
    lines = []
    for item in report["probes"] + report["measurements"]:
        lines.append(f"{item['status']:<5} {item['id']:<22} {item['seen'] or figures(item)}")
        if item["advice"]:
            lines.append(f"{'':29}-> {item['advice']}")
    lines.append(f"{report['verdict'].upper()} in {report['duration_s']:.1f} s")
    return "\n".join(lines) + "\n"


def figures(item: Mapping[str, Any]) -> str:
    """Return a measurement as ``123.4 TFLOP/s +- 1.2 (40 times, size 8192)``, or nothing."""
    key = median_key(item)
    if not key:
        return ""
    unit = key[len("median_") :]
    factor, shown = display_unit(item[key], unit)
    notes = []
    if item.get("repeats"):
        notes.append("once" if item["repeats"] == 1 else f"{item['repeats']:.0f} times")
    size = item.get("size")
    if size:
        notes.append(f"size {size:.0f}" if size < 1 << 20 else f"{size / 2**20:.4g} MiB")
    words = [f"{item[key] / factor:.4g} {shown}"]
    spread = item.get("mad_" + unit)
    if spread is not None:
        words.append(f"+- {spread / factor:.2g}")
    if notes:
        words.append(f"({', '.join(notes)})")
    return " ".join(words)


def format_value(value: float, unit: str) -> str:
    """Return a value with three digits and a readable unit: ``247 TFLOP/s``, ``12.5 ms``."""
    factor, shown = display_unit(value, unit)
    value /= factor
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(decimals, 6)}f} {shown}"


def display_unit(value: float, unit: str) -> tuple[float, str]:
    """Return the divisor and the readable unit for values of this size.

    For example ``(1000.0, "TFLOP/s")`` for 247000 ``gflop_per_s``.
    """
    if unit not in _UNITS:
        return 1.0, unit.replace("_per_", "/")
    small, large = _UNITS[unit]
    return (1e3, large) if value >= 1e3 else (1.0, small)


def deliver(report: Item, destination: str | None) -> int:
    """Write the table and the report.

    Args:
        report: the whole report.
        destination: a file, ``-`` for standard output (the table then goes to standard error), or
            None.

    Returns:
        The exit code for the report's verdict; the one for ``error`` if the report cannot be
        written.
    """
    text = json.dumps(report, indent=1, sort_keys=True) + "\n"
    people = table(report).encode("ascii", "backslashreplace").decode("ascii")
    try:
        stream = sys.stderr if destination == "-" else sys.stdout
        stream.write(people)
        if destination == "-":
            sys.stdout.write(text)
        elif destination:
            _write(destination, text)
        sys.stdout.flush()
    except OSError as e:
        complain(f"cannot write the report to {destination or 'standard output'}: {e.strerror}")
        return EXIT_CODES["error"]
    return EXIT_CODES[report["verdict"]]


def _write(path: str, text: str) -> None:
    """Write a file at once: a reader finds the whole report or none."""
    with open(f"{path}.part", "w", encoding="ascii") as f:
        f.write(text)
    os.replace(f"{path}.part", path)
