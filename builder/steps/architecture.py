"""Whether this machine can run the programs of a target's image: its steps, and the apt of its base."""

from __future__ import annotations

from builder.config.recipe import Recipe
from builder.config.yamlfile import place_of
from builder.errors import RunnerError
from builder.qemu import emulation


def check_step_architecture(recipe: Recipe) -> None:
    """Checks that the programs of the image can run here, with qemu if they are for another processor.

    Raises:
        RunnerError: The recipe has steps, or modules are compiled, and this machine cannot run the programs.
    """
    if recipe.step_count:
        key = ("steps",) if recipe.steps else ("conda", "post_link")
        check_processor(recipe, place_of(recipe.source, *key))
    elif recipe.bytecode != "none":
        where = f"{recipe.source}: the image's Python compiles its modules"
        check_processor(recipe, where, "; or write in the recipe: bytecode: none")


def check_processor(recipe: Recipe, where: str, otherwise: str = "") -> None:
    """Checks that programs for the target's processor can run here.

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
