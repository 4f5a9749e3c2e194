"""The report: its verdict, the table for people, and where it goes."""

from __future__ import annotations

import json
import sys

from .core import Item
from .ranks.messages import complain
from .schema import EXIT_CODES


def verdict(report: Item) -> str:
    """The worst of all findings. If nothing was measured, that is an error, not a pass."""
    statuses = {item["status"] for item in report["probes"] + report["measurements"]}
    for status in ("fail", "warn"):
        if status in statuses:
            return status
    measured = any(item["status"] == "pass" for item in report["measurements"])
    return "pass" if measured else "error"


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
    """A measurement as text, ``123.4 gflop/s +- 1.2 (40 times, size 2048)``; empty if it has no figures."""
    for key, median in item.items():
        if key.startswith("median_"):
            unit = key[len("median_") :]
            size = f", size {item['size']}" if "size" in item else ""
            deviation = item["mad_" + unit]
            shown = unit.replace("_per_", "/")
            return f"{median:.4g} {shown} +- {deviation:.2g} ({item['repeats']} times{size})"
    return ""


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
            with open(destination, "w", encoding="ascii") as f:
                f.write(text)
        sys.stdout.flush()
    except OSError as e:
        complain(f"cannot write the report to {destination or 'standard output'}: {e.strerror}")
        return EXIT_CODES["error"]
    return EXIT_CODES[report["verdict"]]
