"""The layers of a target, for ``builder build --dry-run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cli.context import Context
from builder.progress import working
from builder.text import Table, human_bytes

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.layers.grouping import LayerPlan
    from builder.model import Lock


def print_plan(context: Context, recipe: Recipe, lock_file: Path | None = None) -> dict[str, Any]:
    """Print the layers that a target's packages would be built into. Downloads and builds nothing.

    Returns:
        The same as JSON.
    """

    from builder.bytecode.layers import layers_for_packages
    from builder.engines.layered import layer_budget
    from builder.engines.prepare import ordered_packages
    from builder.fetch.sizes import head_sizes
    from builder.layers.grouping import plan_lock
    from builder.lock.environment import find_links
    from builder.lock.urls import url_variables

    lock, _ = context.project.packages_of(recipe, lock_file)
    if lock.record.left_out:
        context.output.note(f"{recipe.name}: {lock.record.left_out}")
    packages = ordered_packages(recipe, lock)
    with working(context.output, "asking for the sizes of packages"):
        sizes = head_sizes(
            packages,
            context.project.work,
            find_links=find_links(recipe),
            variables=url_variables(recipe),
        )
    budget = layers_for_packages(layer_budget(1, recipe.step_count))
    plans = plan_lock(packages, sizes, recipe.layers, budget=budget)

    unknown = sum(sizes.get(p.key) is None for p in packages)
    system, steps = _os_packages(recipe, lock), _steps(recipe)
    table = Table(("layer", "packages", "archives"))
    for layer in plans:
        table.rows.append((layer.title, str(len(layer.packages)), _size(layer, sizes)))
    context.output.table(table)
    if system:
        context.output.text(f"OS packages: {', '.join(system)}")
    for step in steps:
        context.output.text(f"step: {step}")
    if unknown:
        context.output.warn(
            f"{unknown} archives have an unknown size: they are not in the cache, and their servers do not "
            "report it. They count as small here; in a build, each large one gets a separate layer"
        )
    if recipe.bytecode != "none":
        context.output.note(
            "a build adds layers of compiled modules: only a build knows their number"
        )
    context.output.text(f"{recipe.name}: {len(packages)} packages in {len(plans)} layers")
    return {
        "target": recipe.name,
        "packages": len(packages),
        "layers": [_row(layer, sizes) for layer in plans],
        "unknown_sizes": unknown,
        "os_packages": system,
        "steps": steps,
    }


def _os_packages(recipe: Recipe, lock: Lock) -> list[str]:
    """Return the OS packages that builder adds to the base: of the lock, else the recipe's
    names.
    """
    locked = lock.record.os_packages
    if locked is None:
        return list(recipe.base_packages)
    return [f"{package.name} {package.version}" for package in locked]


def _steps(recipe: Recipe) -> list[str]:
    """Return the names of what runs in the image while it is built, in order."""
    from builder.steps.recipe import recipe_steps

    below, above = recipe_steps(recipe)
    return [f"{step.name}{' (with network)' if step.network else ''}" for step in (*below, *above)]


def _size(layer: LayerPlan, sizes: Mapping[str, int | None]) -> str:
    """Return ``1.5 MB``, ``2 unknown`` or ``1.5 MB + 2 unknown``."""
    total, unknown = layer.archive_bytes(sizes)
    words = []
    if unknown < len(layer.packages):
        words.append(human_bytes(total))
    if unknown:
        words.append(f"{unknown} unknown")
    return " + ".join(words)


def _row(layer: LayerPlan, sizes: Mapping[str, int | None]) -> dict[str, object]:
    total, unknown = layer.archive_bytes(sizes)
    return {
        "title": layer.title,
        "packages": [p.name for p in layer.packages],
        "archive_bytes": total,
        "unknown": unknown,
    }
