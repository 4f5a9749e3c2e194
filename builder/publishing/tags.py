"""Which tags a published image gets, and how they move.

Nobody can move several tags of a registry in one step. So all tags are checked before the first one
moves, and each move states what the tag must name at that moment: what another publish moved in the
meantime is not overwritten, and the loser of a race is told.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.config.recipe import Recipe
from builder.errors import TagExistsError, UsageError
from builder.model import Image
from builder.publishing.destination import check_tag
from builder.publishing.places import Place


class TagLost(TagExistsError):
    """Another client changed a tag between the check and the end of this publish.

    Args:
        message, hint: see :class:`builder.errors.BuilderError`.
        tag: the tag.
    """

    def __init__(self, message: str, hint: str, tag: str) -> None:
        super().__init__(message, hint)
        self.tag = tag


@dataclass(frozen=True)
class TagPlan:
    """The tags for an image.

    Tags made from a pattern with ``%`` (``%y.%m``) are fixed: the record of a month, which does not
    move to another digest without ``--force``.
    """

    tags: tuple[str, ...]
    """In the order in which they are set. Fixed ones come first: ``latest`` never names an image
    that the month's tag could not be set to."""
    fixed: frozenset[str]
    """The recipe's tags that do not move once they are set."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        month: str | None = None,
        today: datetime.date | None = None,
        *,
        only: Sequence[str] = (),
    ) -> TagPlan:
        """Return the recipe's tags for a day.

        Args:
            recipe: its ``registry.tags`` are the patterns.
            month: a tag (``26.11``) that replaces every dated one.
            today: default: the current day in UTC.
            only: those of the tags that move; empty: all.

        Raises:
            UsageError: ``only`` names another tag.
        """
        day = today or datetime.datetime.now(datetime.UTC).date()
        patterns = recipe.registry.tags
        if month:
            check_tag(month, recipe, "--tag")
        for pattern in patterns:
            check_tag(day.strftime(pattern), recipe, None)
        plain = {pattern for pattern in patterns if "%" not in pattern}
        dated = tuple(pattern for pattern in patterns if "%" in pattern)
        fixed = {month or day.strftime(pattern) for pattern in dated}
        if month and month not in plain:
            fixed.add(month)
        tags = (*sorted(fixed), *sorted(plain - fixed))
        if wrong := [tag for tag in only if tag not in tags]:
            raise UsageError(
                f"--only {wrong[0]}: {recipe.name} has no such tag",
                f"its tags are {', '.join(tags)}",
            )
        chosen = tuple(tag for tag in tags if tag in only) if only else tags
        return cls(chosen, frozenset(fixed))


def move_all(
    place: Place, tags: Sequence[str], image: Image, named: Mapping[str, str | None]
) -> list[str]:
    """Point tags at an image that was pushed, one after the other, and looks at all of them again.

    Returns the tags that moved: not those that named the image before.

    Args:
        place: where the image is.
        tags: in the order in which they move.
        image: the image.
        named: what the tags must name until they move; None: they must not exist.

    Raises:
        TagLost: another client moved one of them at the same time. Tags that had moved before stay.
        RegistryError: the registry refuses, or cannot be reached.
    """
    written: list[str] = []
    for tag in tags:
        move = place.move_tag(tag, image, named[tag])
        if move.now != image.digest:
            raise _lost(place, tag, move.now, image, written)
        if move.written:
            written.append(tag)
    # A registry without conditional requests lets a slower writer overwrite a tag that was read back already.
    for tag in written:
        found = place.resolve(tag)
        if found is None or found.digest != image.digest:
            others = [other for other in written if other != tag]
            raise _lost(place, tag, found.digest if found else None, image, others)
    return written


def _lost(place: Place, tag: str, now: str | None, image: Image, written: list[str]) -> TagLost:
    names = f"names {now[:19]}" if now else "does not exist"
    done = (
        f"; this publish has moved {', '.join(written)}"
        if written
        else "; this publish moved no tag"
    )
    return TagLost(
        f"another client changed {place.name}:{tag} at the same time: it {names} now, not {image.digest[:19]}"
        + done,
        "if this image should have the tag, publish again: it then tells what is in the way",
        tag,
    )
