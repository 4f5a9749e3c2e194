"""Whether this machine can run the steps of a recipe."""

from __future__ import annotations

from builder.config.recipe import Recipe
from builder.config.yamlfile import place_of
from builder.errors import UsageError
from builder.oci.config import host_architecture


def check_step_architecture(recipe: Recipe) -> None:
    """Checks that the programs of the image can run here.

    Raises:
        UsageError: The recipe has steps, and its platform is another one.
    """
    here = host_architecture()
    if recipe.step_count == 0 or recipe.architecture == here:
        return
    key = ("steps",) if recipe.steps else ("conda", "post_link")
    raise UsageError(
        f"{place_of(recipe.source, *key)}: steps of a {recipe.platform} image cannot run on this machine "
        f"({here})",
        f"build on a machine with {recipe.architecture}, or remove the key",
    )
