"""``builder lock``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.core.errors import LockError
from builder.core.stages import LockOptions

from .context import Context, complete_target, context_exit, with_context
from .options import FILE, choice, flag, option, repeated

if TYPE_CHECKING:
    from builder.core.model import Lock
    from builder.lock.changes import LockChanges
    from builder.lock.config.recipe import Recipe


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@flag("--check")
@repeated("--update", metavar="NAME")
@flag("--update-base")
@option("--exclude-newer", metavar="DATE")
@choice("--solver", of=["rattler", "conda-lock"], default="rattler")
@option("--changes", "changes_file", type=FILE, metavar="FILE.md")
@with_context
def lock(
    context: Context,
    /,
    names: tuple[str, ...],
    check: bool,
    changes_file: Path | None,
    **options: Any,
) -> None:
    """Solve environments and write lock files in conda-lock v1 format (default: all targets).

    For a recipe with lock: uv.lock (or pixi.lock, pylock.toml, requirements with hashes) it takes the
    packages of that file, and adds what it lacks: Python and the base image.
    """
    from builder.core.store.files import write_output
    from builder.lock.changes import compare_locks
    from builder.lock.file import earlier_lock

    from .markdown import lock_changes

    project = context.project
    recipes = context.chosen_recipes(names) if names else project.recipes()
    if check:
        results = [_checked(context, r) for r in recipes]
        context.output.result(results)
        if not all(r["fresh"] for r in results):
            context_exit(LockError.exit_code)
        return

    sections: list[tuple[str, LockChanges]] = []

    def lock_one(recipe: Recipe) -> dict[str, Any]:
        if recipe.uses_lock_unchanged and not names:
            return _checked(context, recipe)  # another tool makes it
        before = earlier_lock(recipe.lock_path)
        made = project.lock(recipe, LockOptions(**options))
        changes = compare_locks(before, made)
        if changes_file is not None:
            if changes:
                sections.append((recipe.name, changes))
            write_output(changes_file, lock_changes(sections).encode())
        return _report(context, recipe, made, changes if before is not None else None)

    context.each(recipes, lock_one, as_list=True)


def _report(
    context: Context, recipe: Recipe, made: Lock, changes: LockChanges | None
) -> dict[str, Any]:
    """Print a lock that was written, and return it as JSON; ``changes`` is None for a first one."""
    from builder.core.model import BASE_PYTHON

    from .markdown import summary

    packages = [p for p in made.packages if not p.url.startswith(BASE_PYTHON)]
    count = {m: sum(p.manager == m for p in packages) for m in ("conda", "pip")}
    counted = f"{count['conda']} conda and {count['pip']} pip packages"
    system = made.record.os_packages
    if system is not None:
        count["apt"] = len(system)
        counted = f"{len(system)} OS, {counted}"
    context.output.text(f"{recipe.name}: {counted} -> {recipe.lock_path}")
    if made.record.left_out:
        context.output.text(f"  {made.record.left_out}")
    if changes is not None:
        context.output.text(f"  {summary(changes)}")
    return {
        "target": recipe.name,
        "lock": recipe.lock_path,
        "digest": made.digest,
        "packages": count,
        "base": made.base.digest if made.base else None,
        "changes": changes.to_json() if changes is not None else None,
    }


def _checked(context: Context, recipe: Recipe) -> dict[str, Any]:
    reasons = context.project.stale(recipe)
    state = f"stale: {'; '.join(reasons)}" if reasons else "fresh"
    context.output.text(f"{recipe.name}: {state}")
    return {
        "target": recipe.name,
        "lock": recipe.lock_path,
        "fresh": not reasons,
        "reasons": reasons,
    }
