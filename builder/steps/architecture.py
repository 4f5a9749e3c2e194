"""Whether this machine can run the steps of a recipe."""

from __future__ import annotations

from builder.config.recipe import Recipe
from builder.config.yamlfile import place_of
from builder.errors import RunnerError
from builder.qemu import emulation


def check_step_architecture(recipe: Recipe) -> None:
    """Checks that the programs of the image can run here, with qemu if they are for another processor.

    Raises:
        RunnerError: The recipe has steps, and this machine cannot run them.
    """
    if recipe.step_count == 0:
        return
    try:
        emulation(recipe.architecture)
    except RunnerError as e:
        key = ("steps",) if recipe.steps else ("conda", "post_link")
        raise RunnerError(f"{place_of(recipe.source, *key)}: {e.message}", e.hint) from None
