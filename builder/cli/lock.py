"""``builder lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import (
    Context,
    common_options,
    complete_target,
    context_exit,
    pass_context,
    wishes_options,
)
from builder.errors import LockError

if TYPE_CHECKING:
    from builder.config.recipe import Recipe


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option(
    "--check", is_flag=True, help="Check whether lock files are up to date; exit 4 if any is stale."
)
@click.option(
    "--update",
    multiple=True,
    metavar="NAME",
    help="Update only this package and the dependencies that have to change with it.",
)
@click.option(
    "--update-base", is_flag=True, help="Pin the current digest of the base image; packages stay as they are."
)
@click.option(
    "--exclude-newer",
    metavar="DATE",
    help="Ignore packages published after this date (YYYY-MM-DD). Replaces the recipe's exclude_newer.",
)
@wishes_options
@common_options
@pass_context
def lock(
    context: Context,
    names: tuple[str, ...],
    check: bool,
    update: tuple[str, ...],
    update_base: bool,
    exclude_newer: str | None,
) -> None:
    """Solve environments and write lock files in conda-lock v1 format (default: all targets)."""
    project = context.project
    recipes = [r for r in project.recipes(names) if names or not r.lock]
    if check:
        results = [_checked(context, r) for r in recipes]
        context.output.result(results)
        if not all(r["fresh"] for r in results):
            context_exit(LockError.exit_code)
        return

    def lock_one(recipe: Recipe) -> dict[str, Any]:
        made = project.lock(recipe, update=update, update_base=update_base, exclude_newer=exclude_newer)
        count = {m: sum(p.manager == m for p in made.packages) for m in ("conda", "pip")}
        context.output.text(
            f"{recipe.name}: {count['conda']} conda and {count['pip']} pip packages -> {recipe.lock_path}"
        )
        return {
            "target": recipe.name,
            "lock": recipe.lock_path,
            "digest": made.digest,
            "packages": count,
            "base": made.base.digest if made.base else None,
        }

    context.each(recipes, lock_one, as_list=True)


def _checked(context: Context, recipe: Recipe) -> dict[str, Any]:
    reasons = context.project.stale(recipe)
    state = f"[red]stale[/red]: {'; '.join(reasons)}" if reasons else "[green]fresh[/green]"
    context.output.text(f"{recipe.name}: {state}")
    return {"target": recipe.name, "lock": recipe.lock_path, "fresh": not reasons, "reasons": reasons}
