"""What every command receives, and the arguments that many commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.output import Output
from builder.errors import BuilderError, ConfigError, UsageError
from builder.settings import Settings

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.project import Project
    from builder.start.quick import Wishes

#: The commands that take ``--env FILE`` in place of a target's name.
_WITH_ENV = "lock|plan|build|smoke|publish|pull|run|job"
#: A value of ``--env`` that is a file with packages and not a variable.
_ENVIRONMENT_FILE = re.compile(r"[^=]+\.(?:ya?ml|toml|lock|txt|in)")


@dataclass
class Context:
    """What every command receives."""

    output: Output
    settings: Settings
    start: Path
    options: dict[str, Any] = field(default_factory=dict)
    """The values of :func:`wishes_options`."""
    _said: set[str] = field(default_factory=set)
    """Warnings about targets that were printed."""

    @property
    def wishes(self) -> Wishes:
        """The values of :func:`wishes_options`."""
        from builder.start.quick import Wishes

        return Wishes(**self.options)

    def take_environment_file(self, values: Sequence[str], name: str = "") -> tuple[str, ...]:
        """Takes the environment file out of the values of an ``--env`` that sets variables too.

        ``NAME`` and ``NAME=VALUE`` are variables; ``environment.yml``, ``uv.lock`` and the like are not,
        because names have no dot.

        Args:
            values: those of the option.
            name: the name of the target, if an environment file is among them.

        Raises:
            UsageError: several environment files.
        """
        files = [value for value in values if _ENVIRONMENT_FILE.fullmatch(value)]
        if len(files) > 1:
            raise UsageError(f"--env names several environment files: {', '.join(files)}", "name one of them")
        if files:
            self.options["env"] = Path(files[0])
            if name:
                self.options["name"] = name
        return tuple(value for value in values if value not in files)

    @cached_property
    def project(self) -> Project:
        """The project: with ``--env`` one without recipes.

        Raises:
            ConfigError: there is no ``recipes/``, or an option has a wrong value.
            UsageError: options for a project without recipes, but no ``--env``.
        """
        from builder.project import Project

        if self.options.get("env") is None:
            if self.options:
                options = ", ".join(f"--{name}" for name in self.options)
                raise UsageError(f"{options}: only with --env FILE", "write it into the recipe instead")
            return Project.find(self.start, self.settings, self.output)
        return self._quick_project(self.wishes)

    def _quick_project(self, wishes: Wishes) -> Project:
        from builder.project import Project
        from builder.start.quick import quick_recipe
        from builder.store.blobs import Store

        root, recipe, note = quick_recipe(wishes, self.start, self.settings)
        if note:
            self.output.note(note)
        return Project(root, self.settings, Store(self.settings.cache), self.output, recipe)

    def adapted(self, hint: str) -> str:
        """A hint for this command line: with ``--env`` the options stand where a target's name would."""
        project = vars(self).get("project")
        if project is None or project.only is None:
            return hint
        from builder.start.draft import NO_FILE

        words = []
        for key in ("env", "site", "base", "add", "name"):
            value = self.options.get(key, ())
            for each in value if isinstance(value, tuple) else (value,):
                words += [f"--{key}", str(each)]
        options = shlex.join(words)
        target = rf"\bbuilder ({_WITH_ENV}) {re.escape(project.only.name)}(?![\w-]|\.\w)"
        hint = re.sub(target, lambda found: f"builder {found[1]} {options}", hint)
        return hint.replace(str(NO_FILE), f"a recipe (builder init {options} writes one)")

    def one_recipe(self, target: str | None) -> Recipe:
        """The recipe of a target; None takes the only target of the project.

        Raises:
            ConfigError: an unknown target, or its recipe is not valid.
            UsageError: None, and the project has no target or several.
        """
        return self.announced(self.project.one_recipe(target))

    def announced(self, recipe: Recipe) -> Recipe:
        """Warns once if the target's system is switched off."""
        from builder.site.status import retired_note

        note = retired_note(recipe.site, recipe.site_title)
        if note and note not in self._said:
            self._said.add(note)
            self.output.warn(note)
        return recipe

    def recipe_and_command(self, words: Sequence[str]) -> tuple[Recipe, tuple[str, ...]]:
        """Splits ``[TARGET] [COMMAND]...``: words that begin with no target are a command for the only one.

        Raises:
            ConfigError: the first word is not a target, and the project has several.
            UsageError: there is no word, and the project has several targets; or the first word is a site and
                no target.
        """
        from builder.config.sites import site_files

        targets = self.project.targets
        if not words or (len(targets) == 1 and words[0] not in targets):
            if words and words[0] in site_files(self.project.root):
                raise UsageError(
                    f"no target named {words[0]!r}: it is a site, and the only target is {targets[0]}",
                    f"write {targets[0]}, or leave it out",
                )
            return self.one_recipe(None), tuple(words)
        try:
            return self.announced(self.project.recipe(words[0])), tuple(words[1:])
        except ConfigError as e:
            if targets and words[0] not in targets:
                e.hint = f"{e.hint}; the target stands before the command"
            raise

    def chosen_recipes(self, targets: Sequence[str]) -> list[Recipe]:
        """The recipes of these targets, each once; without a name that of the only target.

        Raises:
            ConfigError: an unknown target, or a recipe is not valid.
            UsageError: no name, and the project has no target or several.
        """
        if not targets:
            return [self.one_recipe(None)]
        return [self.announced(recipe) for recipe in self.project.recipes(targets)]

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


_FILE = click.Path(dir_okay=False, path_type=Path)
#: For commands that print text which people put into a pull request.
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="markdown: for release notes and pull requests.",
)

pass_context = click.make_pass_decorator(Context)


def completed_root(ctx: click.Context) -> Path | None:
    """The project folder of the command line that a shell completes; None outside of a project."""
    from builder.project import Project

    start = Path(ctx.find_root().params.get("project") or ".")
    try:
        return Project.find(start, Settings.from_environment()).root
    except BuilderError:
        return None


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of target names."""
    from builder.config.recipe import recipe_files

    root = completed_root(ctx)
    return [name for name in recipe_files(root) if name.startswith(incomplete)] if root else []


def complete_site(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of site names."""
    from builder.config.sites import site_files

    return [name for name in site_files(completed_root(ctx)) if name.startswith(incomplete)]


#: One target; without it the command takes the only target of the project.
target_argument = click.argument("target", required=False, shell_complete=complete_target)
#: A target and a command, see :meth:`Context.recipe_and_command`.
target_and_command = click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [COMMAND]...", shell_complete=complete_target
)


def wishes_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a project without recipes (:class:`builder.start.quick.Wishes`)."""
    env = "A file that names the packages (environment, project or lock file): the command needs no recipe."
    return _wish("--env", metavar="FILE", type=_FILE, help=env)(_name_option(site_options(command)))


def site_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--site``, ``--base`` and ``--add``, for commands that have another ``--env`` or ``--name``."""
    return _site_options(command, "With --env FILE: ")


def init_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of ``builder init``, which writes what they say into a recipe."""
    env = "The same as --from."
    command = _name_option(_site_options(command, ""), "")
    return _wish("--env", metavar="FILE", type=_FILE, help=env)(command)


def _name_option(command: Callable[..., Any], when: str = "With --env FILE: ") -> Callable[..., Any]:
    text = f"{when}the name of the target. Default: the folder's."
    return _wish("--name", metavar="NAME", help=_capital(text))(command)


def _site_options(command: Callable[..., Any], when: str) -> Callable[..., Any]:
    texts = {
        "--add": "a file or folder for the image, by default below /app.",
        "--base": "the base image.",
        "--site": "the site that runs the image (builder sites).",
    }
    helps = {option: _capital(when + text) for option, text in texts.items()}
    command = _wish("--add", multiple=True, metavar="SOURCE[:TARGET]", help=helps["--add"])(command)
    command = _wish("--base", metavar="BASE", help=helps["--base"])(command)
    return _wish("--site", metavar="NAME", help=helps["--site"], shell_complete=complete_site)(command)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _wish(name: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, **options, expose_value=False, callback=_set_wish)


def _set_wish(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value and param.name and isinstance(ctx.obj, Context):
        ctx.obj.options[param.name] = value


def complete_group(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of the names of groups."""
    from builder.config.groups import recipe_groups

    root = completed_root(ctx)
    try:
        names = sorted(recipe_groups(root)) if root else []
    except BuilderError:
        return []
    return [name for name in names if name.startswith(incomplete)]


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
