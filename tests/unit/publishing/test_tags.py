"""Which tags an image gets, and which may move."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from builder.config.recipe import Recipe, Registry
from builder.errors import TagExistsError
from builder.model import OCI_MANIFEST, Descriptor
from builder.publishing.tags import TagPlan, check_tags

DAY = datetime.date(2026, 11, 21)


def recipe(**registry: object) -> Recipe:
    return Recipe(
        name="t",
        base="oci:b",
        environment="e.yml",
        registry=Registry(**registry),
        source=Path("recipes/t.yaml"),
    )


def test_default_tags() -> None:
    """The default tags are the month's, which is fixed, and latest."""
    plan = TagPlan.of(recipe(), today=DAY)
    assert plan.tags == ("26.11", "latest"), (
        "the dated tag goes first: latest must not move where the month's cannot"
    )
    assert plan.fixed == {"26.11"}


def test_given_month() -> None:
    """A given month replaces the dated tags."""
    assert TagPlan.of(recipe(), "26.10", DAY).tags == ("26.10", "latest")
    plan = TagPlan.of(recipe(tags=("edge",)), "26.10", DAY)
    assert plan.tags == ("26.10", "edge") and plan.fixed == {"26.10"}


class FakePlace:
    name = "host/repo"

    def __init__(self, **tags: str) -> None:
        self.tags = tags

    def resolve(self, tag: str) -> Descriptor | None:
        return Descriptor(OCI_MANIFEST, self.tags[tag], 1) if tag in self.tags else None


@pytest.mark.parametrize(
    ("there", "force", "refused"),
    [("sha256:a", False, False), ("sha256:b", False, True), ("sha256:b", True, False)],
)
def test_force(there: str, force: bool, refused: bool) -> None:
    """A fixed tag moves to another digest only with force."""
    place = FakePlace(**{"26.11": there, "latest": "sha256:old"})
    plan = TagPlan.of(recipe(), today=DAY)
    if refused:
        with pytest.raises(TagExistsError, match=r"host/repo:26\.11 exists"):
            check_tags(place, plan, "sha256:a", force=force)  # type: ignore[arg-type]
    else:
        check_tags(place, plan, "sha256:a", force=force)  # type: ignore[arg-type]
