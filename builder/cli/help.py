"""``builder help``: the help of a command, the exit codes, JSON schemas and completion scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import click

from builder.errors import UsageError, exit_codes

SCHEMAS = ("recipe", "site", "report")
SHELLS = ("bash", "zsh", "fish")


@click.command(options_metavar="")
@click.argument("words", nargs=-1, metavar="[COMMAND | TOPIC]")
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command, exit codes or schemas.

    \b
    builder help publish             the help of a command
    builder help options             the options of all commands
    builder help exit-codes          what each exit code means
    builder help schema recipe       the JSON schema of recipe, site or report
    builder help completion bash     the completion script for bash, zsh or fish:
                                     eval "$(builder help completion bash)"

    In an editor that speaks yaml-language-server, the first line of a recipe can name
    its schema: # yaml-language-server: $schema=PATH
    """
    topic, arguments = (words[0], words[1:]) if words else ("", ())
    if topic == "exit-codes":
        click.echo("\n".join(f"{code:>3}  {meaning}" for code, meaning in exit_codes().items()))
    elif topic == "options":
        click.echo(_options(ctx.find_root()), nl=False)
    elif topic == "schema":
        click.echo(schema_text(_one("schema", arguments, SCHEMAS)), nl=False)
    elif topic == "completion":
        click.echo(_completion(ctx, _one("completion", arguments, SHELLS)))
    else:
        click.echo(_help_of(ctx.find_root(), words))


def _one(topic: str, words: tuple[str, ...], known: tuple[str, ...]) -> str:
    """Return the one word after a topic. Raise UsageError unless it is known."""
    if len(words) != 1 or words[0] not in known:
        hint = f"write builder help {topic} {known[0]}"
        raise UsageError(f"builder help {topic} takes one of: {', '.join(known)}", hint)
    return words[0]


def _options(root: click.Context) -> str:
    """Return the help of the options that stand before a command."""
    formatter = root.make_formatter()
    click.Command.format_options(root.command, root, formatter)
    return formatter.getvalue()


def _help_of(context: click.Context, path: tuple[str, ...]) -> str:
    """Return the help of the command that ``path`` names, or of builder."""
    found: click.Command = context.command
    for name in path:
        if not isinstance(found, click.Group):
            raise click.UsageError(f"{found.name} has no commands", context)
        child = found.get_command(context, name)
        if child is None:
            found.resolve_command(context, [name])  # raises the error for an unknown command
            raise AssertionError(name)
        context = click.Context(child, info_name=name, parent=context)
        found = child
    return found.get_help(context)


def _completion(ctx: click.Context, shell: str) -> str:
    """Return the completion script for a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}", f"use {', '.join(SHELLS)}")
    return kind(ctx.find_root().command, {}, "builder", "_BUILDER_COMPLETE").source()


def schema_text(kind: str) -> str:
    """Return a JSON schema as text, as in docs/schemas/."""
    from builder.config.schema import recipe_schema, site_schema
    from builder.smoke.schema import report_schema

    schemas: Mapping[str, Callable[[], object]] = {
        "recipe": recipe_schema,
        "site": site_schema,
        "report": report_schema,
    }
    return json.dumps(schemas[kind](), indent=2, ensure_ascii=False) + "\n"
