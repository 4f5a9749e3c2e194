"""``builder help`` and ``builder version``: what people type before they know ``--help``."""

from __future__ import annotations

import click

from builder.cli.context import common_options
from builder.version import __version__


@click.command()
@click.argument("command", nargs=-1)
@common_options
@click.pass_context
def help(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Print the help of builder, or of COMMAND."""
    context = ctx.find_root()
    found: click.Command = context.command
    for name in command:
        child = found.get_command(context, name) if isinstance(found, click.Group) else None
        if child is None:
            if isinstance(found, click.Group):
                found.resolve_command(context, [name])  # raises the error for an unknown command
            raise click.UsageError(f"{found.name} has no commands", context)
        context = click.Context(child, info_name=name, parent=context)
        found = child
    click.echo(found.get_help(context))


@click.command()
@common_options
def version() -> None:
    """Print the version."""
    click.echo(f"builder, version {__version__}")
