"""Moves the tags of a target between images that are published: promote, and roll back.

Nothing is built or uploaded. A plan is made first, to be shown and agreed to; then the release
record is attached and signed, and the tags move as in
:func:`builder.deliver.publishing.publish.publish`. Each step leaves tags that name whole images,
and a second run after an interruption finishes: the tag that decides what is promoted or rolled
back moves last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from builder.core.errors import ImageError, SmokeError, UsageError, VerifyError
from builder.core.model import Descriptor, Image
from builder.core.progress import Reporter
from builder.formats.oci.image import image_blobs
from builder.lock.config.recipe import Recipe

from .destination import PublishDestination
from .keys import SigningKey
from .published import read_published
from .pull import reference_of, resolve_published
from .release import RELEASE, SMOKE_REPORT, ReleaseRecord, attached_releases
from .seal import Seal, Signer
from .tags import CANDIDATE, TagDigests, Tagging, TagPlan
from .verify import check_report, read_object, signed_releases

_GO_BACK = "name the image to go back to: --back-to TAG"


@dataclass(frozen=True)
class ReleaseOptions:
    """The options of promote and rollback."""

    origin: str = ""
    """The tag or digest to move the tags to. Empty: ``candidate``, or what the record names."""
    month: str | None = None
    """A tag in place of the recipe's dated ones."""
    only: tuple[str, ...] = ()
    """Those of the tags that are promoted; empty: all."""
    key: SigningKey | None = None
    """The key that signs the release; None: it is not signed."""
    force: bool = False
    """Dated tags may move to another digest, and others to an older image."""


@dataclass(frozen=True)
class TagMoves:
    """Tags that are to move to an image."""

    seal: Seal
    named: TagDigests
    """The digests that the tags name now; None: there is no such tag."""
    smoke: str = ""
    """What the smoke report of the image says; empty: it was not asked for."""
    notes: tuple[str, ...] = ()
    """What stays as it is, and why."""

    @property
    def moving(self) -> dict[str, str | None]:
        """The tags that do not name the image yet, and what they name."""
        digest = self.seal.tagging.image.digest
        return {tag: before for tag, before in self.named.items() if before != digest}

    def execute(self) -> TagDigests:
        """Attach and sign the record, and move the tags; return what they named before.

        Raises:
            TagExistsError: a tag may not move, or another command moved it at the same time.
            VerifyError, RegistryError: see :class:`builder.deliver.publishing.seal.Seal`.
        """
        return self.seal.tagging.move(self.named, self.seal.record)


#: Plans the moves of a target's tags.
Plan = Callable[[Recipe, PublishDestination, ReleaseOptions, Reporter], TagMoves]


def plan_promotion(
    recipe: Recipe, place: PublishDestination, options: ReleaseOptions, reporter: Reporter
) -> TagMoves:
    """Return the moves of a target's tags to its candidate, which passed its smoke test.

    Raises:
        RegistryError: there is no candidate, or the registry refuses.
        SmokeError: no smoke report says that it passed.
        TagExistsError: a tag may not move.
        VerifyError: the policy refuses the candidate.
        UsageError: see :meth:`builder.deliver.publishing.seal.Signer.of` and :meth:`TagPlan.only`.
    """
    signer = Signer.of(place.name, recipe.root, options.key)
    plan = TagPlan.of(recipe, options.month).only(options.only, recipe.name)
    image = _find_image(recipe, place, options.origin or CANDIDATE)
    tagging = Tagging(place, plan, image, options.force)
    named = tagging.check(reporter)
    attached = _attached(place, image.digest, signer)
    seal = Seal(tagging, recipe.name, "promote", signer, attached)
    return TagMoves(seal, named, _passed(recipe, seal))


def plan_rollback(
    recipe: Recipe, place: PublishDestination, options: ReleaseOptions, reporter: Reporter
) -> TagMoves:
    """Return the moves of a target's tags to what they named before the release that is out.

    The release is the one that the last tag of the recipe (``latest``) names; its record says what
    the tags named before. A tag that named nothing before, or that names another image by now,
    stays as it is.

    Raises:
        UsageError: no record says what the tag named before.
        RegistryError: the image is not whole any more, or the registry refuses.
        VerifyError: the policy refuses it.
    """
    signer = Signer.of(place.name, recipe.root, options.key)
    tags = TagPlan.of(recipe, options.month)
    last = tags.tags[-1]
    before: Mapping[str, str | None]
    if options.origin:
        out = place.resolve(last)
        image = _find_image(recipe, place, options.origin)
        before = {tag: image.digest for tag in tags.tags if tag not in tags.fixed}
    else:
        out, before = _last_release(recipe, place, last, signer)
        image = _find_image(recipe, place, str(before[last]))
    goal, now = image.digest, {tag: place.resolve(tag) for tag in before}
    named = {tag: was.digest for tag, was in now.items() if was is not None}
    ours = {goal, out.digest if out else None}
    stays = {tag: _stays(before[tag], named.get(tag), goal, ours) for tag in before}
    moving = sorted((tag for tag, why in stays.items() if not why), key=lambda tag: tag == last)
    plan = replace(tags, tags=tuple(moving))
    notes = tuple(f"{tag} stays: {why}" for tag, why in stays.items() if why)
    tagging = Tagging(place, plan, image, force=True)
    seal = Seal(tagging, recipe.name, "rollback", signer, _attached(place, goal, signer))
    return TagMoves(seal, {tag: named.get(tag) for tag in plan.tags}, notes=notes)


def _find_image(recipe: Recipe, place: PublishDestination, ref: str) -> Image:
    """Return the image of a tag or digest, which is whole, and which no policy refuses.

    Raises:
        ImageError: parts of it are gone.
        RegistryError, VerifyError: see :func:`builder.deliver.publishing.pull.resolve_published`.
    """
    image = read_published(place, ref, recipe)
    if missing := place.missing(image_blobs(image)):
        where = reference_of(place, image.digest)
        hint = "publish it again from its lock, or name another image"
        raise ImageError(f"{where} is not whole: {len(missing)} blobs are gone", hint)
    return image


def _attached(place: PublishDestination, image: str, signer: Signer) -> Mapping[str, str]:
    """Return the digests of what is attached by type: the newest, or what a signed record names."""
    if signer.trust is None:
        found = (one for one in place.listed(image) if one.artifact_type != RELEASE)
        return {one.artifact_type: one.digest for one in found}
    if records := _records(place, image, signer):
        return records[-1].attached
    hint = "what is attached to it may be forged: publish it with --sign"
    raise VerifyError(f"{reference_of(place, image)} has no signature by this key", hint)


def _passed(recipe: Recipe, seal: Seal) -> str:
    """Return what the smoke report of an image says, in a few words.

    Raises:
        SmokeError: no report says that the image passed.
    """
    if recipe.smoke.none:
        return f"not tested: {recipe.smoke.none}"
    subject = seal.subject
    try:
        report = read_object(subject, seal.attached, SMOKE_REPORT)
        return check_report(subject, report, recipe.gpu.vendor)
    except ImageError as e:
        hint = f"test it: builder publish {recipe.name} --only {CANDIDATE} --smoke always"
        raise SmokeError(
            f"{subject.name}: its smoke report: {e.message}; no tag was moved", hint
        ) from None


def _stays(before: str | None, named: str | None, goal: str, ours: Collection[str | None]) -> str:
    """Return why a tag does not move; empty if it does. ``ours`` are the digests of both images."""
    if before is None:
        return "it named no image before"
    if before != goal:
        return f"it named another image before, {before[:19]}"
    if named not in ours:
        return f"it names another image now, {named[:19] if named else 'none'}"
    return ""


def _last_release(
    recipe: Recipe, place: PublishDestination, last: str, signer: Signer
) -> tuple[Descriptor, Mapping[str, str | None]]:
    """Return what a tag names now, and what the tags named before the release that is out."""
    try:
        out, _ = resolve_published(recipe, place, last)
    except VerifyError as e:
        raise VerifyError(e.message, f"{e.hint}; or {_GO_BACK}") from None
    before = _named_before(_records(place, out.digest, signer), last, out.digest)
    goal = before.get(last) or out.digest
    if goal == out.digest:
        problem = f"no release record of {place.name}@{out.digest} says what {last} named before"
        raise UsageError(problem, _GO_BACK)
    if signer.trust is not None:
        # an attacker may have moved the tag there just before the release
        tags_of_goal = {tag for record in _records(place, goal, signer) for tag in record.tags}
        if last not in tags_of_goal:
            raise VerifyError(f"{place.name}@{goal} was not released as {last}", _GO_BACK)
    return out, before


def _named_before(records: Sequence[ReleaseRecord], last: str, out: str) -> dict[str, str | None]:
    """Return what the tags named before the release of an image, by the records of its releases."""
    before: dict[str, str | None] = {}
    for record in reversed(records):
        if record.action != "rollback" and last in record.tags:
            # after an interruption the second record states that a tag names this image already
            before |= {tag: was for tag, was in record.tags.items() if before.get(tag, out) == out}
    return before


def _records(place: PublishDestination, image: str, signer: Signer) -> list[ReleaseRecord]:
    """Return the records of an image, signed ones if something is signed, the oldest first."""
    if signer.trust is None:
        return attached_releases(place, image)
    return [release.record for release in signed_releases(place, image, signer.trust.keys)]
