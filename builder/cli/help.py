"""``builder help``: the help of a command, the exit codes and JSON schemas."""

from __future__ import annotations

import click

from builder.core.errors import UsageError, exit_codes


@click.command(options_metavar="")
@click.argument("words", nargs=-1, metavar="[COMMAND | TOPIC]")
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command, exit codes or schemas.

    \b
    builder help publish             the help of a command
    builder help options             the options of all commands
    builder help exit-codes          what each exit code means
    builder help schema recipe       a JSON schema: of recipe, site or report (of the smoke test),
                                     or of what a command prints with --json: build, cache-info

    In an editor that speaks yaml-language-server, the first line of a recipe can name
    its schema: # yaml-language-server: $schema=PATH
    """
    topic, arguments = (words[0], words[1:]) if words else ("", ())
    if topic == "exit-codes":
        click.echo("\n".join(f"{code:>3}  {meaning}" for code, meaning in exit_codes().items()))
    elif topic == "options":
        click.echo(_options(ctx.find_root()), nl=False)
    elif topic == "schema":
        from .schemas import SCHEMAS, schema_text

        if len(arguments) != 1 or arguments[0] not in SCHEMAS:
            problem = f"builder help schema takes one of: {', '.join(SCHEMAS)}"
            raise UsageError(problem, "write builder help schema recipe")
        click.echo(schema_text(arguments[0]), nl=False)
    else:
        click.echo(_help_of(ctx.find_root(), words))


def _options(root: click.Context) -> str:
    """Return the help of the options that stand before a command."""
    formatter = root.make_formatter()
    click.Command.format_options(root.command, root, formatter)
    return formatter.getvalue()


def _help_of(context: click.Context, path: tuple[str, ...]) -> str:
    """Return the help of the command that ``path`` names, or of builder."""
    for name in path:
        found = context.command
        if not isinstance(found, click.Group):
            raise click.UsageError(f"{found.name} has no commands", context)
        _, child, _ = found.resolve_command(context, [name])
        assert child is not None  # an unknown command is an error
        context = click.Context(child, info_name=name, parent=context)
    return context.get_help()
