"""The steps of a recipe, and whether this machine can run the programs of its image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.core.errors import RunnerError
from builder.formats.qemu import emulation
from builder.lock.config.recipe import Recipe
from builder.lock.config.yamlfile import place_of

if TYPE_CHECKING:
    from .run import StepRun


def recipe_steps(recipe: Recipe) -> tuple[list[StepRun], list[StepRun]]:
    """Return the steps below the recipe's ``files:``, and those from the first that uses them."""
    if not recipe.steps:
        return [], []
    from .run import StepRun  # with the runners: not for a recipe without steps

    runs = []
    for number, step in enumerate(recipe.steps):
        where = place_of(recipe.source, "steps", number)
        run = StepRun(step.run, step.env, step.network, title=step.title, where=where)
        runs.append(replace(run, compression=recipe.layers.compression))
    first = next((n for n, step in enumerate(recipe.steps) if step.files), len(runs))
    return runs[:first], runs[first:]


def check_step_architecture(recipe: Recipe) -> None:
    """Check that the programs of the image can run here, with qemu if necessary.

    Raises:
        RunnerError: The recipe has steps, or modules are compiled, and this machine cannot run the
            programs.
    """
    if recipe.steps:
        check_processor(recipe, place_of(recipe.source, "steps"))
    elif recipe.bytecode != "none":
        where = f"{recipe.source}: the image's Python compiles its modules"
        check_processor(recipe, where, "; or write in the recipe: bytecode: none")


def check_processor(recipe: Recipe, where: str, otherwise: str = "") -> None:
    """Check that programs for the target's processor can run here.

    Args:
        recipe: the target.
        where: file, line and key of what needs this, for the message.
        otherwise: how to do without, for the hint.

    Raises:
        RunnerError: they cannot; the hint names what to install.
    """
    try:
        emulation(recipe.architecture)
    except RunnerError as e:
        raise RunnerError(f"{where}: {e.message}", f"{e.hint}{otherwise}") from None
