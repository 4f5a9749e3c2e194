"""``builder doctor``."""

from __future__ import annotations

from dataclasses import asdict

import click

from builder.core.progress import working
from builder.core.settings import project_root
from builder.core.text import Table

from .context import Context, context_exit, with_context


@click.command()
@with_context
def doctor(context: Context) -> None:
    """Report what this host can lock, build, run and push: tools, GPU, disk, credentials.

    Each container runner is tried with a tiny container, and nothing is left on the host. The exit
    code is 1 if something has to be fixed ("bad"); "missing" and "broken" parts are optional.
    """
    with working(context.output, "examining this host: network, container runners"):
        from builder.deliver.doctor import examine_host

        findings = examine_host(context.settings, project_root(context.start) or context.start)
    rows = [
        (one.status, one.what, f"{one.found}\n{one.hint and f'-> {one.hint}'}") for one in findings
    ]
    context.output.table(Table(("", "what", "found"), [*rows]))
    context.output.result([asdict(finding) for finding in findings])
    if any(finding.status == "bad" for finding in findings):
        context_exit(1)
