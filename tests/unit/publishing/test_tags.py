"""The tag policy and the promotion gate, without a registry."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from builder.config.recipe import Recipe, Registry
from builder.errors import TagExistsError, UsageError
from builder.publishing.publish import SmokeRecord, TagPlan, check_tags, destination_text

DAY = datetime.date(2026, 11, 21)


def recipe(**registry: object) -> Recipe:
    return Recipe(
        name="t",
        base="oci:b",
        environment="e.yml",
        registry=Registry(**registry),
        source=Path("recipes/t.yaml"),
    )


def test_tags_are_latest_and_the_month_and_only_the_month_is_fixed() -> None:
    plan = TagPlan.of(recipe(), today=DAY)
    assert plan.tags == ("26.11", "latest"), (
        "the dated tag goes first: latest must not move where the month's cannot"
    )
    assert plan.fixed == {"26.11"}


def test_a_month_given_takes_the_place_of_the_dated_tag() -> None:
    assert TagPlan.of(recipe(), "26.10", DAY).tags == ("26.10", "latest")
    plan = TagPlan.of(recipe(tags=("edge",)), "26.10", DAY)
    assert plan.tags == ("26.10", "edge") and plan.fixed == {"26.10"}


class Place:
    name = "host/repo"

    def __init__(self, **tags: str) -> None:
        self.tags = tags

    def resolve(self, tag: str) -> str | None:
        return self.tags.get(tag)


@pytest.mark.parametrize(
    ("there", "force", "refused"),
    [("sha256:a", False, False), ("sha256:b", False, True), ("sha256:b", True, False)],
)
def test_a_fixed_tag_moves_only_by_force(there: str, force: bool, refused: bool) -> None:
    place = Place(**{"26.11": there, "latest": "sha256:old"})
    plan = TagPlan.of(recipe(), today=DAY)
    if refused:
        with pytest.raises(TagExistsError, match=r"host/repo:26\.11 exists"):
            check_tags(place, plan, "sha256:a", force=force)  # type: ignore[arg-type]
    else:
        check_tags(place, plan, "sha256:a", force=force)  # type: ignore[arg-type]


def test_where_a_target_goes() -> None:
    there = recipe(host="registry.example", repository="a/b")
    assert destination_text(there, None, None) == "registry.example/a/b"
    assert destination_text(there, None, "other:5000/p") == "other:5000/p/a/b"
    assert destination_text(there, "oci:dir", "other") == "oci:dir"
    with pytest.raises(UsageError, match=r"registry\.host is not set"):
        destination_text(recipe(), None, None)


def test_only_a_whole_record_of_a_pass_counts(tmp_path: Path) -> None:
    record = SmokeRecord(tmp_path)
    digest = "sha256:" + "a" * 64
    assert record.passed(digest) is None
    record.keep(digest, "pass", "userns")
    assert record.passed(digest) == "pass"
    path = next((tmp_path / "smoke").iterdir())
    path.write_text(path.read_text()[:-3])
    assert record.passed(digest) is None, "a damaged record is no pass"
    path.write_text('{"digest": "sha256:other", "verdict": "pass"}')
    assert record.passed(digest) is None, "another image's pass is no pass"
