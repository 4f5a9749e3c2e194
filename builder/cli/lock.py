"""``builder lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, common_options, complete_target, context_exit, pass_context
from builder.errors import LockError

if TYPE_CHECKING:
    from builder.config.recipe import Recipe


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option(
    "--check", is_flag=True, help="Only say whether the locks are those of their sources; exit 4 if not."
)
@click.option(
    "--update", multiple=True, metavar="NAME", help="Move this package, and what it must, and nothing else."
)
@click.option("--update-base", is_flag=True, help="Pin what the base reference holds now; packages stay.")
@click.option(
    "--exclude-newer", metavar="DATE", help="Solve as of a date (YYYY-MM-DD), instead of the recipe's."
)
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
    """Solve environments and write conda-lock v1 lock files (all targets by default)."""
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
        base = made.base.digest if made.base else None
        return {
            "target": recipe.name,
            "lock": recipe.lock_path,
            "digest": made.digest,
            "packages": count,
            "base": base,
        }

    context.each(recipes, lock_one, as_list=True)


def _checked(context: Context, recipe: Recipe) -> dict[str, Any]:
    reasons = context.project.stale(recipe)
    context.output.text(
        f"{recipe.name}: {'[red]stale[/red]: ' + '; '.join(reasons) if reasons else '[green]fresh[/green]'}"
    )
    return {"target": recipe.name, "lock": recipe.lock_path, "fresh": not reasons, "reasons": reasons}
