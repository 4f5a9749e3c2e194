"""The layers of a target, for ``builder build --dry-run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cli.context import Context
from builder.progress import working
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.layers.plan import LayerPlan
    from builder.model import Lock


def print_plan(context: Context, recipe: Recipe, lock_file: Path | None = None) -> dict[str, Any]:
    """Print the layers that a target's packages would be built into. Downloads and builds nothing.

    Returns:
        The same as JSON.
    """
    from rich.table import Table

    from builder.bytecode.layers import layers_for_packages
    from builder.engines.layered import layer_budget
    from builder.engines.prepare import ordered_packages
    from builder.fetch.sizes import head_sizes
    from builder.layers.plan import likely_parts, plan_lock
    from builder.lock.environment import find_links
    from builder.lock.urls import url_variables

    project = replace(context.project, says_left_out=True)
    lock, _ = project.packages_of(recipe, lock_file)
    packages = ordered_packages(recipe, lock)
    with working(context.output, "asking for the sizes of packages"):
        sizes = head_sizes(
            packages,
            context.settings,
            project.store,
            find_links=find_links(recipe),
            variables=url_variables(recipe),
        )
    budget = layers_for_packages(layer_budget(1, recipe.step_count))
    plans = plan_lock(packages, sizes, recipe.layers, budget=budget, parts=likely_parts(sizes))

    unknown = sum(sizes.get(p.key) is None for p in packages)
    rows = [_row(layer, sizes) for layer in plans]
    result = {"target": recipe.name, "packages": len(packages), "layers": rows, "unknown_sizes": unknown}
    if recipe.bytecode != "none":
        result["bytecode"] = recipe.bytecode
    if system := _os_packages(recipe, lock):
        result["os_packages"] = system
    if recipe.step_count:
        result["steps"] = _steps(recipe)
    table = Table("layer", "packages", "archives", box=None)
    for layer in plans:
        table.add_row(layer.title, str(len(layer.packages)), _size(layer, sizes))
    context.output.table(table)
    _print_system_and_steps(context, system, _steps(recipe))
    if unknown:
        context.output.warn(
            f"{unknown} archives have an unknown size: they are not in the cache, and their servers do not "
            "report it. They count as small here; in a build, each large one gets a separate layer"
        )
    _note_what_a_build_knows(context, recipe, plans)
    context.output.text(f"{recipe.name}: {len(packages)} packages in {len(rows)} layers")
    return result


def _note_what_a_build_knows(context: Context, recipe: Recipe, plans: Sequence[LayerPlan]) -> None:
    if recipe.bytecode != "none":
        context.output.note(
            f"bytecode: {recipe.bytecode} adds layers of compiled modules: only a build knows their number"
        )
    if any(layer.parts > 1 for layer in plans):
        context.output.note(
            "the parts of a package (1/2) are an estimate: only a build knows the sizes of the files"
        )


def _print_system_and_steps(
    context: Context, system: Sequence[str], steps: Sequence[Mapping[str, Any]]
) -> None:
    from rich.markup import escape

    if system:
        context.output.text(f"OS packages: {escape(', '.join(system))}")
    for step in steps:
        network = " (with network)" if step["network"] else ""
        context.output.text(f"step: {escape(step['title'])}{network}")


def _os_packages(recipe: Recipe, lock: Lock) -> list[str]:
    """The OS packages that builder adds to the base: of the lock, else the recipe's names."""
    from builder.lock.ospackages import os_packages

    locked = os_packages(lock)
    if locked is None:
        return list(recipe.base_packages)
    return [f"{package.name} {package.version}" for package in locked]


def _steps(recipe: Recipe) -> list[dict[str, Any]]:
    """What runs in the image while it is built, in order."""
    from builder.steps.recipe import recipe_steps

    scripts = [name for name, policy in recipe.conda.post_link.items() if policy == "run"]
    below, above = recipe_steps(recipe)
    return [
        *({"title": f"post-link script of {name}", "commands": [], "network": False} for name in scripts),
        *(
            {"title": step.name, "commands": step.commands, "network": step.network}
            for step in (*below, *above)
        ),
    ]


def _size(layer: LayerPlan, sizes: Mapping[str, int | None]) -> str:
    """Returns ``1.5 MB``, ``2 unknown`` or ``1.5 MB + 2 unknown``."""
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
        "estimated": layer.parts > 1,
    }
