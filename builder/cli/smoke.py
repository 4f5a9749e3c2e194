"""``builder smoke``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import (
    Context,
    common_options,
    context_exit,
    origin_annotations,
    pass_context,
    target_argument,
)
from builder.cli.slurmoptions import job_options, take_job_options
from builder.cli.smoke_ab import check_ab, run_ab
from builder.errors import SmokeError, SmokeNotRun
from builder.run.select import RUNNER_NAMES

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.engines.base import BuildResult
    from builder.smoke.options import SlurmOptions, SmokeOptions
    from builder.smoke.reports import StoredReport
    from builder.smoke.run import SmokeReport


@click.command()
@target_argument
@click.option(
    "--runner",
    type=click.Choice(RUNNER_NAMES),
    help="Runner for the image. Default: the first that works.",
)
@click.option(
    "--all-gpus",
    is_flag=True,
    help="Run one process per GPU, concurrently, and measure communication between them.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of GPUs that must be present (on each node).",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    default=420.0,
    show_default=True,
    help="Seconds after which the benchmark is stopped.",
)
@click.option(
    "--compare",
    metavar="X",
    help="Show what changed since an earlier image: tag, date, digest, 'previous', HOST/REPOSITORY:TAG or "
    "a report's file.",
)
@click.option(
    "--ab",
    "pair",
    nargs=2,
    metavar="OLD NEW",
    help="Run two images in turn and compare them: each 'build', a tag, a digest, HOST/REPOSITORY:TAG, "
    "FILE.sif or oci:DIR:TAG.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=3, max=20),
    metavar="N",
    help="With --ab: number of rounds of four runs. Default: 3.",
)
@job_options
@click.option(
    "--image",
    default="",
    help="With --on slurm: a SIF's path on the site, or an image reference. Default: the image just built.",
)
@click.option("--all", "everything", is_flag=True, help="Show every probe, figure and comparison.")
@common_options
@pass_context
def smoke(
    context: Context,
    /,
    target: str | None,
    runner: str | None,
    all_gpus: bool,
    devices: int | None,
    timeout_s: float,
    compare: str | None,
    pair: tuple[str, str] | None,
    rounds: int | None,
    image: str,
    everything: bool,
    **job_values: Any,
) -> None:
    """Build TARGET if needed, run the benchmark inside its image, and grade the results.

    \b
        builder smoke cpu --compare previous
        builder smoke lumi-g --on slurm --nodes 2 --account project_465000000
        builder smoke cpu --ab 26.10 build
    """
    from builder.smoke.options import SmokeOptions

    options = SmokeOptions(runner=runner, timeout_s=timeout_s, devices=devices, all_gpus=all_gpus)
    slurm = take_job_options(job_values, runner=runner, image=image)
    annotations = origin_annotations(
        os.environ.get("BUILDER_SOURCE"), os.environ.get("BUILDER_REVISION")
    )
    recipe = context.one_recipe(target)
    if pair or rounds:
        wanted = check_ab(pair, rounds, {"--compare": compare, "--image": image})
        run_ab(context, recipe, wanted, options, slurm, annotations)
    else:
        _smoke(context, recipe, annotations, options, slurm, Shown(compare or "", everything))


@dataclass(frozen=True)
class Shown:
    """What is printed beside the verdict."""

    compare: str
    """The earlier image; empty: earlier runs of the site on GPUs of the same model."""
    everything: bool


def _smoke(
    context: Context,
    recipe: Recipe,
    annotations: dict[str, str],
    options: SmokeOptions,
    slurm: SlurmOptions | None,
    shown: Shown,
) -> None:
    """Build the target, test it, print the result, and end the command with its exit code.

    Args:
        context: of the command.
        recipe: the target.
        annotations: of the build.
        options: how the benchmark runs.
        slurm: the job; None: the test runs on this host.
        shown: what is printed.
    """
    from builder.smoke.reports import earlier_runs
    from builder.smoke.slurm import check_smoke_job, complete_job

    if slurm is not None:
        check_smoke_job(recipe, slurm, options)
    result = context.project.build(recipe, annotations=annotations)
    place = context.project.place(result)
    earlier = _earlier_runs(context, recipe, shown.compare, result.digest) if shown.compare else []
    job = (
        complete_job(slurm, result, place, all_gpus=options.all_gpus) if slurm is not None else None
    )
    if job and "@" in job.image and not job.is_other and result.sif is None:
        hint = f"push it first: builder publish {recipe.name} --no-tags"
        context.output.note(f"the job runs {job.image}; {hint}")
    run = context.project.smoke(result, options, job)
    if not shown.compare:
        earlier = earlier_runs(run.report, context.project.reports)
    _finish(context, result, run, earlier, shown)


def _earlier_runs(context: Context, recipe: Recipe, text: str, digest: str) -> list[StoredReport]:
    """Return the runs that ``--compare`` names: stored in the project, or attached to a published
    image.
    """
    from builder.publishing.attest import SMOKE_REPORT
    from builder.publishing.publish import destination_text
    from builder.registry.referrers import fetch_attached
    from builder.smoke.reports import find_reports

    def attached(name: str) -> Sequence[tuple[str, bytes]]:
        reference = name
        if "/" not in name and not name.startswith("oci:"):  # a tag of the recipe's repository
            if not recipe.registry.host:
                return []
            reference = f"{destination_text(recipe)}:{name}"
        artifacts = fetch_attached(
            reference, SMOKE_REPORT, context.settings, reporter=context.output
        )
        return [(reference, file.data) for artifact in artifacts for file in artifact.files]

    folder = context.project.reports / recipe.name
    return find_reports(text, folder, without=digest, attached=attached)


def _finish(
    context: Context,
    result: BuildResult,
    run: SmokeReport,
    earlier: Sequence[StoredReport],
    shown: Shown,
) -> None:
    """Print the result, record whether the build passed, and end the command with its exit code.

    The verdict of another image (``--image``) is printed only. A comparison causes no exit code.
    """
    from builder.publishing.smoke_record import SmokeRecord
    from builder.smoke.changes import compare
    from builder.smoke.reports import StoredReport
    from builder.smoke.table import render, render_changes

    if run.verdict == "none":
        _finish_untested(context, run)
        return
    context.output.table(render(run, everything=shown.everything))
    comparison = None
    if earlier and run.verdict != "error":
        comparison = compare([StoredReport(run.report, str(run.path or "this run"))], earlier)
        if shown.compare or shown.everything or comparison.changed:
            name = shown.compare or "earlier runs on GPUs of the same model"
            context.output.table(render_changes(comparison, name))
    context.output.result(
        {
            "target": result.recipe.name,
            "digest": run.image_digest,
            "runner": run.runner,
            "verdict": run.verdict,
            "seconds": run.duration_s,
            "report": run.report,
            "file": run.path,
            "comparison": comparison.to_json() if comparison else None,
        }
    )
    if run.image_digest == result.digest:
        SmokeRecord(context.settings.cache).update(run, context.project.smoke_plan(result))
    code = {"error": SmokeNotRun.exit_code, "fail": SmokeError.exit_code}.get(run.verdict, 0)
    context.output.text(f"exit code {code}")
    if code:
        context_exit(code)


def _finish_untested(context: Context, run: SmokeReport) -> None:
    """Print that the recipe does not test the image, and why."""
    from builder.smoke.grade import MEANINGS

    name, reason = run.report["image"]["target"], run.report["test"]["none"]
    context.output.note(f"{name} is not smoke-tested: {reason}")
    context.output.note(MEANINGS[run.verdict])
    context.output.result(
        {"target": name, "digest": run.image_digest, "verdict": run.verdict, "report": run.report}
    )
