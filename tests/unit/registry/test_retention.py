"""Which tags and manifests a retention rule deletes."""

from __future__ import annotations

import datetime

import pytest

from builder.errors import UsageError
from builder.registry.retention import Keep, plan_retention

TODAY = datetime.date(2026, 11, 23)
A, B, C, X, Y = (f"sha256:{letter * 64}" for letter in "abcde")


@pytest.mark.parametrize(
    ("text", "months", "tags"),
    [
        ("12 months,latest", 12, {"latest"}),
        ("12months", 12, set()),
        ("25.03, 1-month ,stable,", 1, {"25.03", "stable"}),
    ],
)
def test_rule(text: str, months: int, tags: set[str]) -> None:
    assert Keep.parse(text) == Keep(months, frozenset(tags))


@pytest.mark.parametrize(
    "text", ["", "latest", "0 months", "12 months, 3 months", "a b", "12 months,-x", "12"]
)
def test_wrong_rule(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Keep.parse(text)
    assert "--keep '12 months'" in caught.value.hint


def test_wrong_pattern() -> None:
    for pattern in ("latest", "%y", "v%m"):
        with pytest.raises(UsageError, match="has no year and month"):
            Keep.parse("1 month", pattern)


def test_months() -> None:
    """The current month counts; a tag of the future stays."""
    keep = Keep(12)
    ages = {tag: keep.expires(tag, TODAY) for tag in ("26.11", "25.12", "25.11", "24.12", "27.01")}
    assert ages == {"26.11": False, "25.12": False, "25.11": True, "24.12": True, "27.01": False}
    assert not Keep(1).expires("26.11", TODAY) and Keep(1).expires("26.10", TODAY)


@pytest.mark.parametrize(
    "tag", ["latest", "25.1", "2025.01", "25.13", "25.01.1", "v25.01", "25.01-arm", "1.25"]
)
def test_other_tags_stay(tag: str) -> None:
    """Only what the pattern makes is dated."""
    assert not Keep(1).expires(tag, TODAY)


def test_other_pattern() -> None:
    keep = Keep.parse("2 months", "torch-%Y-%m-%d")
    assert keep.expires("torch-2026-09-30", TODAY) and not keep.expires("torch-2026-10-01", TODAY)
    assert not keep.expires("25.01", TODAY)


def test_manifest_of_a_tag_that_stays() -> None:
    """A manifest goes with its last tag."""
    named = {"25.01": A, "25.02": A, "25.03": B, "25.04": B, "latest": B, "24.01": C}
    plan = plan_retention(named, {}, Keep(12, frozenset({"24.01"})), TODAY)
    assert dict(plan.tags) == {"25.01": A, "25.02": A} and plan.manifests == (A,)
    assert dict(plan.shared) == {"25.03": "latest", "25.04": "latest"}


def test_indexes() -> None:
    """An index is deleted before what only it contains; images of an index that stays are kept."""
    named = {"26.11": X, "25.01": Y, "25.02": A, "25.03": C}
    plan = plan_retention(named, {X: (A, B), Y: (C, B)}, Keep(12), TODAY)
    assert dict(plan.tags) == {"25.01": Y, "25.03": C} and plan.manifests == (Y, C)
    assert dict(plan.shared) == {"25.02": "26.11"}


def test_nothing() -> None:
    assert plan_retention({}, {}, Keep(1), TODAY).manifests == ()
    assert plan_retention({"latest": A, "26.11": B}, {}, Keep(1), TODAY).manifests == ()
