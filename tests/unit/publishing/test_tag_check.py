"""Which tags may move to an image."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.config.recipe import Recipe, Registry
from builder.errors import ImageError, RegistryError, TagExistsError
from builder.model import OCI_MANIFEST, Descriptor, Image
from builder.progress import NullReporter
from builder.publishing import tag_check
from builder.publishing.tag_check import check_tags
from builder.publishing.tags import TagPlan
from builder.registry.referrers import CREATED
from tests.support.images import make_test_image

DAY = datetime.date(2026, 11, 21)
OTHER = "sha256:" + "1" * 64
OLD = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
    monkeypatch.setattr(tag_check, "_now", lambda: now)


class Notes(NullReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


class Tags:
    """A place with tags, and the annotations of the images that they name."""

    name = "host/repo"

    def __init__(self, **named: str) -> None:
        self.named = named
        self.created = ""
        self.list_error = 0

    def tags(self) -> list[str]:
        if self.list_error:
            raise RegistryError("no list", status=self.list_error)
        return list(self.named)

    def resolve(self, tag: str) -> Descriptor | None:
        return Descriptor(OCI_MANIFEST, self.named[tag], 1) if tag in self.named else None

    def manifest(self, descriptor: Descriptor) -> bytes:
        if self.created == "damaged":
            raise ImageError("damaged")
        return json.dumps({"annotations": {CREATED: self.created}} if self.created else {}).encode()


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
    named = check_tags(place, plan(month, *tags), ours, force=force, reporter=reporter)  # type: ignore[arg-type]
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


def test_back_to_an_older_month() -> None:
    """``latest`` does not go back from the image of a later month, unless forced."""
    place = Tags(**{"26.12": OTHER, "26.09": OLD, "latest": OTHER})
    with pytest.raises(TagExistsError, match="would go back to an older image: .*, the image of 26.12") as e:
        check(place, "26.10")
    assert "--force" in e.value.hint and "--no-tags" in e.value.hint
    assert check(place, "26.10", force=True)[0] == {"26.10": None, "latest": OTHER}
    assert check(place, "27.01") == ({"27.01": None, "latest": OTHER}, [])


def test_older_image_in_a_new_month() -> None:
    """A new month's tag does not make an image newer that was created before."""
    place = Tags(**{"26.10": OTHER, "latest": OTHER})
    place.created = "2026-10-03T00:00:00Z"
    with pytest.raises(TagExistsError, match="created 2026-10-03T00:00:00Z"):
        check(place, created="2026-09-30T00:00:00Z")


def test_same_month() -> None:
    """A dated tag that was moved by force takes ``latest`` with it: the same month is not older."""
    place = Tags(**{"26.11": image().digest, "latest": OTHER, "26.10": OTHER})
    assert check(place)[1] == []


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
    assert named == {"edge": OTHER} and "neither a dated tag nor a creation time" in note


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_no_list_of_tags(status: int) -> None:
    """A registry that lists no tags for this user does not stop the publish."""
    place = Tags(latest=OTHER)
    place.list_error = status
    assert len(check(place)[1]) == 1
    place.list_error = 500
    with pytest.raises(RegistryError, match="no list"):
        check(place)
