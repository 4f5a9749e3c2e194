"""``builder report``."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.context import Context, common_options, complete_target, pass_context
from builder.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from builder.project import Project
    from builder.smoke.view import TargetView


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. Default: reports/index.html in the project.",
)
@common_options
@pass_context
def report(context: Context, names: tuple[str, ...], output: Path | None) -> None:
    """Write the history of smoke tests as one HTML page.

    It shows verdicts, trends, the roofline, regressions and changed packages. Without TARGET it shows every
    target that has reports. It needs no network and no script.
    """
    from builder.smoke.html import render
    from builder.smoke.reference import references
    from builder.smoke.reports import read_folder
    from builder.smoke.view import view
    from builder.store.files import write_output

    folder = context.project.reports
    targets = {name: read_folder(folder / name) for name in _targets(context.project, names)}
    for _, problems in targets.values():
        for problem in problems:
            context.output.warn(problem)
    path = output or folder / "index.html"
    if not path.parent.is_dir():
        message = f"--output {path}: the folder {path.parent} does not exist"
        raise UsageError(message, "create it, or name another file")
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_output(path, render(targets, references(), made=made).encode())
    views = [
        view(name, stored, problems, references()) for name, (stored, problems) in targets.items() if stored
    ]
    _print_summary(context, path, views)


def _targets(project: Project, names: Sequence[str]) -> list[str]:
    """The named targets, each once; without names all that have reports.

    Raises:
        ConfigError: an unknown target, or there is no report at all.
    """
    folder = project.reports
    with_reports = sorted(path.parent.name for path in folder.glob("*/*.json"))
    for name in names:
        if not (folder / name).is_dir():
            project.recipe(name)  # raises an error for an unknown target
    targets = list(dict.fromkeys(names or with_reports))
    if not targets:
        raise ConfigError(
            f"there is no report in {folder}: no smoke test has been run yet",
            "run one: builder smoke TARGET",
        )
    return targets


def _print_summary(context: Context, path: Path, views: Sequence[TargetView]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("target", "verdict", "images", "tested", "slower than the image before", box=None)
    targets = {}
    for target in views:
        slower = [change.id for change in target.regressions]
        count, tested = str(len(target.images)), str(target.report["started"])[:10]
        table.add_row(
            target.name, target.verdict, count, tested, f"[yellow]{escape(', '.join(slower))}[/yellow]"
        )
        targets[target.name] = {
            "verdict": target.verdict,
            "images": len(target.images),
            "regressions": slower,
        }
    context.output.table(table)
    context.output.result({"file": path.absolute(), "targets": targets}, f"the page: {escape(str(path))}")
