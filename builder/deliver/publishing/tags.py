"""The tags of an image: their names, the check whether they may move, and the moves.

Nobody can move several tags of a registry in one step. So all tags are checked before the first one
moves, and each move states what the tag must name at that moment: what another publish moved in the
meantime is not overwritten, and the loser of a race gets an error.

Two moves are refused: a dated tag to another image, and any tag back to an older image. The
creation times tell which of two images is older: those of the locks, or SOURCE_DATE_EPOCH. Equal
times tell nothing, because all images of one lock have the same. Nor does 1980, the time of images
whose lock has no date, or a time in the future: otherwise an image with a forged time would keep
its tag. If the times tell nothing, the tag moves, and what it named before is reported.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from builder.core.errors import BuilderError, ConfigError, TagExistsError, UsageError
from builder.core.model import Descriptor, Image
from builder.core.parallel import in_parallel
from builder.core.progress import QUIET, Reporter
from builder.core.settings import DEFAULT_EPOCH
from builder.formats.oci.manifest import INDEXES
from builder.formats.oci.reference import TAG_RULE, is_tag
from builder.formats.registry.push import CHECKS
from builder.formats.registry.referrers import CREATED
from builder.lock.config.recipe import Recipe
from builder.lock.config.yamlfile import place_of

from .destination import PublishDestination

log = logging.getLogger(__name__)

#: The digest that each tag names; None: there is no such tag.
TagDigests = Mapping[str, str | None]

#: The tag of an image that is to be promoted, see :mod:`builder.deliver.publishing.promote`.
CANDIDATE = "candidate"
#: A tag that is not fixed is moved this many times if other publishes move it at the same moment.
_TRIES = 3
#: By how much the clocks of machines that publish may differ.
_CLOCKS_DIFFER = datetime.timedelta(days=1)


class TagLost(TagExistsError):
    """Another client changed a tag that is not fixed: it is moved again."""


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
        cls, recipe: Recipe, month: str | None = None, today: datetime.date | None = None
    ) -> TagPlan:
        """Return the recipe's tags for a day.

        Args:
            recipe: its ``registry.tags`` are the patterns.
            month: a tag (``26.11``) that replaces every dated one.
            today: default: the current day in UTC.

        Raises:
            UsageError, ConfigError: ``month``, or a tag of the recipe, is no tag.
        """
        day = today or datetime.datetime.now(datetime.UTC).date()
        if month:
            check_tag(month, recipe, "--tag")
        named = {pattern: day.strftime(pattern) for pattern in recipe.registry.tags}
        for tag in named.values():
            check_tag(tag, recipe, None)
        plain = {pattern for pattern in named if "%" not in pattern}
        fixed = {month or tag for pattern, tag in named.items() if pattern not in plain}
        if month and month not in plain:
            fixed.add(month)
        return cls((*sorted(fixed), *sorted(plain - fixed)), frozenset(fixed))

    def only(self, chosen: Sequence[str], target: str) -> TagPlan:
        """Return the plan with the chosen ones of its tags; all if none is chosen.

        :data:`CANDIDATE` alone can be chosen for every target.

        Raises:
            UsageError: the target has no such tag.
        """
        if tuple(chosen) == (CANDIDATE,):
            return replace(self, tags=(CANDIDATE,))
        if wrong := [tag for tag in chosen if tag not in self.tags]:
            hint = f"its tags are {', '.join(self.tags)}; --tag replaces the dated ones"
            raise UsageError(f"--only {wrong[0]}: {target} has no such tag", hint)
        return replace(self, tags=tuple(tag for tag in self.tags if not chosen or tag in chosen))


def check_tag(tag: str, recipe: Recipe, option: str | None) -> None:
    """Check a tag of the command line (``option``), or of the recipe (None).

    Raises:
        UsageError, ConfigError: no registry accepts such a tag, and the hint is the rule; or it is
            :data:`CANDIDATE`, which is no dated tag.
    """
    if option and tag == CANDIDATE:
        problem = f"{option} {CANDIDATE}: a dated tag does not move, and this one does"
        raise UsageError(problem, f"to move it: --only {CANDIDATE}")
    if is_tag(tag):
        return
    valid = re.sub(r"[^A-Za-z0-9_.-]+", "-", tag).strip("-.")[:128] or "26.11"
    if option:
        raise UsageError(f"{option} {tag!r} is not a tag", f"{TAG_RULE}: {option} {valid}")
    where = place_of(recipe.source, "registry", "tags")
    raise ConfigError(f"{where}: {tag!r} is not a tag", f"{TAG_RULE}: write {valid}")


@dataclass(frozen=True, slots=True)
class Tagging:
    """Points the tags of a plan at an image."""

    destination: PublishDestination
    plan: TagPlan
    image: Image
    force: bool = False
    """Every tag may move."""

    def check(self, reporter: Reporter = QUIET) -> TagDigests:
        """Return the digests that all tags name now (None: no such tag), if all may move.

        Args:
            reporter: receives a note if nothing tells whether a tag goes back.

        Raises:
            TagExistsError: a fixed tag names another digest, or another tag would go back to an
                older image or names an index of several platforms.
            RegistryError: the registry cannot be reached.
        """
        found = dict(in_parallel(self.destination.resolve, self.plan.tags, CHECKS))
        for tag, named in found.items() if not self.force else ():
            if named and named.digest != self.image.digest:
                self._check_move(tag, named, reporter)
        digests = {tag: named.digest if named else None for tag, named in found.items()}
        shown = ", ".join(f"{tag} ({digest or 'new'})" for tag, digest in digests.items()) or "none"
        place = self.destination.name
        log.info("tags of %s that may move to %s: %s", place, self.image.digest, shown)
        return digests

    def _check_move(self, tag: str, named: Descriptor, reporter: Reporter) -> None:
        """Raise TagExistsError if a tag may not move from the image that it names."""
        where = f"{self.destination.name}:{tag}"
        now, ours = named.digest[:19], self.image.digest[:19]
        if tag in self.plan.fixed:
            plain = [other for other in self.plan.tags if other not in self.plan.fixed]
            only = f"; to move {plain[0]} alone: --only {plain[0]}; or " if plain else ": "
            hint = f"a dated tag is a record{only}use another --tag, or --force to overwrite it"
            raise TagExistsError(f"{where} exists and is {now}, not {ours}", hint)
        if named.media_type in INDEXES:
            raise TagExistsError(
                f"{where} is an index of several images, and {ours} is one image",
                "publish to another repository or tag, or --force to replace the index",
            )
        if tag == CANDIDATE:
            return
        created, theirs = _created(self.image.manifest), _created_there(self.destination, named)
        if created is None or theirs is None or theirs == created:
            unknown = "the creation times do not tell which image is newer"
            reporter.note(f"{where} moves from {now}: {unknown}; to undo it: builder rollback")
        elif created < theirs:
            raise TagExistsError(
                f"{where} would go back to an older image: "
                f"it is {now}, created {theirs:%Y-%m-%dT%H:%M:%SZ}",
                "publish without tags (--no-tags), or --force to move it back",
            )

    def move(self, before: TagDigests, announce: Callable[[TagDigests], None]) -> TagDigests:
        """Check all tags again (test and push may have taken hours) and move them.

        If two publishes race, the one that loses a fixed tag fails. One that loses only other tags,
        such as ``latest``, moves them again, three times at most. Tags that all name the image
        already are not asked for again.

        Args:
            before: the digests that the tags named at the first check.
            announce: called before each attempt, with the digests that the tags name until then.

        Returns:
            The digests that the tags named before they moved.

        Raises:
            TagExistsError, RegistryError: see :meth:`check` and :meth:`move_all`.
        """
        last = dict(before)
        if all(digest == self.image.digest for digest in before.values()):
            announce(before)
            return last
        for tries_left in reversed(range(_TRIES)):
            named = self.check()
            last |= {tag: digest for tag, digest in named.items() if digest != self.image.digest}
            announce(named)
            try:
                self.move_all(named)
                break
            except TagLost:
                if not tries_left:
                    raise
        return last

    def move_all(self, named: TagDigests) -> list[str]:
        """Move the tags, one after the other, and look at all of them again.

        Returns the tags that moved: not those that named the image before.

        Args:
            named: the digests that the tags must name until they move; None: they must not exist.

        Raises:
            TagExistsError: another client moved one of them at the same time. Tags that had moved
                before stay. It is a TagLost if the tag is not fixed.
            RegistryError: the registry refuses, or cannot be reached.
        """
        place, image = self.destination, self.image
        written: list[str] = []
        for tag in self.plan.tags:
            move = place.move_tag(tag, image, named[tag])
            if move.now != image.digest:
                raise self._lost(tag, move.now, written)
            if move.written:
                written.append(tag)
                before = move.before or "no image"
                log.info("%s:%s named %s, now %s", place.name, tag, before, move.now)
        # A registry without conditional requests lets a slower writer overwrite a tag that was read
        # back already.
        for tag in written:
            found = place.resolve(tag)
            if found is None or found.digest != image.digest:
                others = [other for other in written if other != tag]
                raise self._lost(tag, found.digest if found else None, others)
        return written

    def _lost(self, tag: str, now: str | None, written: Sequence[str]) -> TagExistsError:
        """Return the error for a tag that another client changed; ``written`` have moved."""
        names = f"names {now[:19]}" if now else "does not exist"
        moved = f"has moved {', '.join(written)}" if written else "moved no tag"
        kind = TagExistsError if tag in self.plan.fixed else TagLost
        return kind(
            f"another client changed {self.destination.name}:{tag} at the same time: it {names} now, "
            f"not {self.image.digest[:19]}; this publish {moved}",
            "if this image should have the tag, publish again; the error names the image that "
            "holds the tag",
        )


def _created_there(destination: PublishDestination, named: Descriptor) -> datetime.datetime | None:
    """Return the creation time of a published image; None if it is unknown, or in the future."""
    try:
        theirs = _created(destination.manifest(named))
    except BuilderError:
        return None  # it is damaged, and will be replaced
    return theirs if theirs and theirs <= _now() + _CLOCKS_DIFFER else None


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
