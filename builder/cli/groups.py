"""``python publish.py --ml [--gui]``: publish recipe groups; asks before it prunes, builds and
publishes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli import HELP_NAMES, failed, run
from builder.core.errors import BuilderError, UsageError
from builder.core.interrupts import catch_ctrl_c
from builder.core.settings import Settings
from builder.core.text import human_bytes

from .cache import PRUNE_DAYS, prune_all
from .context import Context
from .leave import leave
from .options import decorated, flag, option, tag_option
from .output import Output, agreed
from .publish import publish_one
from .signing import sign_option, signing_key
from .slurmoptions import job_options, take_job_options

if TYPE_CHECKING:
    from builder.deliver.publishing.publish import PublishOptions
    from builder.lock.config.recipe import Recipe

#: Options even when no recipe declares these groups yet; the error then explains how to declare one.
USUAL_GROUPS = ("ml", "gui")
_OPTIONS = decorated(
    flag("-y", "--yes"),
    flag("--dry-run"),
    tag_option,
    option("--to"),
    flag("--force"),
    sign_option,
    job_options,
)


def declared_groups(root: Path) -> list[str]:
    """Return the names that the recipes of a project declare as ``group``, and the usual ones."""
    from builder.lock.config.recipe import recipe_groups

    return sorted({*USUAL_GROUPS, *recipe_groups(root)})


def command(root: Path) -> click.Command:
    """Return the click command of a project. It raises UsageError if no group is given."""
    names = declared_groups(root)

    def publish_py(yes: bool, sign: Path | None, **values: Any) -> None:
        from builder.deliver.publishing.publish import PublishOptions

        job = take_job_options(values)  # the others are groups, and fields of PublishOptions
        groups = [name for name in names if values.pop(_parameter(name))]
        if not groups:
            known = " ".join(f"--{name}" for name in names)
            raise UsageError("no group given", f"name a group: {known}")
        options = PublishOptions(**values, job=job, sign=signing_key(sign))
        _publish_groups(root, groups, options, yes=yes)

    flags = [
        click.option(
            f"--{name}",
            _parameter(name),
            is_flag=True,
            help=f"Publish the targets of group {name}.",
        )
        for name in names
    ]
    add = click.command("publish.py", help=__doc__, context_settings=HELP_NAMES)
    return add(decorated(*flags, _OPTIONS)(publish_py))


def _parameter(group: str) -> str:
    """Return the parameter of a group's option."""
    return f"group_{group.replace('-', '_')}"


def _publish_groups(root: Path, groups: list[str], options: PublishOptions, *, yes: bool) -> None:
    """Publish the targets of groups; ask before each stage, unless ``yes``."""
    from builder.deliver.publishing.publish import refuse_shared_tags

    output = Output()
    click.get_current_context().call_on_close(output.close)  # before an error is printed
    context = Context(output, Settings.from_environment(), root)
    recipes = context.project.recipes(groups=groups)
    refuse_shared_tags(recipes, options)
    context.output.note(f"targets: {', '.join(recipe.name for recipe in recipes)}")

    def wanted(question: str, default: bool = True) -> bool:
        return yes or options.dry_run or agreed(question, default)

    question = f"Prune what the cache has not used for {PRUNE_DAYS} days?"
    if not options.dry_run and wanted(question, False):
        freed, _ = prune_all(context, PRUNE_DAYS)
        if freed:
            context.output.note(f"pruned the cache and dist/: freed {human_bytes(freed)}")

    def one(recipe: Recipe) -> dict[str, Any]:
        if not wanted(f"Build {recipe.name}?"):
            return {}
        return publish_one(context, recipe, options, wanted)

    context.each(recipes, one)


def main(root: Path) -> None:
    """Run ``publish.py`` for the project in ``root``."""
    catch_ctrl_c()
    try:
        made = command(root)
    except BuilderError as e:
        leave(failed(e, Output()))
    leave(run(made, prog_name="publish.py"))
