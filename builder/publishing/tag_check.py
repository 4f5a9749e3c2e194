"""Refuses tags that must not move: dated ones to another image, and ``latest`` back to an older one.

Two facts tell which of two images is older, and either is enough:

1. **Dated tags.** If ``latest`` names the image of ``26.12``, then an image for ``26.11`` is older.
2. **Creation times**: those of the locks, or SOURCE_DATE_EPOCH. Equal times say nothing: all images of one
   lock have the same. Nor does 1980, the time of images whose lock has no date, or a time in the future: an
   image with a forged one would keep its tag for ever.

If neither is known, the tag moves, and what it named before is reported.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from builder.errors import BuilderError, RegistryError, TagExistsError
from builder.model import Descriptor, Image
from builder.parallel import in_parallel
from builder.progress import QUIET, Reporter
from builder.publishing.places import Place
from builder.publishing.platforms import refuse_to_replace
from builder.publishing.tags import TagPlan
from builder.registry.push import CHECKS
from builder.registry.referrers import CREATED
from builder.settings import DEFAULT_EPOCH

#: Dated tags before this image's date that are compared: ``latest`` usually names the newest of them.
_EARLIER_TAGS = 3
#: By how much the clocks of machines that publish may differ.
_CLOCKS_DIFFER = datetime.timedelta(days=1)
#: Answers of registries that do not list tags for this user.
_NO_LIST = (401, 403, 404, 405)


@dataclass(frozen=True, slots=True)
class _Age:
    """An image, compared with the one that a tag names."""

    is_: Literal["older", "newer", "unknown"]
    other: str = ""
    """The other image, as the fact describes it."""


_UNKNOWN = _Age("unknown")


def check_tags(
    place: Place, plan: TagPlan, image: Image, *, force: bool, reporter: Reporter = QUIET
) -> dict[str, str | None]:
    """Returns what all tags name now, as digests (None: no such tag), if all may move to an image.

    Args:
        place: where it is to be published.
        plan: the tags.
        image: the image.
        force: every tag may move.
        reporter: receives a note if nothing tells whether a tag goes back.

    Raises:
        TagExistsError: a fixed tag names another digest, or another tag would go back to an older image or
            names an index of several platforms.
        RegistryError: the registry cannot be reached.
    """
    named = dict(in_parallel(place.resolve, plan.tags, CHECKS))
    moving = {tag: found for tag, found in named.items() if found and found.digest != image.digest}
    if not force:
        _check_fixed(place, plan, moving, image)
        for tag, current in moving.items():
            refuse_to_replace(place, tag, current, image)
            _check_age(place, plan, tag, current, image, reporter)
    return {tag: found.digest if found else None for tag, found in named.items()}


def _check_fixed(place: Place, plan: TagPlan, moving: Mapping[str, Descriptor], image: Image) -> None:
    for tag, current in moving.items():
        if tag in plan.fixed:
            raise TagExistsError(
                f"{place.name}:{tag} exists and is {current.digest[:19]}, not {image.digest[:19]}",
                _fixed_hint(plan),
            )


def _fixed_hint(plan: TagPlan) -> str:
    """How an image is published although a dated tag has another one."""
    ways = "use another --tag, or --force to overwrite it"
    plain = [tag for tag in plan.tags if tag not in plan.fixed]
    if plain:
        return f"a dated tag is a record; to move {plain[0]} alone: --only {plain[0]}; or {ways}"
    return f"a dated tag is a record: {ways}"


def _check_age(
    place: Place, plan: TagPlan, tag: str, current: Descriptor, image: Image, reporter: Reporter
) -> None:
    ages = (_by_tags(place, plan, current), _by_creation(place, current, image))
    for age in ages:
        if age.is_ == "older":
            raise TagExistsError(
                f"{place.name}:{tag} would go back to an older image: "
                f"it is {current.digest[:19]}, {age.other}",
                "publish without tags (--no-tags), or --force to move it back",
            )
    if all(age is _UNKNOWN for age in ages):
        reporter.note(
            f"{place.name}:{tag} is {current.digest[:19]}; neither a dated tag nor a creation time tells "
            "whether that image is older"
        )


def _by_tags(place: Place, plan: TagPlan, current: Descriptor) -> _Age:
    """Compares the dates of the plan and of the dated tags that name ``current``."""
    ours = plan.date
    if ours is None:
        return _UNKNOWN
    try:
        tags = place.tags()
    except RegistryError as e:
        if e.status in _NO_LIST:
            return _UNKNOWN
        raise
    dated = [(date, tag) for tag in tags if (date := plan.date_of(tag))]
    later = [(date, tag) for date, tag in dated if date > ours]
    earlier = [(date, tag) for date, tag in dated if date <= ours]
    for date, tag in (*sorted(later), *sorted(earlier, reverse=True)[:_EARLIER_TAGS]):
        found = place.resolve(tag)
        if found is not None and found.digest == current.digest:
            return _Age("older" if date > ours else "newer", f"the image of {tag}")
    return _UNKNOWN


def _by_creation(place: Place, current: Descriptor, image: Image) -> _Age:
    try:
        theirs = _created(place.manifest(current))
    except BuilderError:
        return _UNKNOWN  # it is damaged, and will be replaced
    ours = _created(image.manifest)
    if theirs is None or ours is None or theirs == ours or theirs > _now() + _CLOCKS_DIFFER:
        return _UNKNOWN
    return _Age("older" if ours < theirs else "newer", f"created {theirs:%Y-%m-%dT%H:%M:%SZ}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _created(manifest: bytes) -> datetime.datetime | None:
    """The creation time; None if it is unknown, or 1980."""
    try:
        text = json.loads(manifest)["annotations"][CREATED]
        time = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return time if time.timestamp() != DEFAULT_EPOCH else None
