"""``builder verify``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.core.errors import ImageError, UsageError, VerifyError

from .context import Context, context_exit, with_context
from .options import FILE, flag, repeated

if TYPE_CHECKING:
    from builder.core.model import Image
    from builder.deliver.publishing.rebuild import Rebuilt
    from builder.deliver.publishing.verify import Trust, Verification


@click.command()
@click.argument("image", required=False)
@repeated("--key", "keys", type=FILE, metavar="FILE")
@flag("--rebuild")
@with_context
def verify(context: Context, image: str | None, keys: tuple[Path, ...], rebuild: bool) -> None:
    """Verify a published image: its signature, and what is attached to it.

    IMAGE is TARGET, TARGET:TAG, HOST/REPOSITORY:TAG or HOST/REPOSITORY@DIGEST. Exit with 15 if
    anything is missing or wrong.
    """
    from builder.deliver.publishing.published import read_published
    from builder.deliver.publishing.pull import open_reference
    from builder.deliver.publishing.verify import Subject
    from builder.deliver.publishing.verify import verify as verify_image

    trust, reference = _trust(context, keys), _reference(context, image)
    with open_reference(reference, context.work, "IMAGE") as (place, ref):
        found = read_published(place, ref)
        subject = Subject.of(place, ref, found)
        done = verify_image(subject, trust)
        rebuilt = _rebuild(context, done, found) if rebuild and done.passed else None
    lines = [f"{subject.name} is {subject.digest}"]
    for check in done.checks:
        lines.append(f"  {'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.seen}")
    value = done.to_json()
    if rebuilt is not None:
        lines += rebuilt_lines(rebuilt)
        value |= {"rebuilt": rebuilt.to_json()}
    context.output.result(value, "\n".join(lines))
    if not done.passed or (rebuilt is not None and not rebuilt.equal):
        context_exit(VerifyError.exit_code)


def _reference(context: Context, image: str | None) -> str:
    """Return the reference of the image that the command names."""
    from builder.deliver.publishing.published import published_reference

    if image is None or not re.search("[:/@]", image):
        image = f"{context.project.one_recipe(image).name}:latest"
    reference = published_reference(image, lambda: context.project)
    if not reference:
        hint = "write TARGET, TARGET:TAG or HOST/REPOSITORY:TAG"
        raise UsageError(f"{image} names no published image", hint)
    return reference


def _rebuild(context: Context, done: Verification, image: Image) -> Rebuilt:
    """Build a verified image again from what its release names."""
    from builder.deliver.publishing.rebuild import rebuild
    from builder.deliver.publishing.release import LOCK, PROVENANCE
    from builder.deliver.publishing.verify import read_document

    assert done.release is not None
    try:
        lock = read_document(done.subject, done.release.attached, LOCK)
        provenance = read_document(done.subject, done.release.attached, PROVENANCE)
    except ImageError as e:
        problem = f"{done.subject.name} cannot be built again: lock or provenance {e.message}"
        raise VerifyError(problem, "publish it again with this version of builder") from None
    return rebuild(image, lock, provenance, context.root or Path.cwd(), context.work)


def rebuilt_lines(rebuilt: Rebuilt) -> list[str]:
    """Return what a rebuild showed, for people."""
    if rebuilt.equal:
        return ["  ok      rebuild: the same manifest, from the attached lock"]
    lines = [f"  FAILED  rebuild: {rebuilt.problem or f'made {rebuilt.found}'}"]
    for part in (*rebuilt.layers, *rebuilt.config):
        lines.append(f"    {part.name}: {part.expected or 'none'}, rebuilt: {part.found or 'none'}")
    return [*lines, *(f"    {cause}" for cause in rebuilt.causes)]


def _trust(context: Context, keys: tuple[Path, ...]) -> Trust:
    """Return the policy of the command line, or of the project."""
    from builder.deliver.publishing.verify import Trust
    from builder.lock.config.policy import POLICY_FILE, Policy

    if keys:
        return Trust.of(Policy(keys=tuple(str(key.absolute()) for key in keys)))
    found = Trust.find(context.root) if context.root else None
    if found is None:
        hint = "name the public key that may sign: --key FILE"
        raise UsageError(f"there is no {POLICY_FILE} here, so nothing says who may sign", hint)
    return found
