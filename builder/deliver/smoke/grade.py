"""Grading a smoke report: comparing its values with what the hardware can reach.

docs/smoke.md states every rule. cases.py says what a value is compared with,
finding.py compares; this module adds the expectations of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from builder.bench.core import finding
from builder.bench.report import is_measured
from builder.core.datafiles import table
from builder.lock.config.site import Gpu

from .cases import cases_by_peers, cases_by_reference
from .finding import Finding, advice_for, grade_case
from .reference import References
from .suggested import plan_of
from .values import Report, devices_of

_SEVERITY = {"pass": 0, "warn": 1, "fail": 2, "error": 3}
#: The meaning of each verdict for the image and its publishing, as a sentence.
MEANINGS: Mapping[str, str] = table(__file__, "meanings.yaml")


def grade(report: Report, figures: References, gpu: Gpu, devices: int | None = None) -> Report:
    """Return a copy of a report with its ``grade``.

    The ``verdict`` is the worse of the benchmark's and the grade's.

    The verdict ``error`` (the test could not be run) does not change. If nothing failed and nothing
    was measured, the verdict is ``error``, too.

    Args:
        report: a report that :func:`builder.deliver.smoke.schema.report_problem` accepts.
        figures: the reference figures.
        gpu: the GPUs that the image is for, as its recipe has them.
        devices: the number of GPUs; None: any.
    """
    findings = [*_check_expectations(report, gpu, devices), *_findings(report, figures)]
    statuses = {finding["status"] for finding in findings} - {"skip"}
    own_verdict = worst(statuses) if statuses else "skip"
    found = map(figures.find, devices_of(report))
    known = {device.id for device in found if device is not None}
    verdicts = [str(report["verdict"]), *statuses]
    has_figures = any(map(is_measured, report["measurements"]))
    if not has_figures and "fail" not in verdicts and report["verdict"] != "none":
        verdicts.append("error")
    own = {"verdict": own_verdict, "devices": sorted(known), "findings": findings}
    return {**report, "verdict": worst(verdicts), "grade": own}


def _findings(report: Report, figures: References) -> Iterator[Finding]:
    """Yield the findings of all rules. Of peers, only those that are slow are reported."""
    unknown = (device for device in devices_of(report) if figures.find(device) is None)
    for name in sorted({str(device.get("name")) for device in unknown}):
        seen = f"no reference figures for {name!r}; its values are only compared with each other"
        yield finding("device.reference", "skip", seen)
    for case in cases_by_reference(report, figures):
        yield grade_case(case, report)
    for case in cases_by_peers(report):
        found = grade_case(case, report)
        if found["status"] in ("warn", "fail") and found["fraction"] < 1:
            yield found


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of some verdicts; ``pass`` if there are none."""
    return max(verdicts, key=lambda verdict: _SEVERITY.get(verdict, 3), default="pass")


def _check_expectations(report: Report, gpu: Gpu, expected: int | None) -> Iterator[Finding]:
    """Compare the hardware of the run with the recipe."""
    if gpu.vendor != "none" and report["verdict"] != "error":
        yield from _check_measured(report, gpu.vendor)
    devices = devices_of(report)
    if expected is not None and devices and len(devices) != expected:
        seen = f"{len(devices)} GPUs found, {expected} expected"
        yield finding("device.count", "fail", seen, advice_for("other_count"))
    found = {str(device.get("architecture")) for device in devices}
    unexpected = sorted(found.difference(gpu.architectures))
    if gpu.vendor != "none" and gpu.architectures and unexpected:
        seen = f"{', '.join(unexpected)}; the recipe is for {', '.join(gpu.architectures)}"
        yield finding("device.architecture", "warn", seen, advice_for("other_architecture"))


def _check_measured(report: Report, vendor: str) -> Iterator[Finding]:
    """Check that a GPU was measured: an image for GPUs that ran on the CPU must not pass."""
    measured = [m for m in report["measurements"] if m["status"] != "skip"]
    kinds = {str(m.get("device", "")).partition(":")[0] for m in measured}
    if "cuda" in kinds or not any(map(is_measured, measured)):
        return
    if "framework" not in plan_of(report):
        advice = advice_for("no_framework", vendor=vendor)
        yield finding("device.measured", "warn", "the GPUs were not tested", advice)
        return
    where = " (only on the CPU)" if "cpu" in kinds else ""
    advice = advice_for("not_measured", vendor=vendor)
    yield finding("device.measured", "fail", f"nothing was measured on a GPU{where}", advice)
