"""Publishes images: first the blobs and the manifest, then what is attached, and the tags last.

No tag moves before the smoke test has passed and what was sent has been read back, see
:func:`publish`. The test runs before the push, or after it if it is a Slurm job, which runs the
published image. An OCI image is published unchanged, a SIF as an ORAS artifact. The SBOM, the
provenance and the report of the smoke test are attached before a tag names the image.

The layers of a base image in a registry are downloaded only when something needs them: the smoke
test on this host, an OCI layout, or (a few of them) the SBOM. A registry without them gets them
from the base's registry while they are read. An image has the same digest with and without them on
this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from builder.build.engines.base import BuildResult
from builder.core.errors import UsageError
from builder.core.stages import BuildOptions
from builder.deliver.history import record_image
from builder.deliver.project import Project
from builder.deliver.smoke.options import DEFAULTS, SlurmOptions, SmokeOptions
from builder.formats.registry.push import KnownBlobs, PushReport
from builder.lock.config.policy import POLICY_FILE
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import require_sha256

from .attest import attach_all
from .destination import destination_text, open_destination
from .keys import SigningKey
from .read_back import Verified, push_and_read_back
from .reuse import reusing
from .seal import Seal, Signer
from .smoke_record import known_verdict
from .tags import Tagging, TagPlan
from .testers import Release, ReleaseTest, SmokePolicy, earlier_image
from .verify import Trust


@dataclass(frozen=True)
class PublishOptions:
    """The options of publishing; the same for all targets of one command.

    Attributes:
        to: the destination, see :func:`destination_text`; None: the recipe's.
        month: a tag that replaces the recipe's dated ones; None: the current month's.
        only: those of the target's tags that move; empty: all.
        move_tags: False: publish by digest only, which needs no smoke test.
        force: dated tags may move to another digest, and ``latest`` back to an older image.
        policy: ``auto`` tests an image once per machine, ``always`` each time.
        smoke: the options of the smoke test.
        ab: run the published image and this one in turn; no tag moves if this one is slower.
        job: the Slurm job that tests the image after the push; None: this host tests it before.
        dry_run: build, and report what would be published.
        annotations: annotations of the image's manifest, in addition to the recipe's.
        sign: the key that signs the release; None: it is not signed.
        known: blobs that this command has pushed, and where: they are not sent again.
    """

    to: str | None = None
    month: str | None = None
    only: tuple[str, ...] = ()
    move_tags: bool = True
    force: bool = False
    policy: SmokePolicy = "auto"
    smoke: SmokeOptions = DEFAULTS
    ab: bool = False
    job: SlurmOptions | None = None
    dry_run: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    sign: SigningKey | None = None
    known: KnownBlobs = field(default_factory=dict)

    def destination_of(self, recipe: Recipe) -> str:
        """Return the destination of a target. Raises UsageError: see :func:`destination_text`."""
        return destination_text(recipe, self.to)

    def tags_of(self, recipe: Recipe) -> TagPlan:
        """Return the tags of a target that move.

        Raises:
            UsageError: ``only`` names a tag that the target does not have.
        """
        plan = TagPlan.of(recipe, self.month).only(self.only, recipe.name)
        return plan if self.move_tags else replace(plan, tags=())


@dataclass(frozen=True)
class Published:
    """The result of publishing a target.

    Attributes:
        target: the name of the target.
        reference: the destination, without a tag.
        digest: ``sha256:...`` of the manifest.
        tags: the tags that name ``digest`` now (with ``dry_run``: would name).
        push: blobs and bytes that were sent, and the seconds that it took; None: nothing was sent
            (``dry_run``).
        smoke: the verdict of the smoke test, or ``not run``; ``none``: the recipe has no test.
        dry_run: whether nothing was published, because the options say so.
        attached: the digests of the attached artifacts, by their types.
        before: the digests that the tags named before; None: there was no such tag.
        signed: whether the release is signed.
        verified: blobs and bytes that were read back before a tag moved, and the seconds that it
            took; None: nothing was sent (``dry_run``).
        untested: the recipe's reason for having no smoke test; empty: there is one.
    """

    target: str
    reference: str
    digest: str
    tags: tuple[str, ...]
    push: PushReport | None = None
    smoke: str = "not run"
    dry_run: bool = False
    attached: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str | None] = field(default_factory=dict)
    signed: bool = False
    verified: Verified | None = None
    untested: str = ""


def build_to_publish(project: Project, recipe: Recipe, options: PublishOptions) -> BuildResult:
    """Build a target for :func:`publish`; errors of the destination and of the job come before.

    The layered engine needs only the digests of the base's layers for an OCI image, so they are not
    downloaded. A SIF contains their files, and the other engines run the base.

    Raises:
        UsageError: no destination is configured, no job can run the test, or the policy of the
            project cannot be fulfilled.
    """
    where = options.destination_of(recipe)
    if not options.tags_of(recipe).tags:
        trust = Trust.find(recipe.root)
    else:
        trust = Signer.of(where, recipe.root, options.sign).trust
        if recipe.smoke.none and trust is not None and "smoke" in trust.policy.require:
            problem = f"{POLICY_FILE} requires a smoke test, and target {recipe.name} has none"
            hint = "write smoke: into the recipe, or remove smoke from require: in the policy"
            raise UsageError(problem, hint)
    if options.job is not None:
        from builder.deliver.smoke.slurm import check_smoke_job

        check_smoke_job(recipe, options.job, options.smoke)
    download_base = recipe.engine != "layered" or recipe.format != "oci"
    work = reusing(project.work, recipe, where, trust)
    strict = replace(project, changed_code="refuse", build_work=work)
    build = BuildOptions(annotations=options.annotations, download_base=download_base)
    return strict.build(recipe, build)


def publish(project: Project, result: BuildResult, options: PublishOptions) -> Published:
    """Publish a built image or SIF. The tags are checked first, before anything expensive.

    With ``--no-tags`` the plan has no tags: nothing is tested, and none moves.

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
        VerifyError: the release does not fulfil the policy of the project; no tag was moved.
    """
    require_sha256(result.recipe, result.lock)
    recipe, plan, work = result.recipe, options.tags_of(result.recipe), project.work
    where = options.destination_of(recipe)
    with contextlib.closing(open_destination(where, work, known=options.known)) as destination:
        release, name = Release(result, options.annotations), destination.name
        # without tags nothing is released
        signer = Signer.of(name, recipe.root, options.sign) if plan.tags else Signer()
        tagging = Tagging(destination, plan, release.image, options.force)
        before = tagging.check(work.reporter)
        done = Published(recipe.name, name, release.image.digest, plan.tags, before=before)
        if options.dry_run:
            return replace(done, dry_run=True)

        test = None
        if options.move_tags:
            again, signed = options.policy == "always", options.sign is not None
            known = known_verdict(project, result, again=again, signed=signed)
            previous = earlier_image(tagging, before, work.reporter) if options.ab else None
            test = ReleaseTest(project, destination, options.smoke, options.job, known, previous)
            release = test.before_push(release)
        pushed, verified = push_and_read_back(destination, release.image, work.settings.cache)
        if test is not None:
            release = test.after_push(release)
        attached = attach_all(destination, release, project, signer.trust)
        if plan.tags:
            release.require_verdict()
        seal = Seal(replace(tagging, image=release.image), recipe.name, "publish", signer, attached)
        before = seal.tagging.move(before, seal.record)
    record_image(project.root, result, plan.tags)
    return replace(
        done,
        push=pushed,
        smoke=release.verdict,
        attached=attached,
        before=before,
        verified=verified,
        signed=signer.key is not None,
        untested=(recipe.smoke.none or "") if release.verdict == "none" else "",
    )


def refuse_shared_tags(recipes: Sequence[Recipe], options: PublishOptions) -> None:
    """Refuse targets that would be published under the same tag, before anything is built.

    Raises:
        UsageError: two targets share a tag; the message names both and the tag.
    """
    taken: dict[str, Recipe] = {}
    for recipe in recipes:
        try:
            where = options.destination_of(recipe)
        except UsageError:
            continue  # reported when this target is published
        for tag in options.tags_of(recipe).tags:
            other = taken.setdefault(f"{where}:{tag}", recipe)
            if other.name != recipe.name:
                raise UsageError(
                    f"{other.name} and {recipe.name} would both be published as {where}:{tag}",
                    "give each its own registry.repository or registry.tags, and name only the "
                    "host: --to HOST/; or publish them one by one",
                )
