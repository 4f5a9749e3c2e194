"""The report: its verdict, the table for people, and where it goes."""

from __future__ import annotations

import json
import os
import sys

from .core import Item, median_key
from .ranks.child import complain
from .schema import EXIT_CODES


def verdict(report: Item) -> str:
    """The worst of all findings. If nothing failed and nothing was measured, that is an error."""
    statuses = {item["status"] for item in report["probes"] + report["measurements"]}
    if "fail" in statuses:
        return "fail"
    if not any(_is_measured(item) for item in report["measurements"]):
        return "error"
    return "warn" if "warn" in statuses else "pass"


def _is_measured(item: Item) -> bool:
    """Whether a measurement has a figure; one with a warning may have one, too."""
    return item["status"] == "pass" or bool(median_key(item))


def table(report: Item) -> str:
    """The report for people."""
    lines = []
    for item in report["probes"] + report["measurements"]:
        lines.append(f"{item['status']:<5} {item['id']:<22} {item['seen'] or figures(item)}")
        if item["advice"]:
            lines.append(f"{'':29}-> {item['advice']}")
    lines.append(f"{report['verdict'].upper()} in {report['duration_s']:.1f} s")
    return "\n".join(lines) + "\n"


def figures(item: Item) -> str:
    """A measurement as text, ``123.4 tflop/s +- 1.2 (40 times, size 8192)``; empty if it has no figures."""
    key = median_key(item)
    if not key:
        return ""
    unit = key[len("median_") :]
    median, deviation = item[key], item["mad_" + unit]
    shown = unit.replace("_per_", "/")
    if unit == "gflop_per_s" and median >= 1000:
        median, deviation, shown = median / 1000, deviation / 1000, "tflop/s"
    times = "once" if item["repeats"] == 1 else f"{item['repeats']} times"
    return f"{median:.4g} {shown} +- {deviation:.2g} ({times}{_size(item)})"


def _size(item: Item) -> str:
    size = item.get("size")
    if size is None:
        return ""
    return f", size {size}" if size < 1 << 20 else f", {size / 2**20:.4g} MiB"


def deliver(report: Item, destination: str | None) -> int:
    """Writes the table and the report.

    Args:
        report: the whole report.
        destination: a file, ``-`` for standard output (the table then goes to standard error), or None.

    Returns:
        The exit code for the report's verdict; the one for ``error`` if the report cannot be written.
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
    is_device = os.path.exists(path) and not os.path.isfile(path)
    target = path if is_device else f"{path}.part"
    with open(target, "w", encoding="ascii") as f:
        f.write(text)
    if not is_device:
        os.replace(target, path)
