"""The schema of reports knows the state of GPUs, and rejects values of other types there."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from builder.smoke.schema import report_schema
from tests.support.reports import a100, rich

CHECK = jsonschema.Draft202012Validator(report_schema())


def test_state() -> None:
    """Reports with and without the state of GPUs are valid."""
    assert [error.message for error in CHECK.iter_errors(rich())] == []
    assert CHECK.is_valid(a100())


@pytest.mark.parametrize(
    ("field", "value"),
    [("clock_mhz", "fast"), ("throttled", "heat"), ("sustained_gflop_per_s", "1"), ("backend", 1)],
)
def test_wrong_state(field: str, value: Any) -> None:
    """A wrong type in the state of a measurement, or of one of its ranks."""
    made = rich()
    made["measurements"][0][field] = value
    assert not CHECK.is_valid(made)
    if field != "backend":
        made = rich()
        made["measurements"][0]["ranks"][0][field] = value
        assert not CHECK.is_valid(made)
