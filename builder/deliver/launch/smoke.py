"""Builds a target, runs the benchmark in its image, and compares the result with earlier ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from builder.build.engines.base import BuildResult
from builder.core.errors import SmokeError, SmokeNotRun
from builder.core.stages import BuildOptions
from builder.deliver.project import Project
from builder.deliver.publishing.destination import destination_text
from builder.deliver.publishing.pull import find_attached
from builder.deliver.publishing.release import SMOKE_REPORT
from builder.deliver.publishing.smoke_record import smoke_and_record
from builder.deliver.smoke.changes import ReportComparison, compare
from builder.deliver.smoke.options import DEFAULTS, SlurmOptions, SmokeOptions
from builder.deliver.smoke.reports import StoredReport, earlier_runs, find_reports
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.slurm import check_smoke_job, complete_job
from builder.lock.config.recipe import Recipe

from .images import target_images

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SmokeRequest:
    """A smoke test of a target.

    Attributes:
        options: how the benchmark runs.
        job: the Slurm job that runs it; None: it runs on this host.
        compare: the image to compare with, see :func:`builder.deliver.smoke.reports.find_reports`;
            empty: earlier runs of the site on GPUs of the same model.
        annotations: annotations of the build's manifest, in addition to the recipe's.
    """

    options: SmokeOptions = DEFAULTS
    job: SlurmOptions | None = None
    compare: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SmokeOutcome:
    """The result of a smoke test.

    Attributes:
        run: the verdict and the report.
        comparison: the differences from earlier runs, which do not change the verdict. None: there
            is nothing to compare with, or no result.
    """

    run: SmokeReport
    comparison: ReportComparison | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of ``builder smoke``."""
        codes = {"error": SmokeNotRun.exit_code, "fail": SmokeError.exit_code}
        return codes.get(self.run.verdict, 0)


def smoke_target(project: Project, recipe: Recipe, request: SmokeRequest) -> SmokeOutcome:
    """Build a target, test it, and record whether the build passed.

    A verdict about another image (``job.image``) is not recorded.

    Raises:
        UsageError: no job of the site can test the build, or ``compare`` names no image.
        VerifyError: the policy of the project refuses the image of the job.
        BuilderError: the target cannot be built.
    """
    options, job = request.options, request.job
    if job is not None:
        check_smoke_job(recipe, job, options)
        job = replace(job, image=target_images(project, recipe).accepted(job.image))
    result = project.build(recipe, BuildOptions(annotations=request.annotations))
    folder = project.place(result)
    earlier = _named_runs(project, recipe, request.compare, result.digest)
    if job is not None:
        job = complete_job(job, result, folder)
        _note_push(project, result, job)
    run = smoke_and_record(project, result, options, job)
    if run.verdict in ("none", "error"):
        return SmokeOutcome(run)
    if not request.compare:
        earlier = earlier_runs(run.report, project.reports)
    log.info("%s: %d earlier runs to compare with", recipe.name, len(earlier))
    this = StoredReport(run.report, str(run.path or "this run"))
    return SmokeOutcome(run, compare([this], earlier) if earlier else None)


def _note_push(project: Project, result: BuildResult, job: SlurmOptions) -> None:
    """Note that a job runs the build by its digest, which must be in the registry."""
    if "@" in job.image and not job.is_other and result.sif is None:
        hint = f"push it first: builder publish {result.recipe.name} --no-tags"
        project.work.reporter.note(f"the job runs {job.image}; {hint}")


def _named_runs(project: Project, recipe: Recipe, text: str, digest: str) -> list[StoredReport]:
    """Return the runs of the image that ``text`` names: of the project, or of a registry."""

    def attached(name: str) -> Sequence[tuple[str, bytes]]:
        reference = name
        if "/" not in name and not name.startswith("oci:"):  # a tag of the recipe's repository
            if not recipe.registry.host:
                return []
            reference = f"{destination_text(recipe)}:{name}"
        artifacts = find_attached(reference, SMOKE_REPORT, project.work)
        return [(reference, file.data) for artifact in artifacts for file in artifact.files]

    folder = project.reports / recipe.name
    return find_reports(text, folder, without=digest, attached=attached) if text else []
