"""A copy of smoke reports to send in: figures and versions, no hosts, users, paths and dates.

shared_fields.yaml lists every field that the copy may have. A field that is not listed is not in
the copy, whatever reports contain in the future, and neither is a value of another form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from builder.core.datafiles import table
from builder.core.errors import BuilderError
from builder.core.version import __version__

from .values import Report, devices_of, mapping, mappings, number

#: Version of the format of the copy.
FORMAT = 2
#: Elements of the longest list in a copy.
MOST = 4096


class ShareError(BuilderError):
    """Reports cannot be shared: none has figures."""


def _number(value: Any) -> float | None:
    """Return a finite number with six digits, which no measurement exceeds."""
    found = number({"": value}, "")
    if found is None:
        return None
    return int(found) if found == int(found) else float(f"{found:.6g}")


def _version(value: Any) -> str | None:
    """Return the part of a version that all its builds share: ``5.14.0`` of ``5.14.0-427.site``."""
    form = r"\d+(?:\.\d+){0,2}(?:\+(?:cu\d+|rocm[\d.]+|cpu)(?!\w))?"
    match = re.match(form, str(value or "")[:100])
    return match[0] if match else None


def _text(form: str, value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(form, value, re.ASCII) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "number": _number,
    "version": _version,
    "flag": _flag,
}
#: All fields of a run: a form, the fields of a mapping, or the elements of a list.
FIELDS: Mapping[str, Any] = table(__file__, "shared_fields.yaml")


def share(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the copy of some runs that may be sent in. A GPU has one number in all of them.

    Raises:
        ShareError: no report has figures.
    """
    tested = [r for r in reports if r["verdict"] != "none" and r["measurements"]]
    if not tested:
        message = "there is nothing to share: no report has a measurement"
        raise ShareError(message, "run builder smoke TARGET")
    gpus: dict[str, int] = {}
    runs = [_listed(FIELDS, _draft(report, gpus)) for report in tested]
    return {"shared_report": FORMAT, "builder": __version__, "runs": runs}


def to_bytes(document: Mapping[str, Any]) -> bytes:
    """Return the document as JSON, in ASCII."""
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"


def _draft(report: Report, gpus: dict[str, int]) -> dict[str, Any]:
    """Return a run in the form of ``FIELDS``, with values that are not checked yet."""
    facts = mapping(report.get("facts"))
    devices = []
    for i, device in enumerate(devices_of(report)):
        gpu = gpus.setdefault(str(device.get("uuid") or f"unknown {i}"), len(gpus) + 1)
        devices.append({**device, "gpu": gpu})
    return {**facts, **report, "month": str(report["started"])[:7], "devices": devices}


def _listed(form: Any, value: Any) -> Any:
    """Return the part of a value that may be in the copy; None if that is nothing."""
    if isinstance(form, dict):
        found = {key: _listed(item, mapping(value).get(key)) for key, item in form.items()}
        return {key: item for key, item in found.items() if item is not None} or None
    if isinstance(form, list):
        found_items = [_listed(form[0], item) for item in mappings(value)[:MOST]]
        return [item for item in found_items if item is not None] or None
    return _FORMS[form](value) if form in _FORMS else _text(form, value)


def contents(document: Mapping[str, Any]) -> list[str]:
    """Return lines for people about a copy: its content, and what may identify a machine."""
    runs = document["runs"]
    devices = [device for run in runs for device in run.get("devices", ())]
    models = sorted({str(device.get("name", "an unnamed GPU")) for device in devices})
    cpus = sorted({str(run.get("cpu", {}).get("model", "an unnamed CPU")) for run in runs})
    gpus = len({device["gpu"] for device in devices})
    hardware = f"{gpus} x {' and '.join(models)}" if gpus else "no GPU"
    return [
        f"{len(runs)} run(s); {hardware}; {', '.join(cpus)}",
        "figures and versions; no hosts, users, jobs, images, paths, addresses, serial numbers and days",
        "a rare GPU or processor can still identify the machine: read the file before you send it; "
        "builder uploads nothing",
    ]
