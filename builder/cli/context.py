"""What every command receives, and the arguments that many commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.output import Output
from builder.errors import BuilderError
from builder.settings import Settings

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.project import Project


@dataclass
class Context:
    """What every command receives."""

    output: Output
    settings: Settings
    start: Path

    @cached_property
    def project(self) -> Project:
        from builder.project import Project

        return Project.find(self.start, self.settings, self.output)

    def one_recipe(self, target: str) -> Recipe:
        return self.project.recipe(target)

    def each(
        self, recipes: Sequence[Recipe], do: Callable[[Recipe], dict[str, Any]], *, as_list: bool = False
    ) -> None:
        """Calls ``do`` for every target; a failure of one does not stop the others.

        With ``--json``, prints the results: a list, or one object for a single target (unless ``as_list``).
        A target that failed has ``target``, ``error`` and ``hint``. After a failure the command ends with the
        exit code of the first one.

        Raises:
            BuilderError: the only target failed.
        """
        results, failed, code = [], [], 0
        for recipe in recipes:
            try:
                results.append(do(recipe))
            except BuilderError as e:
                if len(recipes) == 1:
                    raise
                self.output.error(f"{recipe.name}: {e.message}", e.hint)
                results.append({"target": recipe.name, "error": e.message, "hint": e.hint})
                failed.append(recipe.name)
                code = code or e.exit_code
        if failed:
            self.output.warn(f"{len(failed)} of {len(recipes)} targets failed: {', '.join(failed)}")
        self.output.result(results if as_list or len(results) != 1 else results[0])
        if code:
            context_exit(code)


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="markdown: for release notes and pull requests.",
)

pass_context = click.make_pass_decorator(Context)


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of target names."""
    from builder.config.recipe import recipe_files
    from builder.project import Project

    start = Path(ctx.find_root().params.get("project") or ".")
    try:
        root = Project.find(start, Settings.from_environment()).root
    except BuilderError:
        return []
    return [name for name in recipe_files(root) if name.startswith(incomplete)]


target_argument = click.argument("target", shell_complete=complete_target)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Accepts ``--json`` after the command's name too, where people type it."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON document on stdout.",
        expose_value=False,
        callback=_set_json,
    )(command)


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.obj, Context):
        ctx.obj.output.as_json = True


def context_exit(code: int) -> None:
    """Ends the command with an exit code and without a message."""
    click.get_current_context().exit(code)


def origin_annotations(source: str | None, revision: str | None) -> dict[str, str]:
    """The annotations for the sources of an image; never guessed, because they are part of the digest."""
    pairs = {"org.opencontainers.image.source": source, "org.opencontainers.image.revision": revision}
    return {k: v for k, v in pairs.items() if v}
