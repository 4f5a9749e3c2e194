"""``builder cache``."""

from __future__ import annotations

import contextlib

import click

from builder.cli.context import Context, common_options, pass_context
from builder.errors import ConfigError
from builder.text import human_bytes


@click.group()
def cache() -> None:
    """Show or prune the cache of packages, layers and unpacked images."""


@cache.command("info")
@common_options
@pass_context
def cache_info(context: Context) -> None:
    """Show how much the cache holds."""
    from rich.table import Table

    from builder.store.prune import usage

    folders = usage(context.settings.cache)
    table = Table("folder", "files", "size", box=None)
    for folder in folders:
        table.add_row(folder.name, str(folder.files), human_bytes(folder.size))
    context.output.table(table)
    total = sum(p.size for p in folders)
    context.output.result(
        {
            "cache": str(context.settings.cache),
            "bytes": total,
            "folders": {p.name: {"files": p.files, "bytes": p.size} for p in folders},
        },
        f"{human_bytes(total)} in {context.settings.cache}",
    )


@cache.command("prune")
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Days since the last use.",
)
@click.option("--all", "everything", is_flag=True, help="Remove everything except lock files.")
@common_options
@pass_context
def cache_prune(context: Context, days: float, everything: bool) -> None:
    """Remove files that were not used recently, leftovers of killed builds, and untagged images in dist/."""
    from builder.store.prune import prune

    freed = 0
    with contextlib.suppress(ConfigError):  # the cache can be pruned from anywhere
        freed = context.project.prune_layout()
    freed += prune(context.settings.cache, None if everything else days)
    context.output.result({"freed": freed}, f"freed {human_bytes(freed)}")
