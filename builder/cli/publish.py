"""``builder publish``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.build.run import RUNNER_NAMES
from builder.core.errors import UsageError
from builder.core.store.unchanged import asking, give_up
from builder.core.text import human_bytes

from .build import print_build_notes
from .context import Context, complete_target, with_context
from .options import choice, flag, option, origin_options, repeated, tag_option, take_origin
from .signing import sign_option, signing_key
from .slurmoptions import job_options, take_job_options
from .unchanged import repeatable

if TYPE_CHECKING:
    from builder.build.engines.base import BuildResult
    from builder.deliver.publishing.publish import Published, PublishOptions
    from builder.lock.config.recipe import Recipe

#: The fields of a PushReport that ``--json`` prints.
_PUSH_FIELDS = ("blobs_sent", "bytes_sent", "blobs_mounted", "blobs_present", "seconds")


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@repeated("--group", "groups")
@option("--to")
@tag_option
@repeated("--only", metavar="TAG")
@flag("--no-tags")
@flag("--force")
@choice("--smoke", "policy", of=["auto", "always"], default="auto")
@choice("--runner", of=RUNNER_NAMES)
@flag("--ab")
@job_options
@flag("--all-gpus")
@sign_option
@flag("--dry-run")
@origin_options
@with_context
@repeatable
def publish(
    context: Context,
    /,
    names: tuple[str, ...],
    groups: tuple[str, ...],
    no_tags: bool,
    runner: str | None,
    all_gpus: bool,
    sign: Path | None,
    **values: Any,
) -> None:
    """Build, smoke-test and push targets, then move their tags. No tag moves unless the smoke test
    passed.

    Without TARGET it publishes the only target of the project.
    With --on slurm the image is pushed first, and a job tests it by its digest.
    """
    from builder.deliver.publishing.publish import PublishOptions, refuse_shared_tags
    from builder.deliver.smoke.options import SmokeOptions

    job = take_job_options(values, runner=runner)  # the others are fields of PublishOptions
    if values["only"] and no_tags:
        raise UsageError("--only and --no-tags exclude each other", "omit one of them")
    if values["ab"] and no_tags:
        hint = "omit one of them"
        raise UsageError("--ab and --no-tags exclude each other: --no-tags tests nothing", hint)
    annotations = take_origin(values)
    options = PublishOptions(
        **values,
        move_tags=not no_tags,
        smoke=SmokeOptions(runner=runner, all_gpus=all_gpus),
        job=job,
        sign=signing_key(sign),
        annotations=annotations,
    )
    recipes = context.chosen_recipes(names, groups)
    if options.move_tags:
        refuse_shared_tags(recipes, options)
    context.each(recipes, lambda recipe: publish_one(context, recipe, options))


def publish_one(
    context: Context,
    recipe: Recipe,
    options: PublishOptions,
    agreed: Callable[[str], bool] = lambda question: True,
) -> dict[str, Any]:
    """Build and publish one target, and print the report; return what ``--json`` prints.

    Args:
        context: of the command.
        recipe: the target.
        options: of the command.
        agreed: asks the user before anything is pushed; if it returns False, the build stays on
            this machine.
    """
    from builder.deliver.publishing.publish import build_to_publish
    from builder.deliver.publishing.publish import publish as publish_image

    result = build_to_publish(context.project, recipe, options)
    print_build_notes(context, result)
    where, tags = options.destination_of(recipe), ", ".join(options.tags_of(recipe).tags)
    if not agreed(f"Smoke-test {recipe.name} and publish it to {where} as {tags}?"):
        return _not_published(context, result)
    with asking():
        done = publish_image(context.project, result, options)
    _note_tags(context, done, options)
    context.output.text("\n".join(_lines(done)))
    push = {name: getattr(done.push, name) for name in _PUSH_FIELDS} if done.push else None
    return {**asdict(done), "push": push, "build_seconds": result.timings}


def _note_tags(context: Context, done: Published, options: PublishOptions) -> None:
    """Note the tags that the next publish has to ask for, if it may do nothing else."""
    has_moved = any(before != done.digest for before in done.before.values())
    asks_more = options.sign or options.ab or options.job or options.policy == "always"
    if has_moved or asks_more or not done.tags or done.push is None or done.push.blobs_sent:
        give_up("this publish did something, or was asked to")
    context.published.append((done.reference, done.digest, done.tags))


def _not_published(context: Context, result: BuildResult) -> dict[str, Any]:
    """Put the build into ``dist/``, and print where."""
    from builder.deliver.publishing.testers import Release

    name = result.recipe.name
    place = context.project.place(Release(result).with_base(context.project).result)
    shown = str(place) if result.sif else f"oci:{place}:{name}"
    context.output.note(f"{name} is built, not published: {shown}")
    return {"target": name, "digest": result.digest, "published": False}


def _lines(done: Published) -> list[str]:
    """Return the report of one target, for people."""
    from builder.deliver.publishing.release import TITLES

    verb = "would be" if done.dry_run else "is"
    lines = [f"{done.target} {verb} {done.reference}@{done.digest}"]
    if done.tags:
        smoke = (
            f"not smoke-tested: {done.untested}" if done.untested else f"smoke test: {done.smoke}"
        )
        lines.append(f"  tags: {', '.join(done.tags)}; {smoke}")
    if done.push:
        p = done.push
        lines.append(
            f"  sent {p.blobs_sent} blobs, {human_bytes(p.bytes_sent)}; "
            f"{p.blobs_mounted} mounted, {p.blobs_present} already there; {p.seconds:.1f} s"
        )
    if done.verified and done.verified.blobs:
        v = done.verified
        lines.append(f"  read back {v.blobs} blobs, {human_bytes(v.bytes)}; {v.seconds:.1f} s")
    if done.attached:
        lines.append(f"  attached: {', '.join(TITLES[kind] for kind in done.attached)}")
    if done.signed:
        lines.append("  signed")
    return [*lines, *_rollback(done)]


def _rollback(done: Published) -> list[str]:
    """Return the digests that the tags named before, and the command that undoes the moves."""
    from builder.deliver.publishing.tags import CANDIDATE

    lines = []
    for tag, digest in done.before.items():
        if digest in (None, done.digest):
            continue
        verb = "names" if done.dry_run else "named"
        lines.append(f"  {tag} {verb} {digest}{'' if done.dry_run else ' before'}")
    if lines and not done.dry_run and CANDIDATE not in done.tags:
        lines.append(f"    to undo: builder rollback {done.target} --to {done.reference}")
    return lines
