"""Publishes images: first the blobs and the manifest, then what is attached, and the tags last.

No tag moves before the smoke test has passed and what was sent has been read back. The test runs
before the push, or after it if it is a Slurm job, which runs the published image. An OCI image is
published unchanged, a SIF as an ORAS artifact. The SBOM, the provenance and the report of the smoke
test are attached before a tag names the image.

The layers of a base image in a registry are downloaded only when something needs them: the smoke
test on this host, or an OCI layout. A registry that lacks them gets them from the base's registry
while they are read. An image has the same digest with and without them on this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builder.config.recipe import Recipe
from builder.engines.base import BuildResult
from builder.errors import UsageError
from builder.lock.inputs import require_sha256
from builder.model import Image, canonical_json
from builder.project import Project
from builder.publishing.attest import PROVENANCE, SBOM, SMOKE_REPORT, provenance, sbom
from builder.publishing.destination import check_destination
from builder.publishing.places import Place, open_place
from builder.publishing.read_back import Verified, VerifyMode, push_and_read_back
from builder.publishing.smoke_gate import SmokeGate, SmokePolicy
from builder.publishing.tag_check import check_tags
from builder.publishing.tags import TagLost, TagPlan, move_all
from builder.registry.errors import ArtifactRefused
from builder.registry.known import KnownBlobs
from builder.registry.oras import sif_artifact
from builder.registry.pull import fetch_layers
from builder.registry.push import PushReport
from builder.registry.referrers import CREATED, Artifact, AttachedFile
from builder.smoke.options import DEFAULTS, SlurmOptions, SmokeOptions

#: A tag that is not fixed is moved this many times if other publishes move it at the same moment.
_TRIES = 3


@dataclass(frozen=True)
class PublishOptions:
    """The options of publishing; the same for all targets of one command."""

    to: str | None = None
    """The destination, see :func:`destination_text`. None: the recipe's."""
    month: str | None = None
    """A tag that replaces the recipe's dated ones. None: the current month's."""
    only: tuple[str, ...] = ()
    """Those of the target's tags that move; empty: all."""
    move_tags: bool = True
    """False: publish by digest only, which needs no smoke test."""
    force: bool = False
    """Dated tags may move to another digest."""
    policy: SmokePolicy = "auto"
    """``auto`` tests an image once per machine, ``always`` each time."""
    smoke: SmokeOptions = DEFAULTS
    """How the smoke test runs."""
    ab: bool = False
    """Whether no tag moves if the image is slower than the published one, see
    :meth:`SmokeGate.compare`.
    """
    job: SlurmOptions | None = None
    """The Slurm job that runs the smoke test, after the push. None: it runs on this host, before
    the push.
    """
    verify: VerifyMode = "sent"
    """What is read back before a tag moves: the blobs that were sent, or ``all`` of the image."""
    dry_run: bool = False
    """Build, and report what would be published."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the manifest."""
    known: KnownBlobs = field(default_factory=KnownBlobs)
    """Where the blobs of targets are that were published before: they are not sent again."""

    def place_of(self, recipe: Recipe) -> str:
        """Return where a target is published. Raises UsageError: see :func:`destination_text`."""
        return destination_text(recipe, self.to)

    def tags_of(self, recipe: Recipe) -> TagPlan:
        """Return the tags of a target. Raises UsageError: ``only`` names a tag that it does not
        have.
        """
        return TagPlan.of(recipe, self.month, only=self.only)


@dataclass(frozen=True)
class Published:
    """What publishing a target did."""

    target: str
    reference: str
    """The place, without a tag."""
    digest: str
    """Of the manifest."""
    tags: tuple[str, ...]
    """Those that name ``digest`` now (with ``dry_run``: would name)."""
    push: PushReport | None
    """None: nothing was sent (``dry_run``)."""
    smoke: str
    """The verdict of the smoke test, or ``not run``; ``none``: the recipe says that there is
    none.
    """
    dry_run: bool = False
    attached: Mapping[str, str] = field(default_factory=dict)
    """The digests of the attached artifacts, by their types."""
    before: Mapping[str, str | None] = field(default_factory=dict)
    """What the tags named before, as digests: for a rollback. None: there was no such tag."""
    verified: Verified | None = None
    """What was read back before a tag moved. None: nothing was sent (``dry_run``)."""
    untested: str = ""
    """Why there is no smoke test, from the recipe; empty: there is one."""


def destination_text(recipe: Recipe, to: str | None = None, option: str = "--to") -> str:
    """Return the place of a target: ``oci:DIR`` or ``host/repository``.

    Args:
        recipe: its ``registry`` is the default.
        to: ``HOST/REPOSITORY`` or ``oci:DIR``; one that ends with a slash, ``HOST/`` or
            ``HOST/PROJECT/``, is continued by the recipe's repository.
        option: the name of ``to`` on the command line, for messages.

    Raises:
        UsageError: neither the recipe nor the command line names a registry, or it is not a
            destination.
        RegistryError: it breaks a rule of references.
    """
    to = to or ""
    is_prefix = to.endswith("/") and "://" not in to and not to.startswith(("oci:", ".", "/", "~"))
    if to and not is_prefix:
        check_destination(to, recipe, option)
        return to
    host = to or recipe.registry.host
    if not host:
        raise UsageError(
            f"{recipe.source}: registry.host is not set, and no {option} was given",
            f"pass {option} HOST/REPOSITORY or {option} oci:DIR; or write into the recipe: "
            f"registry: {{host: HOST, repository: {recipe.registry.repository or recipe.name}}}",
        )
    where = f"{host.rstrip('/')}/{recipe.registry.repository or recipe.name}"
    check_destination(where, recipe, option if to else "registry.host")
    return where


def refuse_shared_tags(recipes: Sequence[Recipe], options: PublishOptions) -> None:
    """Refuse targets that would be published under the same tag, before anything is built.

    Raises:
        UsageError: two targets share a tag; the message names both and the tag.
    """
    taken: dict[str, Recipe] = {}
    for recipe in recipes:
        try:
            where = options.place_of(recipe)
        except UsageError:
            continue  # reported when this target is published
        for tag in options.tags_of(recipe).tags:
            other = taken.setdefault(f"{where}:{tag}", recipe)
            if other.name != recipe.name:
                raise UsageError(
                    f"{other.name} and {recipe.name} would both be published as {where}:{tag}",
                    "give each its own registry.repository or registry.tags, and name only the host: "
                    "--to HOST/; or publish them one by one",
                )


def can_build_without_base(recipe: Recipe) -> bool:
    """Return whether the target can be built before the layers of its base are downloaded.

    The layered engine needs only their digests for an OCI image. A SIF contains their files, and
    the other engines run the base.
    """
    return recipe.engine == "layered" and recipe.format == "oci"


def with_base(project: Project, result: BuildResult) -> BuildResult:
    """Return the same build with all layers on this machine; missing base layers are downloaded.

    Raises:
        RegistryError, HashMismatch, SpaceError: see :func:`builder.registry.pull.fetch_layers`.
    """
    if not isinstance(result.artifact, Image):
        return result
    image = fetch_layers(result.artifact, project.store, project.settings, project.reporter)
    return replace(result, artifact=image)


def publish(project: Project, result: BuildResult, options: PublishOptions) -> Published:
    """Publish a built image or SIF.

    Args:
        project: of the target.
        result: the build; layers of its base need not be on this machine.
        options: see :class:`PublishOptions`.

    Raises:
        SmokeError: the smoke test did not pass.
        TagExistsError: a dated tag names another digest, a tag would go back to an older image, or
            another publish moved a tag at the same time.
        HashMismatch, ImageError: what was published is not what its digest says; no tag was moved.
        RegistryError: the registry refuses, or cannot be reached.
        UsageError: no destination is configured.
        LockError: packages of the lock have no SHA-256.
    """
    require_sha256(result.recipe, result.lock)
    place = open_place(
        options.place_of(result.recipe),
        project.settings,
        project.store,
        known=options.known,
        reporter=project.reporter,
    )
    with contextlib.closing(place):
        return _publish_to(place, project, result, options)


def _publish_to(
    place: Place, project: Project, result: BuildResult, options: PublishOptions
) -> Published:
    recipe = result.recipe
    image = artifact_image(result, options.annotations)
    plan = options.tags_of(recipe)
    tags = plan.tags if options.move_tags else ()
    place.prepare_push()
    named: dict[str, str | None] = {}
    if options.move_tags:
        named = check_tags(place, plan, image, force=options.force, reporter=project.reporter)
    done = Published(recipe.name, place.name, image.digest, tags, None, "not run", options.dry_run)
    if options.dry_run:
        return replace(done, before=named)

    gate = SmokeGate(project, options.smoke, options.policy, options.job)
    passed = gate.known(result) if options.move_tags else None
    must_test = options.move_tags and passed is None
    job = gate.prepare_job(place, result, image) if must_test else None
    if options.ab or (must_test and job is None):
        result = with_base(project, result)
        image = artifact_image(result, options.annotations)
    if must_test and job is None:
        passed = gate.run(result)
    previous = _previous(plan, named, image, project) if options.ab and options.move_tags else ""
    if previous and options.job is None:
        gate.compare(place, result, image, previous)
    pushed, verified = push_and_read_back(place, image, project.settings.cache, options.verify)
    if job is not None:
        passed = gate.run_job(place, result, image, job)
    if previous and options.job is not None:
        gate.compare(place, result, image, previous)
    verdict, report = passed or ("not run", None)
    attached = attach_all(place, result, image, report, project)
    must_move = any(digest != image.digest for digest in named.values())
    if must_move:
        named = _move_tags(place, plan, image, named, force=options.force)
    done = replace(
        done, push=pushed, smoke=verdict, attached=attached, before=named, verified=verified
    )
    return replace(done, untested=recipe.smoke.none or "") if verdict == "none" else done


def _previous(
    plan: TagPlan, named: Mapping[str, str | None], image: Image, project: Project
) -> str:
    """Return the digest of the image that the first moving tag names; empty if there is none, or it
    is this one.
    """
    for tag in plan.tags:
        if tag not in plan.fixed:
            digest = named.get(tag) or ""
            if digest not in ("", image.digest):
                return digest
            reason = "names this image" if digest else "names no image yet"
            project.reporter.note(f"not compared with an earlier image: {tag} {reason}")
            return ""
    project.reporter.note("not compared with an earlier image: no tag of the target moves")
    return ""


def _move_tags(
    place: Place, plan: TagPlan, image: Image, before: Mapping[str, str | None], *, force: bool
) -> dict[str, str | None]:
    """Check all tags again (test and push may have taken hours) and moves them.

    If two publishes race, the one whose fixed tags stay is the winner: it moves the other tags
        again.

    Args:
        before: what the tags named at the first check.

    Returns:
        What the tags named before they moved.
    """
    last = dict(before)
    for attempt in range(1, _TRIES + 1):
        named = check_tags(place, plan, image, force=force)
        last |= {tag: digest for tag, digest in named.items() if digest != image.digest}
        try:
            move_all(place, plan.tags, image, named)
            return last
        except TagLost as e:
            if e.tag in plan.fixed or attempt == _TRIES:
                raise
    raise AssertionError("unreachable")


def artifact_image(result: BuildResult, annotations: Mapping[str, str] | None = None) -> Image:
    """Return what is published of a build: its image, or the artifact that contains its SIF.

    Args:
        result: the build.
        annotations: of a SIF's manifest, in addition to the recipe's; an OCI image has its own
            already.
    """
    if result.sif is not None:
        merged = {**result.recipe.annotations, **(annotations or {})}
        return sif_artifact(result.sif, f"{result.recipe.name}.sif", merged)
    assert result.image is not None
    return result.image


def attach_all(
    place: Place,
    result: BuildResult,
    image: Image,
    report: Mapping[str, Any] | None,
    project: Project,
) -> dict[str, str]:
    """Attach SBOM, provenance and report; returns their digests by type.

    If the registry accepts container images only, this reports a warning and does not fail.

    Args:
        place: where the image is.
        result: the build.
        image: what was pushed.
        report: of the smoke test; None: there is none.
        project: of the target.
    """
    statement = provenance(result, image.digest, project.settings.epoch)
    files = [
        AttachedFile("sbom.cdx.json", SBOM, sbom(result.recipe, result.lock, result.base)),
        AttachedFile("provenance.json", PROVENANCE, statement),
    ]
    if report is not None:
        files.append(AttachedFile("smoke.json", SMOKE_REPORT, canonical_json(dict(report)) + b"\n"))
    done: dict[str, str] = {}
    for file in files:
        annotations = {}
        if report and file.media_type == SMOKE_REPORT and report.get("started"):
            annotations = {CREATED: str(report["started"])}
        try:
            artifact = Artifact(file.media_type, [file], annotations)
            done[file.media_type] = place.attach(image.manifest_descriptor, artifact)
        except ArtifactRefused as e:
            project.reporter.warn(
                f"{e.message}: {file.name} is not attached to the image; this registry accepts images only"
            )
            break
    return done
