"""What every command receives, and the arguments that many commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from builder.core.errors import BuilderError, ConfigError, UsageError
from builder.core.settings import Settings, project_root

from .options import decorated, option
from .output import Output

if TYPE_CHECKING:
    from builder.core.workspace import Workspace
    from builder.deliver.project import Project
    from builder.lock.config.recipe import Recipe

T = TypeVar("T")


@dataclass
class Context:
    """What every command receives."""

    output: Output
    settings: Settings
    start: Path
    published: list[tuple[str, str, Sequence[str]]] = field(default_factory=list)
    """Destinations, digests and tags of what this command has published."""

    @cached_property
    def project(self) -> Project:
        """The project.

        Raises:
            ConfigError: there is no ``recipes/``, or an option has a wrong value.
        """
        from builder.deliver.project import Project

        return Project.find(self.start, self.settings, self.output)

    @cached_property
    def work(self) -> Workspace:
        """The workspace of commands that need no project."""
        from builder.core.workspace import Workspace

        return Workspace.of(self.settings, self.output)

    @property
    def root(self) -> Path | None:
        """The folder of the project; None if neither the current folder nor a parent is one."""
        has_none = self.start == Path() and project_root(self.start) is None
        return None if has_none else self.project.root  # an error with --project

    def recipe_and_command(self, given: Words) -> tuple[Recipe, tuple[str, ...]]:
        """Split ``[TARGET] [COMMAND]...``; the only target of a project needs no name.

        What follows ``--`` is never a target.

        Raises:
            ConfigError: the first word is not a target, and the project has several.
            UsageError: no word can be a target, and the project has several.
        """
        targets, words = self.project.targets, given.before
        if not words or (len(targets) == 1 and words[0] not in targets):
            return self.project.one_recipe(None), (*words, *given.after)
        try:
            return self.project.recipe(words[0]), (*words[1:], *given.after)
        except ConfigError as e:
            if targets and words[0] not in targets:
                e.hint = f"{e.hint}; the target stands before the command"
            raise

    def chosen_recipes(self, targets: Sequence[str], groups: Sequence[str] = ()) -> list[Recipe]:
        """Return the recipes of targets and groups, each once; without any that of the only target.

        Raises:
            ConfigError: an unknown target or group, or a recipe is not valid.
            UsageError: no name, and the project has no target or several.
        """
        if not targets and not groups:
            return [self.project.one_recipe(None)]
        return self.project.recipes(targets, groups)

    def each(
        self,
        recipes: Sequence[Recipe],
        do: Callable[[Recipe], dict[str, Any]],
        *,
        as_list: bool = False,
    ) -> None:
        """Call ``do`` for every target, print the results with ``--json``, and end the command.

        A target that failed has ``target``, ``error``, ``hint`` and ``code``.

        Raises:
            BuilderError: the only target failed.
        """
        results, failed = [], {}
        for name, done in self.attempt(recipes, do).items():
            if isinstance(done, BuilderError):
                failed[name] = code = done.exit_code
                done = {"target": name, "error": done.message, "hint": done.hint, "code": code}
            results.append(done)
        self.finish(results, failed, as_list=as_list)

    def attempt(
        self, recipes: Sequence[Recipe], do: Callable[[Recipe], T]
    ) -> dict[str, T | BuilderError]:
        """Call ``do`` for every target; a failure of one is printed and does not stop the others.

        Raises:
            BuilderError: the only target failed.
        """
        found: dict[str, T | BuilderError] = {}
        for recipe in recipes:
            try:
                found[recipe.name] = do(recipe)
            except BuilderError as e:
                if len(recipes) == 1:
                    raise
                self.output.error(f"{recipe.name}: {e.message}", e.hint)
                found[recipe.name] = e
        return found

    def finish(
        self, results: Sequence[Any], failed: Mapping[str, int], *, as_list: bool = False
    ) -> None:
        """End a command for several targets, with the exit code of the first that failed.

        Args:
            results: what ``--json`` prints for each target: a list, or one object for a single
                target (unless ``as_list``).
            failed: the targets that failed, and their exit codes.
            as_list: whether the result of a single target is a list too.
        """
        if failed:
            count = f"{len(failed)} of {len(results)} targets failed"
            self.output.warn(f"{count}: {', '.join(failed)}")
        self.output.result(results if as_list or len(results) != 1 else results[0])
        if failed:
            context_exit(next(iter(failed.values())))


pass_context = click.make_pass_decorator(Context)


def completed_root(ctx: click.Context) -> Path | None:
    """Return the project folder of a command line that a shell completes, if there is one."""
    return project_root(Path(ctx.find_root().params.get("project") or "."))


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a target name in a shell."""
    from builder.lock.config.recipe import recipe_files

    root = completed_root(ctx)
    return [name for name in recipe_files(root) if name.startswith(incomplete)] if root else []


def complete_site(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a site name in a shell."""
    from builder.lock.config.sites import site_files

    return [name for name in site_files(completed_root(ctx)) if name.startswith(incomplete)]


#: One target; without it the command takes the only target of the project.
target_argument = click.argument("target", required=False, shell_complete=complete_target)


class Words(NamedTuple):
    """The arguments of a :class:`WordsCommand`."""

    before: tuple[str, ...]
    """What precedes ``--``, or everything: the first word may be a target."""
    after: tuple[str, ...]
    """What follows ``--``: words of a command."""


class WordsCommand(click.Command):
    """A command with :data:`words_argument`, which is passed as :class:`Words`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:end])
        except click.NoSuchOption as e:
            if end == len(args):
                self._refuse_option_of_command(ctx, args, e.option_name)
            raise
        ctx.params["words"] = Words(ctx.params["words"], tuple(args[end + 1 :]))
        return rest

    def _refuse_option_of_command(self, ctx: click.Context, args: list[str], name: str) -> None:
        """Raise UsageError if an unknown option follows the first word of COMMAND."""
        from builder.deliver.publishing.pull import is_reference

        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        with suppress(click.NoSuchOption):  # it precedes the command
            words = parser.parse_args(args[:])[0]["words"]
            if is_reference(words[0]) or words[0] in complete_target(ctx, self.params[0], ""):
                words = parser.parse_args([*words[1:]])[0]["words"]
            own = [*ctx.command_path.split(), *args[: -len(words)]]
            hint = f"write: {join([*own, '--', *words])}"
            raise UsageError(f"{name} is an option of the command, which stands after --", hint)


#: A target and a command, see :meth:`Context.recipe_and_command`.
words_argument = click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[TARGET] [COMMAND]...",
    shell_complete=complete_target,
)


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if isinstance(ctx.obj, Context):
        ctx.obj.output.as_json |= value
        ctx.obj.output.document = "-".join(ctx.command_path.split()[1:])


#: Accepts ``--json`` after the command's name, where people type it.
common_options = option("--json", "as_json", is_flag=True, expose_value=False, callback=_set_json)
#: Adds ``--json``, and passes the :class:`Context`.
with_context = decorated(common_options, pass_context)


def context_exit(code: int) -> NoReturn:
    """End the command with an exit code and without a message."""
    click.get_current_context().exit(code)
