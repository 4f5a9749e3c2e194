"""Which tags may move to an image."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import ImageError, TagExistsError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Descriptor, Image
from builder.deliver.publishing import tags as module
from builder.deliver.publishing.tags import Tagging, TagPlan
from builder.formats.registry.manifests import TagMove
from builder.formats.registry.referrers import CREATED
from builder.lock.config.recipe import Recipe, Registry
from tests.support.images import make_test_image
from tests.support.reporters import Notes

DAY = datetime.date(2026, 11, 21)
OTHER = "sha256:" + "1" * 64
OLD = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
    monkeypatch.setattr(module, "_now", lambda: now)


class Tags:
    """A place with tags, and the annotations of the images that they name."""

    name = "host/repo"

    def __init__(self, **named: str) -> None:
        self.named = named
        self.created = ""

    def resolve(self, tag: str) -> Descriptor | None:
        return Descriptor(OCI_MANIFEST, self.named[tag], 1) if tag in self.named else None

    def manifest(self, descriptor: Descriptor) -> bytes:
        if self.created == "damaged":
            raise ImageError("damaged")
        return json.dumps({"annotations": {CREATED: self.created}} if self.created else {}).encode()

    def move_tag(self, tag: str, image: Image, expected: str | None) -> TagMove:
        raise AssertionError("a check moves no tag")


def image(created: str = "1980-01-01T00:00:00Z") -> Image:
    made = make_test_image([])
    return replace(made, manifest=json.dumps({"annotations": {CREATED: created}}).encode())


def plan(month: str | None = None, *tags: str) -> TagPlan:
    registry = Registry(tags=tags) if tags else Registry()
    values = {"name": "t", "base": "oci:b", "environment": "e.yml", "source": Path("recipes/t.yaml")}
    return TagPlan.of(Recipe(**values, registry=registry), month, DAY)


def check(
    place: Tags, month: str | None = None, *tags: str, created: str = "", force: bool = False
) -> tuple[dict[str, str | None], list[str]]:
    reporter = Notes()
    ours = image(created) if created else image()
    named = Tagging(place, plan(month, *tags), ours, force).check(reporter)
    return named, reporter.notes


def test_fixed_tag() -> None:
    """A fixed tag moves to another digest only with force."""
    place = Tags(**{"26.11": OTHER, "latest": OLD})
    with pytest.raises(TagExistsError, match=r"host/repo:26\.11 exists and is sha256:1111"):
        check(place)
    assert check(place, force=True)[0] == {"26.11": OTHER, "latest": OLD}
    ours = image().digest
    assert check(Tags(**{"26.11": ours, "latest": ours})) == ({"26.11": ours, "latest": ours}, [])
    assert check(Tags())[0] == {"26.11": None, "latest": None}


@pytest.mark.parametrize(
    ("theirs", "ours", "refused"),
    [
        ("2026-11-02T00:00:00Z", "2026-11-01T00:00:00Z", True),
        ("2026-11-01T00:00:00Z", "2026-11-02T00:00:00+00:00", False),
        ("2026-11-01T02:00:00+02:00", "2026-10-31T23:59:59Z", True),
    ],
)
def test_creation_times(theirs: str, ours: str, refused: bool) -> None:
    """Without dated tags the creation times count: of the locks, or SOURCE_DATE_EPOCH."""
    place = Tags(edge=OTHER)
    place.created = theirs
    if refused:
        with pytest.raises(TagExistsError, match="edge would go back to an older image.*created 2026"):
            check(place, None, "edge", created=ours)
    else:
        assert check(place, None, "edge", created=ours)[1] == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("1980-01-01T00:00:00Z", "2026-11-01T00:00:00Z"),
        ("2026-11-01T00:00:00Z", "1980-01-01T00:00:00Z"),
        ("", "2026-11-01T00:00:00Z"),
        ("2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z"),
        ("soon", "2026-11-01T00:00:00Z"),
        ("2106-01-01T00:00:00Z", "2026-11-01T00:00:00Z"),  # forged: no later image could have the tag
        ("damaged", "2026-11-01T00:00:00Z"),
    ],
)
def test_nothing_tells_the_age(theirs: str, ours: str) -> None:
    """Without a trustworthy time the tag moves, and a note says so."""
    place = Tags(edge=OTHER)
    place.created = theirs
    named, (note,) = check(place, None, "edge", created=ours)
    assert named == {"edge": OTHER} and "do not tell which image is newer" in note


def test_index_of_several_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image does not replace an index of several, unless forced."""
    place = Tags(edge=OTHER)
    monkeypatch.setattr(place, "resolve", lambda tag: Descriptor(OCI_INDEX, OTHER, 1))
    with pytest.raises(TagExistsError, match="host/repo:edge is an index of several images"):
        check(place, None, "edge")
    assert check(place, None, "edge", force=True)[0] == {"edge": OTHER}
