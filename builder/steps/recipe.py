"""The steps of a recipe: ``steps:``, and the link scripts that ``conda: {post_link: {NAME: run}}`` names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from builder.config.recipe import Recipe
from builder.config.yamlfile import place_of
from builder.layers.entry import LinkContext
from builder.model import Fetched

if TYPE_CHECKING:
    from builder.steps.job import StepRun


def recipe_steps(recipe: Recipe) -> tuple[list[StepRun], list[StepRun]]:
    """Returns the steps below the recipe's ``files:``, and those from the first with ``files: true``."""
    if not recipe.steps:
        return [], []
    from builder.steps.job import StepRun  # with the runners: not for a recipe without steps

    runs = [
        StepRun(
            step.run,
            env=step.env,
            network=step.network,
            title=step.title,
            where=place_of(recipe.source, "steps", number),
        )
        for number, step in enumerate(recipe.steps)
    ]
    first = next((n for n, step in enumerate(recipe.steps) if step.files), len(runs))
    return runs[:first], runs[first:]


def link_scripts(recipe: Recipe, fetched: Sequence[Fetched], context: LinkContext) -> list[StepRun]:
    """Returns a step for each post-link script that the recipe runs, in link order.

    The variables are those that conda sets.
    """
    prefix = context.prefix
    found = []
    for item in fetched:
        package = item.package
        if package.manager != "conda" or recipe.conda.post_link.get(package.name) != "run":
            continue
        from builder.layers.conda_info import read_info
        from builder.steps.job import StepRun

        info = read_info(item)
        name = f"bin/.{package.name}-post-link.sh"
        if all(path.path != name for path in info.paths):
            continue
        env = {
            "PREFIX": prefix,
            "ROOT_PREFIX": prefix,
            "PKG_NAME": package.name,
            "PKG_VERSION": package.version,
            "PKG_BUILDNUM": str(info.index.get("build_number", 0)),
        }
        script, messages = shlex.quote(f"{prefix}/{name}"), shlex.quote(f"{prefix}/.messages.txt")
        commands = (
            f'shell=$(command -v bash || command -v sh) && "$shell" {script}',
            f"if [ -f {messages} ]; then cat {messages}; rm -f {messages}; fi",
        )
        where = place_of(recipe.source, "conda", "post_link", package.name)
        found.append(StepRun(commands, env=env, title=f"post-link script of {package.name}", where=where))
    return found
