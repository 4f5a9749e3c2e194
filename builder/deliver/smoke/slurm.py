"""The smoke test as a Slurm job on the site's nodes: all GPUs, and the network between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.build.engines.base import BuildResult
from builder.core.errors import UsageError
from builder.core.progress import QUIET, Reporter, working
from builder.core.store.reading import text_of
from builder.core.store.temporary import temporary_folder
from builder.deliver.site.job import BatchJob
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.limits import slurm_time
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.deliver.site.runtimes.table import runtime_of
from builder.deliver.site.scheduler import cancel, read_result, submit, wait
from builder.lock.config.recipe import Recipe

from .evidence import hash_sif, mismatch, ran_digest
from .options import DEFAULTS, SlurmOptions, SmokeOptions
from .reports import store_report
from .run import SmokeReport, benchmark_command, complete, last_lines, not_tested
from .schema import benchmark_problem, could_not_run
from .values import Report

log = logging.getLogger(__name__)

REPORT = "report.json"
#: Seconds of a job in addition to the benchmark's limit: to start the containers, and to write the report to
#: a shared file system.
MARGIN_S = 300


def smoke_on_slurm(
    result: BuildResult,
    folder: Path,
    *,
    slurm: SlurmOptions,
    options: SmokeOptions = DEFAULTS,
    reporter: Reporter = QUIET,
) -> SmokeReport:
    """Queue the benchmark on the target's nodes, wait for it, and grade and store its report.

    The report names the image that the job ran. If that is not the image that was built, the
    verdict is ``error``; only an image that the user named may be another one.

    Args:
        result: the build.
        folder: ``reports/TARGET``, on a file system that the nodes share; the job starts in a new
            folder in it.
        slurm: the image and the size of the job.
        options: how the benchmark runs; ``devices`` counts for each node.
        reporter: receives progress messages.

    Raises:
        UsageError: the site has no Slurm, or does not have the requested nodes or GPUs.
        RunnerError: Slurm rejects the job, or does not answer.
        SpaceError: there is no space for the report.
    """
    recipe = result.recipe
    if options.plan.none:
        return not_tested(result.digest, recipe, options.plan.none)
    require_slurm(recipe)
    started = time.monotonic()
    with temporary_folder(folder, 0o755) as work:
        job = _job(recipe, slurm, options)
        script = render(with_sif_hash(plan_job(recipe, job)))
        number, state = run_script(script, recipe, work, slurm.nodes, reporter)
        report = collect_report(recipe, work, number, state, folder / f"job-{number}.out")
        ran = ran_digest(work, job.image)
    is_other = slurm.is_other and ran != result.digest
    has_verdict = report["verdict"] != "error"
    if has_verdict and is_other:
        verdict = f"the verdict is of {ran or job.image} and is not recorded"
        reporter.note(f"{verdict}: the build is {result.digest}")
    elif has_verdict and (problem := mismatch(ran, job.image, result, report)):
        advice = f"test it on a node: builder smoke {recipe.name}"
        report = could_not_run(recipe, "image", problem, advice)
    digest, lock = (ran, None) if is_other else (result.digest, result.lock)
    runner = job_runner(recipe)
    report = complete(report, recipe, digest, runner, options, lock, slurm.nodes)
    path, seconds = store_report(report, folder), round(time.monotonic() - started, 3)
    return SmokeReport(report["verdict"], report, runner, digest, seconds, path)


def job_runner(recipe: Recipe) -> str:
    """Return the name of what runs the image in a job, for reports."""
    return f"slurm ({runtime_of(recipe).name})"


def require_slurm(recipe: Recipe) -> None:
    """Check that the target's site has Slurm.

    Raises:
        UsageError: it has none.
    """
    if recipe.site.slurm is None:
        raise UsageError(
            f"{recipe.site_title} has no scheduler: its recipe has no site.slurm",
            f"leave out --on slurm: builder smoke {recipe.name}",
        )


def check_smoke_job(recipe: Recipe, slurm: SlurmOptions, options: SmokeOptions = DEFAULTS) -> None:
    """Check the job of a smoke test before the image is built.

    Args:
        recipe: the target, with its site.
        slurm: the size of the job, and its options.
        options: how the benchmark runs; with ``all_gpus`` the job gets all GPUs of each node.

    Raises:
        UsageError: the site has no Slurm, or does not allow the job.
    """
    if recipe.smoke.none:
        return
    require_slurm(recipe)
    known = replace(slurm, image=slurm.image or "not-built-yet")
    plan_job(recipe, _job(recipe, known, options))


def sized(slurm: SlurmOptions, recipe: Recipe, *, all_gpus: bool) -> SlurmOptions:
    """Return the job's options with all GPUs of each node, or with the recipe's usual number."""
    return replace(slurm, gpus=(recipe.site.node.gpus or None) if all_gpus else None)


def complete_job(
    slurm: SlurmOptions, result: BuildResult, place: Path, *, reference: str = ""
) -> SlurmOptions:
    """Return the job's options with defaults from the build and the site.

    The default image is the one that was built: the SIF, which the nodes must see as a file, or a
    reference with its digest.

    Args:
        slurm: the options so far.
        result: the build.
        place: what :meth:`builder.deliver.project.Project.place` returned for it.
        reference: where the image was pushed to, with its digest; empty: in the recipe's
            repository.

    Raises:
        UsageError: the site has no Slurm, or its runtime cannot run this build.
    """
    recipe, runtime = result.recipe, runtime_of(result.recipe)
    require_slurm(recipe)
    if slurm.image and runtime.is_own:
        message = f"jobs of {recipe.name} run the build itself, so --image has no effect"
        raise UsageError(message, "leave out --image")
    sif = place if result.sif else None
    image = slurm.image or runtime.image_of_build(result.digest, sif, reference)
    return replace(slurm, image=image, is_other=bool(slurm.image))


def run_script(
    script: str, recipe: Recipe, work: Path, nodes: int, reporter: Reporter
) -> tuple[str, str]:
    """Submit a script and wait for its end; return the job's number and its final state.

    An interrupt cancels the job.
    """
    number = submit(script, folder=work, reporter=reporter)
    try:
        where = f"{nodes} node{'s' if nodes > 1 else ''}"
        reporter.note(f"smoke test of {recipe.name}: job {number} on {where}")
        with working(reporter, f"job {number}"):
            state = wait(number, reporter)
        log.info("job %s ended as %s", number, state)
        return number, state
    except BaseException:
        cancel(number)
        raise


def with_sif_hash(job: BatchJob) -> BatchJob:
    """Return the job with a line that hashes its SIF."""
    if job.image.is_file:
        return replace(job, setup=(*job.setup, hash_sif(job.image.reference)))
    return job


def _job(recipe: Recipe, slurm: SlurmOptions, options: SmokeOptions) -> JobRequest:
    """Return the job that runs the benchmark.

    It has all GPUs of each node with ``all_gpus``. Its launcher starts one process per GPU, so the
    benchmark itself starts none.
    """
    command = benchmark_command(recipe, replace(options, all_gpus=False), report=REPORT)
    job = sized(slurm, recipe, all_gpus=options.all_gpus)
    return job_request(recipe, job, command, options.limit_s + MARGIN_S)


def job_request(
    recipe: Recipe, slurm: SlurmOptions, command: Sequence[str], time_s: float
) -> JobRequest:
    """Return the request for a job that runs ``command`` for at most ``time_s`` seconds."""
    time = slurm.time or slurm_time(-(-int(time_s) // 60))  # rounded up
    return replace(slurm, command=tuple(command), time=time, name=f"smoke-{recipe.name}")


def collect_report(recipe: Recipe, work: Path, number: str, state: str, output: Path) -> Report:
    """Return the report that a job wrote; if it wrote no valid one, a report with the reason.

    The output of the run, or of the whole job, is then moved to the file ``output``.
    """
    report = read_result(work / REPORT, is_sure=state == "COMPLETED")
    if report is None and not (work / REPORT).exists():
        return _without_report(recipe, work, number, state, output)
    if report is None:
        advice = "a file system may be full or failing"
        return could_not_run(recipe, "report", f"job {number} left a damaged report", advice)
    advice = "build and publish the image again"
    if problem := benchmark_problem(report):
        return could_not_run(recipe, "report", f"job {number}: {problem}", advice)
    return dict(report)


def _without_report(recipe: Recipe, work: Path, number: str, state: str, output: Path) -> Report:
    """Return a report for a job that wrote none, with the end of the job's output."""
    logs = sorted(work.glob("*.out")) or sorted(work.parent.glob(f"*-{number}.out"))
    text, advice = "", f"scontrol show job {number}"
    if logs:
        text = text_of(logs[-1])
        logs[-1].replace(output)
        advice = f"its output: {output}"
    probe = "watchdog" if state == "TIMEOUT" else "job"
    seen = f"job {number} ended as {state} and left no report: {last_lines(text)}"
    return could_not_run(recipe, probe, seen, advice)
