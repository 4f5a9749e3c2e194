"""``builder report``."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.core.errors import ConfigError, UsageError

from .context import Context, complete_target, with_context
from .options import FILE, option, require_folder

if TYPE_CHECKING:
    from builder.deliver.project import Project


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@option("--output", type=FILE)
@option("--share", type=FILE, metavar="FILE")
@with_context
def report(
    context: Context, names: tuple[str, ...], output: Path | None, share: Path | None
) -> None:
    """Write the history of images and smoke tests as one HTML page.

    It shows layers, sizes, verdicts, trends, and what changed. Without TARGET it
    shows every target that has a history. It needs no network and no script.
    """
    context.output.document = "report-page"  # the schema "report" is that of a smoke report
    if share is not None:
        _share(context, names, share)
        return
    from builder.core.store.files import write_output
    from builder.deliver.history import SUFFIX, read_histories
    from builder.deliver.smoke.page import render, view
    from builder.deliver.smoke.reports import read_folder

    folder = context.project.reports
    built = [path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}")]
    found = {name: read_folder(folder / name) for name in _targets(context.project, names, built)}
    for _, problems in found.values():
        for problem in problems:
            context.output.warn(problem)
    path = output or folder / "index.html"
    require_folder("--output", path)
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    views = [view(name, *read) for name, read in found.items() if read[0]]
    untested = {name: problems for name, (stored, problems) in found.items() if not stored}
    page = render(views, untested, made=made, histories=read_histories(folder, found))
    write_output(path, page.encode())
    targets = {target.name: target.verdict for target in views}
    context.output.result({"file": path.absolute(), "targets": targets}, f"the page: {path}")


def _share(context: Context, names: Sequence[str], path: Path) -> None:
    """Write the copy of the reports of one target's newest image, or of a file or folder.

    Raises:
        UsageError: not exactly one target has reports, or is named.
        ReportError: there is no such report, or it cannot be read.
    """
    from builder.core.store.files import write_output
    from builder.deliver.smoke.reports import find_reports
    from builder.deliver.smoke.share import contents, share, to_bytes

    require_folder("--share", path)
    if len(names) == 1 and ("/" in names[0] or names[0].endswith(".json")):
        stored = find_reports(names[0], Path(names[0]))
    else:
        targets = _targets(context.project, names)
        if len(targets) != 1:
            message = f"--share writes the reports of one target, not of {', '.join(targets)}"
            raise UsageError(message, f"name one: builder report {targets[0]} --share {path}")
        folder = context.project.reports / targets[0]
        if not folder.is_dir():
            hint = f"run a test: builder smoke {targets[0]}"
            raise UsageError(f"{targets[0]} has no report", hint)
        stored = find_reports(f"{folder}/", folder)
    document = share([one.report for one in stored])
    write_output(path, to_bytes(document))
    for line in (f"written for sharing: {path}", *contents(document)):
        context.output.note(line)
    context.output.result({"file": path.absolute(), "reports": len(stored)})


def _targets(project: Project, names: Sequence[str], recorded: Sequence[str] = ()) -> list[str]:
    """Return the named targets, each once; without names all that have reports or are recorded.

    Raises:
        ConfigError: an unknown target, or there is no history at all.
    """
    folder = project.reports
    with_reports = sorted({*recorded, *(path.parent.name for path in folder.glob("*/*.json"))})
    for name in names:
        if not (folder / name).is_dir():
            project.recipe(name)  # raises an error for an unknown target
    targets = list(dict.fromkeys(names or with_reports))
    if not targets:
        hint = "run one: builder smoke TARGET"
        raise ConfigError(f"there is no report in {folder}: no smoke test has been run yet", hint)
    return targets
