"""Publishing: blobs and manifest first, then what is said about them, the tags last, and only after the smoke test has passed.

An OCI image goes out as it is, a SIF as an ORAS artifact. Its bill of material, its provenance and the report of the smoke test
are attached to it before a tag names it.

Tags made from a pattern (``%y.%m``) are a month's record: they are not moved to another digest without ``force``.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from builder.config.recipe import Recipe
from builder.engines.base import BuildResult
from builder.errors import SmokeError, TagExistsError, UsageError
from builder.model import Image, canonical_json
from builder.project import Project
from builder.publishing.attest import PROVENANCE, SBOM, SMOKE_REPORT, provenance, sbom
from builder.publishing.destination import Destination, open_destination
from builder.registry.client import ArtifactRefused
from builder.registry.oras import sif_artifact
from builder.registry.push import PushReport
from builder.registry.referrers import CREATED, AttachedFile
from builder.smoke.options import SmokeOptions
from builder.store.files import write_atomic

SmokePolicy = Literal["auto", "always"]


@dataclass(frozen=True)
class Published:
    """What publishing a target did. ``tags`` are those that point at ``digest`` now, the manifest's.

    ``attached`` maps the types of what was said about it to the digests of those artifacts.
    """

    target: str
    reference: str
    digest: str
    tags: tuple[str, ...]
    push: PushReport | None
    smoke: str
    dry_run: bool = False
    attached: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TagPlan:
    """The tags to move. ``fixed`` ones may not move once they are set."""

    tags: tuple[str, ...]
    fixed: frozenset[str]

    @classmethod
    def of(cls, recipe: Recipe, month: str | None = None, today: datetime.date | None = None) -> TagPlan:
        """The recipe's tags for a day (UTC, today by default); ``month`` takes the place of every dated one."""
        today = today or datetime.datetime.now(datetime.UTC).date()
        tags, fixed = [], set()
        for pattern in recipe.registry.tags:
            tag = pattern
            if "%" in pattern:
                tag = month or today.strftime(pattern)
                fixed.add(tag)
            if tag not in tags:
                tags.append(tag)
        if month and month not in tags:
            tags.append(month)
            fixed.add(month)
        # the fixed ones first: `latest` never points at what the month's tag could not be given
        return cls(tuple(sorted(tags, key=lambda t: (t not in fixed, t))), frozenset(fixed))


def destination_text(recipe: Recipe, to: str | None, registry: str | None, option: str = "--to") -> str:
    """Where a target goes: ``oci:DIR``, or ``host/repository``.

    ``to`` names the whole place; ``registry`` only the host, or host and project, before the recipe's repository. ``option`` is
    the name of ``to`` on the command line.

    Raises:
        UsageError: neither the recipe nor the command line names a registry.
    """
    if to:
        return to
    host = registry or recipe.registry.host
    if not host:
        raise UsageError(
            f"{recipe.source}: registry.host is not set, and no --registry or {option} was given",
            f"name the place: --registry HOST[/PROJECT], {option} HOST/REPOSITORY or {option} oci:DIR",
        )
    return f"{host.rstrip('/')}/{recipe.registry.repository or recipe.name}"


def refuse_shared_tags(
    recipes: Sequence[Recipe], to: str | None, registry: str | None, month: str | None = None
) -> None:
    """Refuses targets that would be published as one and the same tag, before anything is built.

    Raises:
        UsageError: two of them; both and the tag are in the message.
    """
    taken: dict[str, str] = {}
    for recipe in recipes:
        try:
            where = destination_text(recipe, to, registry)
        except UsageError:
            continue  # said when its turn comes
        for tag in TagPlan.of(recipe, month).tags:
            if (other := taken.setdefault(f"{where}:{tag}", recipe.name)) != recipe.name:
                raise UsageError(
                    f"{other} and {recipe.name} would both be published as {where}:{tag}",
                    "give each its own registry.repository or registry.tags, and only the host with --registry; "
                    "or publish them one by one",
                )


class SmokeRecord:
    """Remembers which images passed on this machine, so that an unchanged one is not tested again for every push."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "smoke"

    def passed(self, digest: str) -> str | None:
        """The verdict on record when the image passed here, else None."""
        record = self._read(digest)
        return str(record["verdict"]) if record.get("verdict") in ("pass", "warn") else None

    def report(self, digest: str) -> dict[str, Any] | None:
        """The report of that test, when it is still where it was kept."""
        try:
            found = json.loads(Path(str(self._read(digest)["report"])).read_text())
        except (OSError, ValueError, KeyError):
            return None
        return found if _is_report(found, digest) else None

    def keep(self, digest: str, verdict: str, runner: str, report: Path | None = None) -> None:
        """Records a passed test, and where its report lies."""
        data = {"digest": digest, "verdict": verdict, "runner": runner}
        if report is not None:
            data["report"] = str(report.absolute())
        write_atomic(self._path(digest), json.dumps(data, sort_keys=True).encode())

    def _read(self, digest: str) -> dict[str, Any]:
        try:
            record = json.loads(self._path(digest).read_text())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) and record.get("digest") == digest else {}

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest.replace(':', '-')}.json"


def _is_report(value: Any, digest: str) -> bool:
    """Whether this is the report of a passed test of an image."""
    return (
        isinstance(value, dict)
        and value.get("verdict") in ("pass", "warn")
        and isinstance(value.get("image"), dict)
        and value["image"].get("digest") == digest
    )


def kept_report(project: Project, recipe: Recipe, digest: str) -> dict[str, Any] | None:
    """The report of the last passed test of an image on this machine, from the record or from ``reports/``."""
    if (found := SmokeRecord(project.settings.cache).report(digest)) is not None:
        return found
    name = digest.partition(":")[2][:12]
    for path in sorted((project.root / "reports" / recipe.name).glob(f"{name}-*.json"), reverse=True):
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if _is_report(value, digest):
            return dict(value)
    return None


def require_smoke(
    project: Project, result: BuildResult, *, policy: SmokePolicy = "auto", runner: str | None = None
) -> tuple[str, dict[str, Any] | None]:
    """Runs the smoke test unless it passed for this very image on this machine already; gives its verdict and its report.

    Raises:
        SmokeError: it did not pass; no tag may move.
    """
    record = SmokeRecord(project.settings.cache)
    # a SIF and the image that it was made of hold the same files: either may have been tested
    for digest in [a.digest for a in (result.sif, result.image) if a is not None and policy == "auto"]:
        if verdict := record.passed(digest):
            project.reporter.note(f"smoke test: {verdict} (on record for {digest[:19]})")
            return verdict, kept_report(project, result.recipe, digest)
    report = project.smoke(result, SmokeOptions(runner=runner))
    if report.verdict not in ("pass", "warn"):
        raise SmokeError(
            f"the smoke test of {result.recipe.name} says {report.verdict} (runner: {report.runner}); no tag was moved",
            f"see the failed probes: builder smoke {result.recipe.name}; to test it on the target instead: --no-tags",
        )
    record.keep(report.image_digest, report.verdict, report.runner, report.path)
    return report.verdict, report.report


def check_tags(destination: Destination, plan: TagPlan, digest: str, *, force: bool) -> None:
    """Refuses before anything is built or sent what could not be tagged in the end.

    Raises:
        TagExistsError: a fixed tag points at another digest.
    """
    for tag in plan.tags:
        if tag in plan.fixed and not force:
            there = destination.resolve(tag)
            if there is not None and there != digest:
                raise TagExistsError(
                    f"{destination.name}:{tag} exists and is {there[:19]}, not {digest[:19]}",
                    "a month's tag is a record: use another --tag, or --force to overwrite it",
                )


def artifact_image(result: BuildResult, annotations: Mapping[str, str] | None = None) -> Image:
    """What goes out for a build: its image, or the artifact that holds its SIF, with the recipe's annotations and these."""
    if result.sif is not None:
        return sif_artifact(
            result.sif, f"{result.recipe.name}.sif", {**result.recipe.annotations, **(annotations or {})}
        )
    assert result.image is not None
    return result.image


def attach_all(
    destination: Destination,
    result: BuildResult,
    image: Image,
    report: Mapping[str, Any] | None,
    project: Project,
) -> dict[str, str]:
    """Attaches bill of material, provenance and report; gives their types and digests.

    A registry that takes images only is no reason not to publish: it is said, and what was made is returned as far as it went.
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
        when = (
            {CREATED: str(report["started"])}
            if report and file.media_type == SMOKE_REPORT and report.get("started")
            else {}
        )
        try:
            done[file.media_type] = destination.attach(
                image.manifest_descriptor, file.media_type, [file], when
            )
        except ArtifactRefused as e:
            project.reporter.warn(
                f"{e.message}: {file.name} is not attached to the image; this registry takes images only"
            )
            break
    return done


def publish(
    project: Project,
    result: BuildResult,
    *,
    to: str,
    tags: TagPlan,
    policy: SmokePolicy = "auto",
    runner: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    move_tags: bool = True,
    mount_from: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    opener: Callable[..., Destination] = open_destination,
) -> Published:
    """Publishes a built image or SIF.

    Args:
        to: see :func:`destination_text`.
        tags: which tags to move, see :class:`TagPlan`.
        policy: ``auto`` tests an image once on a machine, ``always`` each time.
        dry_run: says what would be done; nothing is sent and nothing is run.
        move_tags: False sends everything but the tags, and needs no smoke test: the image is there by digest only.
        mount_from: repositories of the same registry that may hold some of the blobs.
        annotations: of a SIF's manifest; an OCI image was given its own when it was built.

    Raises:
        SmokeError, TagExistsError, RegistryError.
    """
    image = artifact_image(result, annotations)
    destination = opener(
        to, project.settings, project.store, mount_from=tuple(mount_from), reporter=project.reporter
    )
    if move_tags:
        check_tags(destination, tags, image.digest, force=force)
    done = Published(result.recipe.name, destination.name, image.digest, (), None, "not run", dry_run)
    if dry_run:
        return replace(done, tags=tags.tags if move_tags else ())
    verdict, smoke_report = (
        require_smoke(project, result, policy=policy, runner=runner) if move_tags else ("not run", None)
    )
    report = destination.push_blobs(image)
    attached = attach_all(destination, result, image, smoke_report, project)
    if move_tags:
        for tag in tags.tags:
            destination.move_tag(tag, image)
    return replace(done, tags=tags.tags if move_tags else (), push=report, smoke=verdict, attached=attached)
