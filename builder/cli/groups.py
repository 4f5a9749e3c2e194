"""``python publish.py --ml [--gui]``: the groups that recipes declare, as options, with prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli import run
from builder.cli.context import Context
from builder.cli.output import Output
from builder.cli.publish import publish_one
from builder.config.yamlfile import load_yaml
from builder.errors import UsageError
from builder.settings import Settings
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.config.recipe import Recipe

#: Offered even when no recipe declares them yet, so that the error can say how to declare one.
USUAL_GROUPS = ("ml", "gui")


def declared_groups(root: Path) -> list[str]:
    """The names that the recipes of a project put in ``group``, and the usual ones."""
    from builder.config.recipe import recipe_files

    names = set(USUAL_GROUPS)
    for path in recipe_files(root).values():
        group = load_yaml(path).data.get("group") or []
        names.update(str(g) for g in ([group] if isinstance(group, str) else group))
    return sorted(names)


def command(root: Path) -> click.Command:
    """The click command of a project."""

    def publish(
        yes: bool,
        dry_run: bool,
        tag: str | None,
        registry: str | None,
        to: str | None,
        force: bool,
        **flags: bool,
    ) -> None:
        from builder.publishing.publish import refuse_shared_tags

        groups = [g for g in names if flags.get(f"group_{g.replace('-', '_')}")]
        if not groups:
            raise UsageError("nothing chosen", f"name a group: {' '.join('--' + g for g in names)}")
        context = Context(Output(), Settings.from_environment(), root)
        recipes = context.project.recipes(groups=groups)
        refuse_shared_tags(recipes, to, registry, tag)
        context.output.note(f"targets: {', '.join(r.name for r in recipes)}")

        def agreed(question: str, default: bool = True) -> bool:
            return yes or dry_run or click.confirm(question, default=default)

        if not dry_run and agreed("Prune what the cache has not used for 30 days?", default=False):
            from builder.store.prune import prune

            context.output.note(
                f"freed {human_bytes(prune(context.settings.cache, 30) + context.project.prune_layout())}"
            )

        def one(recipe: Recipe) -> dict[str, Any]:
            if not agreed(f"Build {recipe.name}?"):
                return {}
            return publish_one(
                context,
                recipe,
                to=to,
                registry=registry,
                month=tag,
                force=force,
                dry_run=dry_run,
                agreed=agreed,
            )

        context.each(recipes, one)

    names = declared_groups(root)
    params: list[click.Parameter] = [
        click.Option(
            [f"--{g}", f"group_{g.replace('-', '_')}"],
            is_flag=True,
            help=f"Publish the targets of group {g}.",
        )
        for g in names
    ]
    more: list[tuple[list[str], dict[str, Any]]] = [
        (["-y", "--yes"], {"is_flag": True, "help": "Answer yes to everything (for CI)."}),
        (["--dry-run"], {"is_flag": True, "help": "Build and say what would be published."}),
        (["--tag"], {"metavar": "YY.MM", "help": "Takes the place of the recipes' dated tags."}),
        (["--registry"], {"help": "HOST[/PROJECT] instead of the recipes' host."}),
        (["--to"], {"help": "HOST/REPOSITORY or oci:DIR."}),
        (["--force"], {"is_flag": True, "help": "Let a dated tag move to another digest."}),
    ]
    params += [click.Option(names_, **options) for names_, options in more]
    return click.Command(
        "publish.py",
        params=params,
        callback=publish,
        help=__doc__,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def main(root: Path) -> None:
    """Runs ``publish.py`` for the project in ``root``."""
    sys.exit(run(command(root), prog_name="publish.py"))
