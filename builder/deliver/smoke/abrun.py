"""Runs two images in turn for ``builder smoke --ab``: on this host, or in one Slurm job.

Each image is first tested once: that fills the caches of file systems and libraries, and warms the
GPU up. Then come the rounds (:data:`builder.deliver.smoke.ab.ROUND`), which measure the device
only. Both images run this builder's benchmark, so that an older image is measured in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.build.image.files import smoke_program
from builder.core.errors import UsageError
from builder.core.model import Image, Lock, SifImage
from builder.core.progress import QUIET, Reporter
from builder.core.store.temporary import temporary_folder
from builder.core.workspace import Workspace
from builder.deliver.site.job import BatchJob
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render, templates
from builder.lock.config.recipe import Recipe

from .ab import ROUND
from .evidence import ran_digest
from .options import START_S, SlurmOptions, SmokeOptions
from .reports import store_report
from .run import SmokeReport, benchmark_command, complete, smoke
from .schema import could_not_run
from .slurm import (
    MARGIN_S,
    REPORT,
    collect_report,
    job_request,
    job_runner,
    run_script,
    with_sif_hash,
)
from .suggested import SmokePlan
from .values import Report

_PROGRAM = "smoke.py"
#: The part of a run's time limit that it is expected to need, for the time limit of the job.
_USUAL_PART = 0.5


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two images."""

    name: str
    """As the user named it."""
    digest: str
    artifact: Image | SifImage | None = None
    """For runs on this host."""
    reference: str = ""
    """For jobs: a SIF's path, a reference with a digest, or ``oci:FOLDER@DIGEST`` (builder run)."""
    lock: Lock | None = None
    """Of an image that was built here: its reports list the packages."""


@dataclass(frozen=True, slots=True)
class AbTest:
    """Two images, and how they are tested in turn."""

    sides: Mapping[str, Side]
    """``old`` and ``new``."""
    recipe: Recipe
    """The target: its GPUs, the prefix of its environment, and its site."""
    options: SmokeOptions
    """See :func:`ab_options`."""
    rounds: int
    """The number of rounds."""


@dataclass(frozen=True, slots=True)
class AbRuns:
    """The runs of both images."""

    all: Sequence[SmokeReport]
    """The whole test of each image, then the runs of all rounds.

    There is no round if an image could not be tested.
    """

    @property
    def first(self) -> dict[str, SmokeReport]:
        """The whole test of each image, ``old`` and ``new``."""
        return dict(zip(("old", "new"), self.all, strict=False))

    @property
    def rounds(self) -> list[Sequence[SmokeReport]]:
        """The runs of each round, in the order of :data:`builder.deliver.smoke.ab.ROUND`."""
        return [self.all[i : i + len(ROUND)] for i in range(2, len(self.all), len(ROUND))]


def ab_options(plan: SmokePlan, options: SmokeOptions) -> SmokeOptions:
    """Return the options of the runs: of what the recipe tests, the framework only.

    Raises:
        UsageError: the test of the image measures nothing: only torch is measured.
    """
    if plan.framework != "torch":
        raise UsageError(
            f"--ab compares what a device computes; this image is tested for: {plan.title}",
            "leave out --ab: the smoke test checks that this image works",
        )
    return replace(options, plan=SmokePlan(plan.framework))


def ab_here(test: AbTest, work: Workspace, folder: Path) -> AbRuns:
    """Test both images in turn on this host.

    Args:
        test: the images; ``artifact`` is what runs.
        work: the workspace.
        folder: where reports are stored, as ``TARGET/DIGEST-TIME.json``.

    Raises:
        RunnerError: no runner works on this host.
        SpaceError: there is no space for a report.
    """
    # a container's root may be another user of the host
    with temporary_folder(work.settings.tmpdir, 0o755) as scratch:
        program = scratch / _PROGRAM
        program.write_bytes(smoke_program())
        program.chmod(0o644)

        def run(side: str, options: SmokeOptions) -> SmokeReport:
            one = test.sides[side]
            assert one.artifact is not None
            return smoke(one.artifact, recipe, work, options=options, lock=one.lock, folder=folder)

        recipe, options = test.recipe, replace(test.options, program=program)
        done: list[SmokeReport] = []
        for side in ("old", "new"):
            work.reporter.note(f"the {side} image, {test.sides[side].name}: first run")
            done.append(run(side, options))
            if done[-1].verdict == "error":
                return AbRuns(done)
            options = replace(options, runner=done[-1].runner)
        # What is measured once for the host was measured in the first runs.
        options = replace(options, device_only=True)
        for number in range(1, test.rounds + 1):
            work.reporter.note(f"round {number} of {test.rounds}: {', '.join(ROUND)}")
            done += [run(side, options) for side in ROUND]
    return AbRuns(done)


# in one job --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of the job."""

    folder: str
    """In the job's folder: ``03-new``."""
    name: str
    """``old`` or ``new``."""
    side: Side
    is_first: bool
    """Of its image: the whole test."""

    @property
    def script(self) -> str:
        return f"{self.name}{'-first' if self.is_first else ''}.sh"


def ab_on_slurm(
    test: AbTest, slurm: SlurmOptions, folder: Path, reporter: Reporter = QUIET
) -> AbRuns:
    """Test both images in turn in one job, on the same nodes.

    Args:
        test: the images; ``reference`` is what the job runs.
        slurm: the size of the job, which :func:`builder.deliver.smoke.slurm.check_smoke_job` checked.
        folder: ``reports/TARGET``, on a file system that the nodes share.
        reporter: receives progress messages.

    Raises:
        UsageError: the site does not have the requested nodes or GPUs.
        RunnerError: Slurm rejects the job, or does not answer.
        SpaceError: there is no space for a report.
    """
    recipe, options = test.recipe, test.options
    every, runner = enumerate(("old", "new", *ROUND * test.rounds)), job_runner(recipe)
    runs = [_Run(f"{n:02}-{name}", name, test.sides[name], is_first=n < 2) for n, name in every]
    done: list[SmokeReport] = []
    with temporary_folder(folder, 0o755) as work:
        script = _write_job(runs, test, work, slurm)
        number, state = run_script(script, recipe, work, slurm.nodes, reporter)
        for run in runs:
            side, output = run.side, folder / f"job-{number}-{run.folder}.out"
            report = collect_report(recipe, work / run.folder, number, state, output)
            report = _checked(report, side, recipe, work / run.folder)
            report = complete(report, recipe, side.digest, runner, options, side.lock, slurm.nodes)
            verdict, seconds = str(report["verdict"]), float(report["duration_s"])
            path = store_report(report, folder) if verdict != "error" else None
            done.append(SmokeReport(verdict, report, runner, side.digest, seconds, path))
    could_test = all(run.verdict != "error" for run in done[:2])
    return AbRuns(done if could_test else done[:2])


def _checked(report: Report, side: Side, recipe: Recipe, work: Path) -> Report:
    """Return the report; another one if the job ran another image."""
    ran = ran_digest(work, side.reference)
    if report["verdict"] == "error" or ran in ("", side.digest):
        return report
    seen = f"the job ran {ran}, not {side.digest}"
    return could_not_run(recipe, "image", seen, "the file has changed: start again")


def _write_job(runs: list[_Run], test: AbTest, work: Path, slurm: SlurmOptions) -> str:
    """Write a script for each kind of run, and a folder for each run; return the job's script.

    The scripts are those of ``builder job``, so they start the image as any job of the site does.
    Each run starts in its own folder, even if the previous run failed.
    """
    recipe, options = test.recipe, test.options
    # half of all limits and of a cold start, and one hang
    usual_s = _USUAL_PART * (len(runs) * options.whole_timeout_s + START_S)
    time_s = usual_s + options.limit_s + MARGIN_S
    program = smoke_program()
    for run in runs:
        (work / run.folder).mkdir()
        (work / run.folder / _PROGRAM).write_bytes(program)
    for run in {run.script: run for run in runs}.values():
        one = replace(options, all_gpus=False, device_only=not run.is_first)
        command = benchmark_command(recipe, one, report=REPORT, program=_PROGRAM)
        image = replace(slurm, image=run.side.reference)
        request = job_request(recipe, image, command, time_s)
        job = _of_side(plan_job(recipe, request), run.side)
        (work / run.script).write_text(render(with_sif_hash(job) if run.is_first else job))
    script = templates().get_template("ab.sh.j2")
    return script.render(recipe=recipe, directives=job.directives, runs=runs)


def _of_side(job: BatchJob, side: Side) -> BatchJob:
    """Return the job; for userns, with the image's reference in place of the target."""
    if not side.reference.startswith("oci:"):
        return job
    program = ("builder", "run", side.reference)
    options = tuple(word for word in job.container.options if word != "--no-build")
    return replace(job, container=replace(job.container, program=program, options=options))
