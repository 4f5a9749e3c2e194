"""One evaluator for all rules of the grade: a case is a value and what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.smoke.limits import TOO_HIGH, UNSTEADY, Limits, Status
from builder.smoke.state import slowing_variables, state_text
from builder.smoke.values import Report, Value, format_value, rank_item

_OPTIONAL = ("device", "basis", "value", "unit", "reference", "fraction", "source")
_UNSTEADY_ADVICE = (
    "the clock is throttled at times (heat, power), or another process uses the GPU or its links"
)
_IMPOSSIBLE_ADVICE = "no such device is that fast: check the measurement and the device's name"
TOO_LOW_NOTE = "the reference is too low: please send this report in (CONTRIBUTING.md)"


@dataclass(frozen=True, slots=True)
class Finding:
    """An element of a report's ``grade.findings``."""

    id: str
    """The measurement, or the name of a check such as ``device.count``."""
    status: Status
    seen: str
    """What was found, as a sentence for people."""
    advice: str = ""
    """What to do; empty if the status is ``pass``."""
    device: str = ""
    basis: str = ""
    """What the value was compared with, as report.schema.json names it: ``achieved``, ``peak``."""
    value: float | None = None
    unit: str = ""
    reference: float | None = None
    """What the value was compared with, in ``unit``."""
    fraction: float | None = None
    """The value as a fraction of ``reference``."""
    source: str = ""
    """The title of the publication that the reference is from."""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as reports store it, without empty fields."""
        out = {"id": self.id, "status": self.status, "seen": self.seen, "advice": self.advice}
        optional = {key: getattr(self, key) for key in _OPTIONAL}
        return out | {key: value for key, value in optional.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Case:
    """A value and what it is compared with."""

    value: Value
    measurement: Mapping[str, Any]
    basis: str
    reference: float
    """In the unit of the value."""
    limits: Limits
    what: str
    """The reference, for people: ``published for NVIDIA A100``."""
    advice: str
    """What to do if the value is low."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """About the GPU; empty for a CPU."""
    source: str = ""
    peak: float | None = None
    """Nothing of this kind is faster; None: not known."""
    may_fail: bool = True
    """A low value can only be the device's fault."""
    shown_only: str = ""
    """Why the value is not graded; empty: it is."""
    unfair: str = ""
    """Why a low value says nothing about the device; empty: it does."""
    is_best: bool = False
    """The reference is the best known result, so that a better value is worth sending in."""


def evaluate(value: Value, reference: float, limits: Limits) -> tuple[Status, float]:
    """Compare a value with a reference in the same unit.

    A value counts as below a limit only if noise cannot explain it: if its upper bound is below the limit.

    Returns:
        The status, and the speed as a fraction of the reference.
    """
    warn_below, fail_below = limits
    fraction = value.median / reference if value.higher_is_better else reference / value.median
    best_case = fraction * (value.upper_bound / value.median) if value.median > 0 else fraction
    if best_case < fail_below:
        return "fail", fraction
    return ("warn" if best_case < warn_below else "pass"), fraction


def grade_case(case: Case, report: Report) -> Finding:
    """Return the finding about a case; ``skip`` if it is shown and not graded."""
    value = case.value
    status, fraction = evaluate(value, case.reference, case.limits)
    reference = format_value(case.reference, value.unit)
    seen = f"{format_value(value.median, value.unit)}: {fraction:.0%} of {reference} ({case.what})"
    if case.shown_only:
        return _finding(case, "skip", f"{seen}; not graded: {case.shown_only}", "", fraction)
    if status == "pass":
        return _passed(case, seen, fraction)
    if case.unfair:
        return _finding(case, "skip", f"{seen}; not graded: {case.unfair}", "", fraction)
    variables = ", ".join(slowing_variables(report, value.id))
    if variables:
        advice = f"unset {variables} and measure again"
        return _finding(case, "warn", f"{seen}; {variables} is set", advice, fraction)
    state = state_text(rank_item(value, case.measurement), case.facts) if value.on_gpu else ""
    seen += f"; {state}" if state else ""
    return _finding(case, status if case.may_fail else "warn", seen, case.advice, fraction)


def _passed(case: Case, seen: str, fraction: float) -> Finding:
    """Return the finding about a value that is not low: it may be too high, or unsteady."""
    value = case.value
    if case.peak and value.lower_bound > TOO_HIGH * case.peak:
        return _finding(case, "warn", seen, _IMPOSSIBLE_ADVICE, fraction)
    if value.on_gpu and value.spread > UNSTEADY:
        return _finding(case, "warn", f"{seen}; varies by {value.spread:.0%}", _UNSTEADY_ADVICE, fraction)
    if value.lower_bound > TOO_HIGH * case.reference:
        seen += f"; {TOO_LOW_NOTE}" if case.is_best else ""
    return _finding(case, "pass", seen, "", fraction)


def _finding(case: Case, status: Status, seen: str, advice: str, fraction: float) -> Finding:
    value = case.value
    return Finding(
        id=value.id,
        status=status,
        seen=seen,
        advice=advice,
        device=value.where,
        basis=case.basis,
        value=value.median,
        unit=value.unit,
        reference=case.reference,
        fraction=round(fraction, 4),
        source=case.source,
    )
