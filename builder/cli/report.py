"""``builder report``."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from builder.cli.context import Context, common_options, complete_target, pass_context


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: index.html in the project's reports folder.",
)
@common_options
@pass_context
def report(context: Context, names: tuple[str, ...], output: Path | None) -> None:
    """Write the history of smoke tests as one HTML page: verdicts, trends, roofline, what got slower and what had changed.

    Without TARGET: all that have reports. The page needs neither network nor script.
    """
    from builder.errors import ConfigError, UsageError
    from builder.smoke.grade import references
    from builder.smoke.history import read_folder
    from builder.smoke.html import render, view
    from builder.store.files import write_atomic

    project = context.project
    folder = project.reports
    with_reports = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    for name in names:
        if name not in with_reports:
            project.recipe(name)  # an unknown target says so itself
    chosen = names or tuple(n for n in with_reports if any((folder / n).glob("*.json")))
    if not chosen:
        raise ConfigError(
            f"no smoke test has been run yet: there is no report in {folder}", "run one: builder smoke TARGET"
        )
    found = {name: read_folder(folder / name) for name in dict.fromkeys(chosen)}
    for _, complaints in found.values():
        for complaint in complaints:
            context.output.warn(complaint)
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = render(found, references(), made=made)
    place = output or folder / "index.html"
    if not place.parent.is_dir():
        raise UsageError(
            f"--output {place}: there is no folder {place.parent}", "make it, or write elsewhere"
        )
    write_atomic(place, page.encode())
    views = [view(name, kept, complaints, references()) for name, (kept, complaints) in found.items() if kept]
    slower = {v.name: [c.id for c in v.regressions] for v in views if v.regressions}
    context.output.result(
        {
            "file": place.absolute(),
            "targets": {
                v.name: {"verdict": v.verdict, "images": len(v.images), "regressions": slower.get(v.name, [])}
                for v in views
            },
        },
        "\n".join(
            [str(place), *(f"[yellow]{n}[/yellow] is slower: {', '.join(ids)}" for n, ids in slower.items())]
        ),
    )
