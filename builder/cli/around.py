"""``builder channel``, ``doctor``, ``cache`` and ``completion``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from builder.cli.context import Context, common_options, context_exit, pass_context
from builder.errors import ConfigError, UsageError
from builder.text import human_bytes


@click.group()
def channel() -> None:
    """Conda channels for places where none can be reached."""


@channel.command("debian")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@common_options
@pass_context
def channel_debian(context: Context, folder: Path) -> None:
    """Make the Debian channel: a small real conda channel out of Debian's python3.11 packages, in FOLDER."""
    from builder.channel.debian import make_debian_channel

    made = make_debian_channel(folder.absolute(), context.settings, context.output)
    packages = sorted(p.name for p in made.glob("*/*.conda"))
    context.output.result(
        {"channel": str(made), "packages": packages}, f"{len(packages)} packages in file://{made}"
    )


@click.command()
@common_options
@pass_context
def doctor(context: Context) -> None:
    """Say what this host can lock, build, run and push: tools, GPU, disk, registries."""
    from rich.table import Table

    from builder.cli.checks import examine

    findings = examine(context.settings)
    marks = {"ok": "[green]ok[/green]", "missing": "[yellow]missing[/yellow]", "bad": "[red]bad[/red]"}
    table = Table("", "what", "found", "hint", box=None)
    for f in findings:
        table.add_row(marks[f.status], f.what, f.found, f.hint)
    context.output.table(table)
    context.output.result([f.to_json() for f in findings])
    if any(f.status == "bad" for f in findings):
        context_exit(1)


@click.group()
def cache() -> None:
    """The cache of packages, layers and unpacked images."""


@cache.command("info")
@common_options
@pass_context
def cache_info(context: Context) -> None:
    """Say what the cache holds."""
    from rich.table import Table

    from builder.store.prune import usage

    parts = usage(context.settings.cache)
    table = Table("part", "files", "size", box=None)
    for part in parts:
        table.add_row(part.name, str(part.files), human_bytes(part.size))
    context.output.table(table)
    total = sum(p.size for p in parts)
    context.output.result(
        {
            "cache": str(context.settings.cache),
            "bytes": total,
            "parts": {p.name: {"files": p.files, "bytes": p.size} for p in parts},
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
@click.option("--all", "everything", is_flag=True, help="Everything.")
@common_options
@pass_context
def cache_prune(context: Context, days: float, everything: bool) -> None:
    """Remove what was not used for a while, what killed builds left, and blobs of the project's dist/ that no tag needs."""
    from builder.store.prune import prune

    freed = 0
    with contextlib.suppress(ConfigError):  # the cache can be pruned from anywhere
        freed = context.project.prune_layout()
    freed += prune(context.settings.cache, None if everything else days)
    context.output.result({"freed": freed}, f"freed {human_bytes(freed)}")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL: eval "$(builder completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}", "use bash, zsh or fish")
    click.echo(
        kind(click.get_current_context().find_root().command, {}, "builder", "_BUILDER_COMPLETE").source()
    )
