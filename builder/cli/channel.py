"""``builder channel``."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.context import Context, common_options, pass_context


@click.group()
def channel() -> None:
    """Make conda channels for machines that cannot reach one."""


@channel.command("debian")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--platform",
    type=click.Choice(["linux-64", "linux-aarch64"]),
    default="linux-64",
    show_default=True,
    help="Platform of the packages.",
)
@common_options
@pass_context
def channel_debian(context: Context, folder: Path, platform: str) -> None:
    """Make a small conda channel from Debian's python3.11 packages in FOLDER."""
    from builder.channel.debian import make_debian_channel

    made = make_debian_channel(folder.absolute(), context.settings, context.output, platform=platform)
    packages = sorted(p.name for p in made.glob("*/*.conda"))
    context.output.result(
        {"channel": str(made), "packages": packages}, f"{len(packages)} packages in file://{made}"
    )
