"""``builder promote`` and ``builder rollback``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, target_argument, with_context
from builder.cli.options import decorated, flag
from builder.cli.signing import sign_options, signing_key
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.progress import Reporter
    from builder.publishing.destination import PublishDestination
    from builder.publishing.promote import ReleaseOptions, TagMoves

    Plan = Callable[[Recipe, PublishDestination, ReleaseOptions, Reporter], TagMoves]


_MONTH = click.option(
    "--tag", "month", metavar="YY.MM", help="Tag to use instead of the recipe's dated tags."
)
_ONLY = click.option(
    "--only", multiple=True, metavar="TAG", help="Move only this tag of the recipe, such as latest."
)
_FORCE = flag("--force", help="Allow a dated tag to move, and latest to go back.")
_OPTIONS = decorated(
    click.option(
        "--to",
        help="Where it was published: HOST/REPOSITORY; HOST/ or HOST/PROJECT/ before the recipe's "
        "repository; or oci:DIR.",
    ),
    sign_options,
    flag("-y", "--yes", help="Do not ask (for CI)."),
    flag("--dry-run", help="Print what would move."),
    with_context,
)


@dataclass(frozen=True)
class _Answers:
    """How the command was told to go on."""

    to: str | None
    yes: bool
    dry_run: bool


@click.command()
@target_argument
@click.option(
    "--from",
    "origin",
    metavar="TAG",
    default="candidate",
    show_default=True,
    help="Tag or digest of the image that passed its test.",
)
@_MONTH
@_ONLY
@_FORCE
@_OPTIONS
def promote(
    context: Context,
    target: str | None,
    origin: str,
    month: str | None,
    only: tuple[str, ...],
    force: bool,
    to: str | None,
    sign: Path | None,
    password_file: Path | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Move the tags of TARGET to its candidate. Nothing is built or uploaded.

    The candidate is what `builder publish TARGET --only candidate` published. Its attached smoke
    report must say that it passed.
    """
    from builder.publishing.promote import ReleaseOptions, plan_promotion

    options = ReleaseOptions(origin, month, only, signing_key(sign, password_file), force)
    _move(context, target, plan_promotion, options, _Answers(to, yes, dry_run))


@click.command()
@target_argument
@click.option(
    "--back-to",
    "origin",
    metavar="TAG",
    default="",
    help="Tag or digest to move latest to. Default: what the release record names.",
)
@_OPTIONS
def rollback(
    context: Context,
    target: str | None,
    origin: str,
    to: str | None,
    sign: Path | None,
    password_file: Path | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Move the tags of TARGET back to what they named before the last release.

    That is in the release record, which is attached to the image in the registry.
    """
    from builder.publishing.promote import ReleaseOptions, plan_rollback

    options = ReleaseOptions(origin, key=signing_key(sign, password_file))
    _move(context, target, plan_rollback, options, _Answers(to, yes, dry_run))


def _move(
    context: Context, target: str | None, plan: Plan, options: ReleaseOptions, answers: _Answers
) -> None:
    """Plan the moves, show them, ask, and execute them."""
    from builder.publishing.destination import destination_text, open_destination

    recipe = context.project.one_recipe(target)
    with closing(
        open_destination(destination_text(recipe, answers.to), context.project.work)
    ) as place:
        moves = plan(recipe, place, options, context.output)
        context.output.text(_shown(moves))
        done = bool(moves.moving or options.key) and not answers.dry_run
        if done and not answers.yes:
            done = _agreed("Move the tags?" if moves.moving else "Sign it?")
        before = moves.execute() if done else moves.named
    value: dict[str, Any] = {
        "target": recipe.name,
        "reference": place.name,
        "digest": moves.seal.image.digest,
        "tags": list(moves.named),
        "before": dict(before),
        "moved": done,
    }
    context.output.result(value)
    if not answers.dry_run:
        moved = f"moved {', '.join(moves.moving)}" if done and moves.moving else "no tag was moved"
        context.output.note(f"{moved}; signed" if done and options.key else moved)


def _agreed(question: str) -> bool:
    """Ask the user. Raises UsageError: nobody answers."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError("no terminal to ask at, so no tag was moved", "agree: -y") from None


def _shown(moves: TagMoves) -> str:
    """Return what will move, for people."""
    seal, goal = moves.seal, moves.seal.image.digest
    lines = [f"{seal.action} {seal.target}: {seal.place.name}@{goal}"]
    lines += [f"  smoke test: {moves.smoke}"] if moves.smoke else []
    for tag, before in moves.named.items():
        change = "names it already" if before == goal else f"{before or 'new'} -> {goal[:19]}"
        lines.append(f"  {tag}: {change}")
    return "\n".join([*lines, *(f"  {note}" for note in moves.notes)])
