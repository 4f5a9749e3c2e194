"""What an image of a target will hold, for ``builder build --dry-run``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.build.engines.prepare import ordered_packages
from builder.build.steps.recipe import recipe_steps
from builder.core.model import Lock
from builder.core.text import Table
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs

from .context import Context


def print_plan(context: Context, recipe: Recipe, lock_file: Path | None = None) -> dict[str, Any]:
    """Print a target's packages and build steps. Downloads and builds nothing.

    Returns:
        The same as JSON.
    """
    project = replace(context.project, changed_code="ignore")  # builds no wheel
    lock = project.packages_of(Inputs.read(recipe), lock_file)
    if lock.record.left_out:
        context.output.note(f"{recipe.name}: {lock.record.left_out}")
    packages = ordered_packages(recipe, lock)
    rows = [*_os_packages(recipe, lock), *((p.name, p.version, p.manager) for p in packages)]
    below, above = recipe_steps(recipe)
    steps = [f"{step.name}{' (with network)' if step.network else ''}" for step in (*below, *above)]
    context.output.table(Table(("package", "version", "from"), [*rows]))
    for step in steps:
        context.output.text(f"step: {step}")
    context.output.text(f"{recipe.name}: {len(rows)} packages, {len(steps)} steps")
    named = [dict(zip(("name", "version", "manager"), row, strict=True)) for row in rows]
    return {"target": recipe.name, "packages": named, "steps": steps}


def _os_packages(recipe: Recipe, lock: Lock) -> list[tuple[str, str, str]]:
    """Return the OS packages of the lock, else the recipe's names."""
    locked = lock.record.os_packages
    if locked is None:
        return [(name, "", "apt") for name in recipe.base_packages]
    return [(package.name, package.version, "apt") for package in locked]
