"""``builder diff``."""

from __future__ import annotations

from pathlib import Path

import click

from builder.core.text import visible

from .context import Context, context_exit, with_context
from .options import choice


@click.command()
@click.argument("a")
@click.argument("b")
@choice("--format", "form", of=["text", "markdown"], default="text")
@with_context
def diff(context: Context, a: str, b: str, form: str) -> None:
    """Compare two lock files, or two published images. Exit with 1 if they differ.

    A and B are lock files, TARGET:TAG, HOST/REPOSITORY:TAG or oci:DIR:TAG. Of images
    it compares packages, sizes of layers, and the figures of smoke reports.
    """
    from .differences import as_markdown, compare, tables

    changes = compare(context, a, b)
    if form == "markdown" and not context.output.as_json:
        click.echo(visible(as_markdown(Path(b).name, changes)))  # as it is, also in a terminal
    else:
        for table in tables(changes):
            context.output.table(table)
    context.output.result({"a": a, "b": b, "equal": not changes, **changes.to_json()})
    if changes:
        context_exit(1)
