"""``builder promote`` and ``builder rollback``."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from .context import Context, target_argument, with_context
from .options import decorated, flag, option, repeated, tag_option
from .output import agreed
from .signing import sign_option, signing_key

if TYPE_CHECKING:
    from builder.deliver.publishing.promote import Plan, TagMoves

_OPTIONS = decorated(
    option("--to"),
    sign_option,
    flag("-y", "--yes"),
    flag("--dry-run"),
    with_context,
)


@click.command()
@target_argument
@option("--from", "origin", metavar="TAG", default="candidate", show_default=True)
@tag_option
@repeated("--only", metavar="TAG")
@flag("--force")
@_OPTIONS
def promote(context: Context, /, target: str | None, **values: Any) -> None:
    """Move the tags of TARGET to its candidate. Nothing is built or uploaded.

    The candidate is what `builder publish TARGET --only candidate` published. Its attached smoke
    report must say that it passed.
    """
    from builder.deliver.publishing.promote import plan_promotion

    _move(context, target, plan_promotion, **values)


@click.command()
@target_argument
@option("--back-to", "origin", metavar="TAG", default="")
@_OPTIONS
def rollback(context: Context, /, target: str | None, **values: Any) -> None:
    """Move the tags of TARGET back to what they named before the last release.

    That is in the release record, which is attached to the image in the registry.
    """
    from builder.deliver.publishing.promote import plan_rollback

    _move(context, target, plan_rollback, **values)


def _move(
    context: Context,
    target: str | None,
    plan: Plan,
    *,
    to: str | None,
    yes: bool,
    dry_run: bool,
    **values: Any,
) -> None:
    """Plan the moves, show them, ask, and execute them; ``values`` are fields of the options."""
    from builder.deliver.publishing.destination import destination_text, open_destination
    from builder.deliver.publishing.promote import ReleaseOptions

    options = ReleaseOptions(key=signing_key(values.pop("sign")), **values)
    recipe = context.project.one_recipe(target)
    work, where = context.project.work, destination_text(recipe, to)
    with closing(open_destination(where, work)) as place:
        moves = plan(recipe, place, options, context.output)
        context.output.text(_shown(moves))
        seal = moves.seal
        is_needed = seal.is_needed(moves.named)
        question = "Move the tags?" if moves.moving else "Sign it?"
        moves_now = is_needed and not dry_run and (yes or agreed(question))
        before = moves.execute() if moves_now else moves.named
    value = {"target": recipe.name, "reference": place.name, "digest": seal.tagging.image.digest}
    more = {"tags": list(moves.named), "before": dict(before), "moved": moves_now}
    more |= {"action": seal.action, "signed": moves_now and options.key is not None}
    context.output.result(value | more)
    if not dry_run:
        context.output.note(_done(moves, is_needed, moves_now))


def _done(moves: TagMoves, is_needed: bool, is_done: bool) -> str:
    """Return what was done, for people."""
    moved = f"moved {', '.join(moves.moving)}" if is_done and moves.moving else "no tag was moved"
    if moves.seal.signer.key is None or is_done != is_needed:  # the answer was no
        return moved
    return f"{moved}; signed{'' if is_done else ' a few days ago, and not again'}"


def _shown(moves: TagMoves) -> str:
    """Return what will move, for people."""
    seal, goal = moves.seal, moves.seal.tagging.image.digest
    lines = [f"{seal.action} {seal.target}: {seal.tagging.destination.name}@{goal}"]
    lines += [f"  smoke test: {moves.smoke}"] if moves.smoke else []
    for tag, before in moves.named.items():
        now = before[:19] if before else "new"
        change = "names it already" if before == goal else f"{now} -> {goal[:19]}"
        lines.append(f"  {tag}: {change}")
    return "\n".join([*lines, *(f"  {note}" for note in moves.notes)])
