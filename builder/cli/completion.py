"""``builder completion``."""

from __future__ import annotations

import click

from builder.errors import UsageError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; use it as: eval "$(builder completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}", "use bash, zsh or fish")
    click.echo(
        kind(click.get_current_context().find_root().command, {}, "builder", "_BUILDER_COMPLETE").source()
    )
