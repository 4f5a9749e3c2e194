"""One evaluator for all rules of the grade: a case is a value and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builder.bench.core import finding
from builder.bench.machine.variables import slowing
from builder.bench.report import format_value
from builder.core.datafiles import table

from .limits import TOO_HIGH, UNSTEADY, Limits, Status
from .values import Report, Value, state_text, variables_of

TOO_LOW_NOTE = "the reference is too low: please send this report in (CONTRIBUTING.md)"

Finding = dict[str, Any]
"""An element of a report's ``grade.findings``, as report.schema.json describes it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A value and what it is compared with."""

    value: Value
    basis: str
    """As report.schema.json names it: ``achieved``, ``peak``."""
    reference: float
    """In the unit of the value."""
    limits: Limits
    what: str
    """The reference, for people: ``published for NVIDIA A100``."""
    advice: str
    """What to do if the value is low."""
    source: str = ""
    """The title of the publication that the reference is from."""
    peak: float | None = None
    """Nothing of this kind is faster; None: not known."""
    may_fail: bool = True
    """A low value can only be the device's fault."""
    unfair: str = ""
    """Why a low value says nothing about the device; empty: it does."""
    is_best: bool = False
    """The reference is the best known result, so that a better value is worth sending in."""


def advice_for(case: str, **values: str) -> str:
    """Return a text of advice.yaml."""
    text: str = table(__file__, "advice.yaml")[case]
    return text.format(**values)


def evaluate(value: Value, reference: float, limits: Limits) -> tuple[Status, float]:
    """Compare a value with a reference in the same unit.

    A value is below a limit only if noise cannot explain it: if its upper bound is below, too.

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
    status, seen, advice = _graded(case, report, status)
    reference = format_value(case.reference, value.unit)
    shown = f"{format_value(value.median, value.unit)}: {fraction:.0%} of {reference} ({case.what})"
    out = finding(value.id, status, f"{shown}{seen}", advice)
    out |= {"basis": case.basis, "unit": value.unit, "value": value.median}
    out |= {"reference": case.reference, "fraction": round(fraction, 4)}
    optional = {"device": value.where, "source": case.source}
    return out | {key: text for key, text in optional.items() if text}


def _graded(case: Case, report: Report, status: Status) -> tuple[Status, str, str]:
    """Return the status of a case, what follows its figures in the text, and the advice."""
    value = case.value
    if value.is_unbound:
        why = "the process could not be bound to the GPU's NUMA node"
        return "skip", f"; not graded: {why}", ""
    if status == "pass":
        return _passed(case)
    if case.unfair:
        return "skip", f"; not graded: {case.unfair}", ""
    variables = ", ".join(slowing(variables_of(report), value.id))
    if variables:
        return "warn", f"; {variables} is set", f"unset {variables} and measure again"
    state = state_text(value.item, value.facts)
    return status if case.may_fail else "warn", f"; {state}" if state else "", case.advice


def _passed(case: Case) -> tuple[Status, str, str]:
    """Return the same for a value that is not low: it may be too high, or unsteady."""
    value = case.value
    if case.peak and value.lower_bound > TOO_HIGH * case.peak:
        return "warn", "", advice_for("impossible")
    if value.spread > UNSTEADY:
        return "warn", f"; varies by {value.spread:.0%}", advice_for("unsteady")
    is_higher = value.lower_bound > TOO_HIGH * case.reference
    return "pass", f"; {TOO_LOW_NOTE}" if is_higher and case.is_best else "", ""
