"""``--share FILE`` of ``builder smoke`` and ``builder report``: a copy of reports that people may send in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from builder.cli.context import Context
from builder.errors import BuilderError, UsageError


def share_option(help_text: str) -> Callable[[Any], Any]:
    """The option. Its folder has to exist, which is checked before anything runs."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("--share", type=kind, metavar="FILE", callback=_checked, help=help_text)


def _checked(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        message = f"--share {path}: the folder {path.parent} does not exist"
        raise UsageError(message, "create it, or name another file")
    return path


def write_shared(context: Context, reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes the copy, and prints what it contains and what it leaves out.

    Raises:
        ShareError: no report has figures.
        SpaceError: there is no space for it.
    """
    from builder.smoke.share import contents, own_names, share
    from builder.store.files import write_output

    shared = share(reports, own_names())
    write_output(path, shared.data)
    context.output.note(f"written for sharing: {path}")
    for line in contents(shared.document):
        context.output.note(f"  {line}")
    if shared.left_out:
        context.output.note(f"  left out, not in the usual form: {', '.join(shared.left_out)}")


def share_results(context: Context, reports: Sequence[dict[str, Any]], path: Path) -> None:
    """As :func:`write_shared`, after a test: a problem is a warning, and the results of the test follow."""
    try:
        write_shared(context, reports, path)
    except BuilderError as e:
        context.output.warn(f"--share {path}: {e.message}")
