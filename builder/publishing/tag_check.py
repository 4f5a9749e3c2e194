"""Refuses tags that must not move: dated ones to another image, and ``latest`` back to an older
one.

The creation times tell which of two images is older: those of the locks, or SOURCE_DATE_EPOCH.
Equal times say nothing: all images of one lock have the same. Nor does 1980, the time of images
whose lock has no date, or a time in the future: an image with a forged one would keep its tag for
ever.

If the times say nothing, the tag moves, and what it named before is reported.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping

from builder.errors import BuilderError, TagExistsError
from builder.model import Descriptor, Image
from builder.oci.manifest import INDEXES
from builder.parallel import in_parallel
from builder.progress import QUIET, Reporter
from builder.publishing.places import Place
from builder.publishing.tags import TagPlan
from builder.registry.push import CHECKS
from builder.registry.referrers import CREATED
from builder.settings import DEFAULT_EPOCH

#: By how much the clocks of machines that publish may differ.
_CLOCKS_DIFFER = datetime.timedelta(days=1)


def check_tags(
    place: Place, plan: TagPlan, image: Image, *, force: bool, reporter: Reporter = QUIET
) -> dict[str, str | None]:
    """Return what all tags name now, as digests (None: no such tag), if all may move to an image.

    Args:
        place: where it is to be published.
        plan: the tags.
        image: the image.
        force: every tag may move.
        reporter: receives a note if nothing tells whether a tag goes back.

    Raises:
        TagExistsError: a fixed tag names another digest, or another tag would go back to an older
            image or names an index of several platforms.
        RegistryError: the registry cannot be reached.
    """
    named = dict(in_parallel(place.resolve, plan.tags, CHECKS))
    moving = {tag: found for tag, found in named.items() if found and found.digest != image.digest}
    if not force:
        _check_fixed(place, plan, moving, image)
        for tag, current in moving.items():
            _refuse_to_replace_index(place, tag, current, image)
            _check_age(place, tag, current, image, reporter)
    return {tag: found.digest if found else None for tag, found in named.items()}


def _check_fixed(
    place: Place, plan: TagPlan, moving: Mapping[str, Descriptor], image: Image
) -> None:
    for tag, current in moving.items():
        if tag in plan.fixed:
            raise TagExistsError(
                f"{place.name}:{tag} exists and is {current.digest[:19]}, not {image.digest[:19]}",
                _fixed_hint(plan),
            )


def _fixed_hint(plan: TagPlan) -> str:
    """Return how an image is published although a dated tag has another one."""
    ways = "use another --tag, or --force to overwrite it"
    plain = [tag for tag in plan.tags if tag not in plan.fixed]
    if plain:
        return f"a dated tag is a record; to move {plain[0]} alone: --only {plain[0]}; or {ways}"
    return f"a dated tag is a record: {ways}"


def _check_age(
    place: Place, tag: str, current: Descriptor, image: Image, reporter: Reporter
) -> None:
    ours, theirs = _created(image.manifest), _created_there(place, current)
    if ours is None or theirs is None or theirs == ours:
        reporter.note(
            f"{place.name}:{tag} is {current.digest[:19]}; no creation time tells whether that image is older"
        )
    elif ours < theirs:
        raise TagExistsError(
            f"{place.name}:{tag} would go back to an older image: "
            f"it is {current.digest[:19]}, created {theirs:%Y-%m-%dT%H:%M:%SZ}",
            "publish without tags (--no-tags), or --force to move it back",
        )


def _created_there(place: Place, current: Descriptor) -> datetime.datetime | None:
    """Return when an image of the place was created; None if that is unknown, or in the future."""
    try:
        theirs = _created(place.manifest(current))
    except BuilderError:
        return None  # it is damaged, and will be replaced
    return theirs if theirs and theirs <= _now() + _CLOCKS_DIFFER else None


def _refuse_to_replace_index(place: Place, tag: str, current: Descriptor, image: Image) -> None:
    if current.media_type in INDEXES:
        raise TagExistsError(
            f"{place.name}:{tag} is an index of several images, and {image.digest[:19]} is one image",
            "publish to another repository or tag, or --force to replace the index",
        )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _created(manifest: bytes) -> datetime.datetime | None:
    """Return the creation time; None if it is unknown, or 1980."""
    try:
        text = json.loads(manifest)["annotations"][CREATED]
        time = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return time if time.timestamp() != DEFAULT_EPOCH else None
