"""``builder smoke``."""

from __future__ import annotations

import click

from builder.cli.context import Context, common_options, context_exit, pass_context, target_argument


@click.command()
@target_argument
@click.option("--runner", type=click.Choice(["docker", "podman", "apptainer", "embedded"]), help="Default: the first that works.")
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Seconds after which the test counts as hung.")
@common_options
@pass_context
def smoke(context: Context, target: str, runner: str | None, timeout_s: float) -> None:
    """Build TARGET if needed and run the smoke benchmark inside its image on this host."""
    from builder.publish import SmokeRecord
    from builder.smoke.table import render

    project = context.project
    result = project.build(project.recipe(target))
    project.keep(result)
    report = project.smoke(result, runner=runner, timeout_s=timeout_s)
    context.output.table(render(report))
    context.output.result(
        {
            "target": target,
            "digest": report.image_digest,
            "runner": report.runner,
            "verdict": report.verdict,
            "seconds": report.duration_s,
            "report": report.report,
        }
    )
    if report.verdict in ("pass", "warn"):
        SmokeRecord(context.settings.cache).keep(report.image_digest, report.verdict, report.runner)
    else:
        context_exit(11)
