"""Publishing: blobs and manifest first, the tags last, and only after the smoke test has passed.

Tags made from a pattern (``%y.%m``) are a month's record: they are not moved to another digest without ``force``.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from builder.config.recipe import Recipe
from builder.engines.base import BuildResult
from builder.errors import SmokeError, TagExistsError, UsageError
from builder.registry.destination import Destination, open_destination
from builder.registry.push import PushReport
from builder.store import write_atomic
from builder.workflow import Project

SmokePolicy = Literal["auto", "always"]


@dataclass(frozen=True)
class Published:
    """What publishing a target did. ``tags`` are those that point at ``digest`` now."""

    target: str
    reference: str
    digest: str
    tags: tuple[str, ...]
    push: PushReport | None
    smoke: str
    dry_run: bool = False


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


def destination_text(recipe: Recipe, to: str | None, registry: str | None) -> str:
    """Where a target goes: ``oci:DIR``, or ``host/repository``.

    ``to`` names the whole place; ``registry`` only the host, or host and project, before the recipe's repository.

    Raises:
        UsageError: neither the recipe nor the command line names a registry.
    """
    if to:
        return to
    host = registry or recipe.registry.host
    if not host:
        raise UsageError(
            f"{recipe.source}: registry.host is not set, and no --registry or --to was given",
            "publish with --registry HOST[/PROJECT], --to HOST/REPOSITORY or --to oci:DIR",
        )
    return f"{host.rstrip('/')}/{recipe.registry.repository or recipe.name}"


class SmokeRecord:
    """Remembers which images passed on this machine, so that an unchanged one is not tested again for every push."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "smoke"

    def passed(self, digest: str) -> str | None:
        """The verdict on record when the image passed here, else None."""
        try:
            record = json.loads(self._path(digest).read_text())
        except (OSError, ValueError):
            return None
        verdict = record.get("verdict") if isinstance(record, dict) and record.get("digest") == digest else None
        return str(verdict) if verdict in ("pass", "warn") else None

    def keep(self, digest: str, verdict: str, runner: str) -> None:
        """Records a passed test."""
        data = {"digest": digest, "verdict": verdict, "runner": runner}
        write_atomic(self._path(digest), json.dumps(data, sort_keys=True).encode())

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest.replace(':', '-')}.json"


def require_smoke(project: Project, result: BuildResult, *, policy: SmokePolicy = "auto", runner: str | None = None) -> str:
    """Runs the smoke test unless it passed for this very image on this machine already; gives its verdict.

    Raises:
        SmokeError: it did not pass; no tag may move.
    """
    record = SmokeRecord(project.settings.cache)
    digest = result.image.digest
    if policy == "auto" and (verdict := record.passed(digest)):
        project.reporter.note(f"smoke test: {verdict} (on record for {digest[:19]})")
        return verdict
    report = project.smoke(result, runner=runner)
    if report.verdict not in ("pass", "warn"):
        raise SmokeError(
            f"the smoke test of {result.recipe.name} says {report.verdict} (runner: {report.runner}); no tag was moved",
            f"see the failed probes: builder smoke {result.recipe.name}; to test it on the target instead: --no-tags",
        )
    record.keep(digest, report.verdict, report.runner)
    return report.verdict


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
    opener: Callable[..., Destination] = open_destination,
) -> Published:
    """Publishes a built image.

    Args:
        to: see :func:`destination_text`.
        tags: which tags to move, see :class:`TagPlan`.
        policy: ``auto`` tests an image once on a machine, ``always`` each time.
        dry_run: says what would be done; nothing is sent and nothing is run.
        move_tags: False sends everything but the tags, and needs no smoke test: the image is there by digest only.
        mount_from: repositories of the same registry that may hold some of the blobs.

    Raises:
        SmokeError, TagExistsError, RegistryError.
    """
    image = result.image
    destination = opener(to, project.settings, project.store, mount_from=tuple(mount_from), reporter=project.reporter)
    if move_tags:
        check_tags(destination, tags, image.digest, force=force)
    done = Published(result.recipe.name, destination.name, image.digest, (), None, "not run", dry_run)
    if dry_run:
        return replace(done, tags=tags.tags if move_tags else ())
    verdict = require_smoke(project, result, policy=policy, runner=runner) if move_tags else "not run"
    report = destination.push_blobs(image)
    if move_tags:
        for tag in tags.tags:
            destination.move_tag(tag, image)
    return replace(done, tags=tags.tags if move_tags else (), push=report, smoke=verdict)
