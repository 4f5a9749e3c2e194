"""``builder smoke``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from builder.cli.context import (
    Context,
    common_options,
    context_exit,
    origin_annotations,
    pass_context,
    target_argument,
    wishes_options,
)
from builder.cli.joboptions import job_options, take_job_options
from builder.cli.share import share_option, share_results
from builder.cli.smoke_ab import check_ab, run_ab
from builder.errors import BuilderError, SmokeError, SmokeNotRun
from builder.run.select import RUNNER_NAMES

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.engines.base import BuildResult
    from builder.smoke.compare import Comparison
    from builder.smoke.options import SlurmOptions, SmokeOptions
    from builder.smoke.reports import StoredReport
    from builder.smoke.run import SmokeReport

#: Further runs if ``--compare`` finds the image slower and ``--repeat`` is not given.
_CONFIRMING_RUNS = 2


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
    "--budget",
    "budget_s",
    type=click.FloatRange(min=1),
    metavar="S",
    help="Seconds after which no further measurement starts. Default: 60 on CPUs, 90 on GPUs.",
)
@click.option(
    "--compare",
    metavar="X",
    help="Compare with an earlier image: tag, date, digest, 'previous', host/repository:tag or report file.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1, max=20),
    metavar="N",
    help="Number of runs. Default: 1, or 3 if --compare finds the image slower.",
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
    type=click.IntRange(min=2, max=20),
    metavar="N",
    help="With --ab: number of rounds of four runs. Default: 2.",
)
@job_options
@click.option(
    "--image",
    default="",
    help="With --on slurm: a SIF's path on the site, or an image reference. Default: the image just built.",
)
@click.option("--source", envvar="BUILDER_SOURCE", help="Annotation org.opencontainers.image.source.")
@click.option("--revision", envvar="BUILDER_REVISION", help="Annotation org.opencontainers.image.revision.")
@click.option("--mlflow", metavar="URI", help="Log the results to this MLflow server (requires mlflow).")
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Log the results for TensorBoard to this folder (requires tensorboardX).",
)
@share_option("Write a copy of the reports without hosts, users, paths and dates, to send in.")
@wishes_options
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
    budget_s: float | None,
    compare: str | None,
    repeat: int | None,
    pair: tuple[str, str] | None,
    rounds: int | None,
    image: str,
    source: str | None,
    revision: str | None,
    mlflow: str | None,
    tensorboard: Path | None,
    share: Path | None,
    **job_values: Any,
) -> None:
    """Build TARGET if needed, run the benchmark inside its image, and grade the results.

    \b
        builder smoke cpu --compare previous
        builder smoke lumi-g --on slurm --nodes 2 --account project_465000000
        builder smoke cpu --ab 26.10 build
    """
    from builder.smoke.options import SmokeOptions

    options = SmokeOptions(
        runner=runner, timeout_s=timeout_s, devices=devices, all_gpus=all_gpus, budget_s=budget_s
    )
    slurm = take_job_options(job_values, runner=runner, image=image)
    trackers = _Trackers(mlflow, tensorboard)
    trackers.check()
    annotations = origin_annotations(source, revision)
    if pair or rounds:
        given = {"--compare": compare, "--repeat": repeat, "--image": image, "--mlflow": mlflow}
        wanted = check_ab(pair, rounds, {**given, "--tensorboard": tensorboard, "--share": share})
        run_ab(context, context.one_recipe(target), wanted, options, slurm, annotations)
    else:
        test = _Test(context, options, slurm, trackers, share)
        test.smoke(context.one_recipe(target), annotations, compare or "", repeat)


@dataclass(frozen=True)
class _Trackers:
    """Where results are logged."""

    mlflow: str | None
    tensorboard: Path | None

    def check(self) -> None:
        from builder.smoke import track

        track.check(self.mlflow, self.tensorboard)

    def log(self, context: Context, run: SmokeReport) -> None:
        from builder.smoke import track

        if self.mlflow is not None:
            number = track.to_mlflow(self.mlflow, run.report, run.path)
            context.output.note(f"logged to MLflow as run {number}")
        if self.tensorboard is not None:
            folder = track.to_tensorboard(self.tensorboard, run.report)
            context.output.note(f"logged to {folder}")


@dataclass(frozen=True)
class _Test:
    """The smoke test of one image, one run or several."""

    context: Context
    options: SmokeOptions
    slurm: SlurmOptions | None
    """The job; None: the test runs on this host."""
    trackers: _Trackers
    share: Path | None
    """The file for a copy of the reports to send in; None: no copy."""

    def smoke(self, recipe: Recipe, annotations: dict[str, str], compare: str, repeat: int | None) -> None:
        """Builds the target, tests it, and ends the command.

        Args:
            recipe: the target.
            annotations: of the build.
            compare: the earlier image; empty: none.
            repeat: the number of runs; None: one, and further ones if that one is slower.
        """
        from builder.smoke.slurm import check_smoke_job, complete_job

        context, all_gpus = self.context, self.options.all_gpus
        if self.slurm is not None:
            check_smoke_job(recipe, self.slurm, self.options)
        result = context.project.build(recipe, annotations=annotations)
        place = context.project.place(result)
        earlier = _earlier_runs(context, recipe, compare, result.digest) if compare else []
        job = complete_job(self.slurm, result, place, all_gpus=all_gpus) if self.slurm is not None else None
        if job and "@" in job.image and not job.is_other and result.sif is None:
            hint = f"push it first: builder publish {recipe.name} --no-tags"
            context.output.note(f"the job runs {job.image}; {hint}")
        runs = [self._run(result, job) for _ in range(repeat or 1)]
        comparison = _compare(context, runs, earlier)
        if comparison and comparison.regressions and repeat is None:
            slower = ", ".join(sorted({change.id for change in comparison.regressions}))
            context.output.note(
                f"slower: {slower}; running the test {_CONFIRMING_RUNS} more times to confirm"
            )
            runs += [self._run(result, job) for _ in range(_CONFIRMING_RUNS)]
            comparison = _compare(context, runs, earlier)
        if self.share is not None:
            share_results(context, [run.report for run in runs], self.share)
        _finish(context, result, runs, comparison, compare)

    def _run(self, result: BuildResult, job: SlurmOptions | None) -> SmokeReport:
        run = self.context.project.smoke(result, self.options, job)
        self.trackers.log(self.context, run)
        return run


def _earlier_runs(context: Context, recipe: Recipe, text: str, digest: str) -> list[StoredReport]:
    """The runs that ``--compare`` names: stored in the project, or attached to a published image."""
    from builder.publishing.attest import SMOKE_REPORT
    from builder.publishing.publish import destination_text
    from builder.registry.referrers import fetch_attached
    from builder.smoke.reports import find_reports

    def attached(name: str) -> Sequence[tuple[str, bytes]]:
        reference = name
        if "/" not in name and not name.startswith("oci:"):  # a tag of the recipe's repository
            if not recipe.registry.host:
                return []
            reference = f"{destination_text(recipe, None, None)}:{name}"
        artifacts = fetch_attached(reference, SMOKE_REPORT, context.settings, reporter=context.output)
        return [(reference, file.data) for artifact in artifacts for file in artifact.files]

    folder = context.project.reports / recipe.name
    return find_reports(text, folder, without=digest, attached=attached)


def _compare(
    context: Context, runs: Sequence[SmokeReport], earlier: Sequence[StoredReport]
) -> Comparison | None:
    """The comparison of the completed runs with earlier ones; None if one of them is empty."""
    from builder.smoke.compare import compare
    from builder.smoke.reports import StoredReport

    completed = [run for run in runs if run.verdict not in ("error", "none")]
    new = [StoredReport(run.report, str(run.path or "this run")) for run in completed]
    if not new or not earlier:
        return None
    return compare(new, earlier, old_packages=_attached_packages(context, earlier))


def _attached_packages(context: Context, earlier: Sequence[StoredReport]) -> dict[str, str] | None:
    """The packages of a published image from its SBOM, if its reports do not list them."""
    from builder.publishing.attest import SBOM
    from builder.registry.referrers import fetch_attached
    from builder.smoke.packages import packages_of_sbom

    source = earlier[-1].source
    if earlier[-1].packages is not None or Path(source).exists():
        return None
    try:
        artifacts = fetch_attached(source, SBOM, context.settings, reporter=context.output)
        if not artifacts or not artifacts[-1].files:
            return None
        return packages_of_sbom(artifacts[-1].files[0].data, source)
    except BuilderError as e:
        context.output.warn(e.message)
        return None


def _finish(
    context: Context,
    result: BuildResult,
    runs: Sequence[SmokeReport],
    comparison: Comparison | None,
    name: str,
) -> None:
    """Prints the results, and ends the command with their exit code; records whether the build passed.

    The verdict of another image (``--image``) is printed only.
    """
    from builder.publishing.smoke_record import SmokeRecord
    from builder.smoke.grade import worst
    from builder.smoke.table import render, render_comparison

    if runs[0].verdict == "none":
        _finish_untested(context, runs[0])
        return
    verdict = worst(run.verdict for run in runs)
    shown = next(run for run in runs if run.verdict == verdict)
    context.output.table(render(shown))
    if comparison is not None:
        context.output.table(render_comparison(comparison, name))
    context.output.result(
        {
            "target": result.recipe.name,
            "digest": shown.image_digest,
            "runner": shown.runner,
            "verdict": verdict,
            "seconds": shown.duration_s,
            "report": shown.report,
            "runs": [run.path for run in runs],
            "comparison": comparison.to_json() if comparison else None,
        }
    )
    of_build = [run.verdict for run in runs if run.image_digest == result.digest]
    record = SmokeRecord(context.settings.cache)
    if "fail" in of_build:
        record.drop(result.digest)
    code = 0
    if verdict == "error":
        code = SmokeNotRun.exit_code
    elif verdict == "fail" or (comparison and comparison.regressions):
        code = SmokeError.exit_code
    slower = f": slower than {escape(name)}" if comparison and comparison.regressions else ""
    context.output.text(f"[dim]exit code {code}{slower}[/dim]")
    if code:
        context_exit(code)
    if len(of_build) == len(runs):
        plan = context.project.smoke_plan(result)
        record.store(result.digest, verdict, shown.runner, shown.path, plan)


def _finish_untested(context: Context, run: SmokeReport) -> None:
    """Prints that the recipe does not test the image, and why."""
    from builder.smoke.grade import verdict_meaning

    name, reason = run.report["image"]["target"], run.report["test"]["none"]
    context.output.note(f"{name} is not smoke-tested: {reason}")
    context.output.note(verdict_meaning(run.verdict))
    context.output.result(
        {"target": name, "digest": run.image_digest, "verdict": run.verdict, "report": run.report}
    )
