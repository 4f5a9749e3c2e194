"""Which tags a published image gets, and which of them may move."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from builder.config.recipe import Recipe
from builder.errors import TagExistsError
from builder.publishing.places import Place


@dataclass(frozen=True)
class TagPlan:
    """The tags for an image.

    Tags made from a pattern with ``%`` (``%y.%m``) are fixed: the record of a month, which does not move to
    another digest without ``--force``.
    """

    tags: tuple[str, ...]
    """In the order in which they are set. Fixed ones come first: ``latest`` never names an image that the
    month's tag could not be set to."""
    fixed: frozenset[str]
    """Those that do not move once they are set."""

    @classmethod
    def of(cls, recipe: Recipe, month: str | None = None, today: datetime.date | None = None) -> TagPlan:
        """The recipe's tags for a day.

        Args:
            recipe: its ``registry.tags`` are the patterns.
            month: a tag (``26.11``) that replaces every dated one.
            today: default: the current day in UTC.
        """
        day = today or datetime.datetime.now(datetime.UTC).date()
        patterns = recipe.registry.tags
        plain = {pattern for pattern in patterns if "%" not in pattern}
        fixed = {month or day.strftime(pattern) for pattern in patterns if "%" in pattern}
        if month and month not in plain:
            fixed.add(month)
        return cls((*sorted(fixed), *sorted(plain - fixed)), frozenset(fixed))


def check_tags(place: Place, plan: TagPlan, digest: str, *, force: bool) -> None:
    """Refuses an image whose fixed tags could not be set after the push.

    Args:
        place: where it is to be published.
        plan: the tags.
        digest: the image's manifest.
        force: fixed tags may move.

    Raises:
        TagExistsError: a fixed tag names another digest.
    """
    if force:
        return
    for tag in plan.tags:
        if tag not in plan.fixed:
            continue
        current = place.resolve(tag)
        if current is not None and current.digest != digest:
            raise TagExistsError(
                f"{place.name}:{tag} exists and is {current.digest[:19]}, not {digest[:19]}",
                "a dated tag is a record: use another --tag, or --force to overwrite it",
            )
