"""Which tags an image gets, and how they move."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from builder.core.errors import TagExistsError, UsageError
from builder.core.model import OCI_MANIFEST, Descriptor, Image
from builder.deliver.publishing.tags import TagDigests, Tagging, TagPlan
from builder.formats.registry.manifests import TagMove
from builder.lock.config.recipe import Recipe, Registry
from tests.support.images import make_test_image

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


def test_only() -> None:
    """Some of the tags move."""
    plan = TagPlan.of(recipe(), today=DAY)
    assert plan.only(["latest"], "t").tags == ("latest",)
    assert plan.only(["latest", "26.11"], "t").tags == plan.only([], "t").tags == ("26.11", "latest")
    with pytest.raises(UsageError, match="--only edge: t has no such tag") as caught:
        plan.only(["edge"], "t")
    assert caught.value.hint == "its tags are 26.11, latest; --tag replaces the dated ones"
    with pytest.raises(UsageError, match="--tag candidate: a dated tag does not move") as caught:
        TagPlan.of(recipe(), "candidate", DAY)
    assert "--only candidate" in caught.value.hint


class Tags:
    """A place with tags, which other clients may change between any two requests."""

    name = "host/repo"

    def __init__(self, **tags: str) -> None:
        self.tags = tags
        self.after_move: Callable[[str], None] = lambda tag: None

    def resolve(self, tag: str) -> Descriptor | None:
        return Descriptor(OCI_MANIFEST, self.tags[tag], 1) if tag in self.tags else None

    def manifest(self, descriptor: Descriptor) -> bytes:
        raise AssertionError("a move reads no manifest")

    def move_tag(self, tag: str, image: Image, expected: str | None) -> TagMove:
        before = self.tags.get(tag)
        if before == image.digest or before != expected:
            return TagMove(before, before, written=False)
        self.tags[tag] = image.digest
        self.after_move(tag)
        return TagMove(before, self.tags.get(tag), written=True)


IMAGE = make_test_image([])
OLD, OTHER = "sha256:" + "0" * 64, "sha256:" + "1" * 64


def move_all(place: Tags, named: TagDigests) -> list[str]:
    return Tagging(cast(Any, place), TagPlan(tuple(named), frozenset()), IMAGE).move_all(named)


def test_moves_in_order() -> None:
    """Tags move in their order; those that name the image already are not written."""
    place, order = Tags(latest=OLD, month=IMAGE.digest), []
    place.after_move = order.append
    named = {"month": IMAGE.digest, "new": None, "latest": OLD}
    moved = move_all(place, named)
    assert moved == order == ["new", "latest"] and set(place.tags.values()) == {IMAGE.digest}


def test_moved_before() -> None:
    """A tag that another publish set since the check stays, and the later tags do not move."""
    place = Tags(month=OTHER, latest=OLD)
    with pytest.raises(TagExistsError) as e:
        move_all(place, {"month": None, "latest": OLD})
    assert place.tags == {"month": OTHER, "latest": OLD} and e.value.exit_code == 12
    assert f"host/repo:month at the same time: it names {OTHER[:19]} now" in e.value.message
    assert "this publish moved no tag" in e.value.message


@pytest.mark.parametrize("when", ["month", "latest"])
def test_overwritten(when: str) -> None:
    """A slower publish that overwrites a tag is noticed, directly or at the end."""
    place = Tags(latest=OLD)

    def overwrite(tag: str) -> None:
        if tag == when:
            place.tags["month"] = OTHER

    place.after_move = overwrite
    with pytest.raises(TagExistsError, match="another client changed host/repo:month") as e:
        move_all(place, {"month": None, "latest": OLD})
    assert ("moved latest" in e.value.message) is (when == "latest")
    assert place.tags["month"] == OTHER, "the winner stays"


def test_removed() -> None:
    place = Tags()
    place.after_move = lambda tag: place.tags.clear()
    with pytest.raises(TagExistsError, match="it does not exist now"):
        move_all(place, {"latest": None})
