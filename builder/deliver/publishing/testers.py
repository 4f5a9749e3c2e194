"""The test that an image must pass before a tag moves: a known pass, a run here, or a job.

The test has its turn twice: before the push, when the image is on this machine only, and after it,
when nodes of a site can pull the image by its digest. After the second turn the release has a
verdict with which tags may move (:meth:`Release.require_verdict`), or there was an error. The run
itself is :func:`builder.deliver.smoke.run.smoke`, through ``smoke_and_record``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from builder.build.engines.base import BuildResult
from builder.core.errors import SmokeError, SmokeNotRun, UsageError
from builder.core.model import Image
from builder.core.progress import Reporter
from builder.deliver.project import Project
from builder.deliver.site.runtimes.table import runtime_of
from builder.deliver.smoke.options import SlurmOptions, SmokeOptions
from builder.formats.registry.oras import sif_artifact
from builder.formats.registry.pull import fetch_layers

from .destination import PublishDestination, RegistryDestination
from .smoke_record import PASSED, Passed, smoke_and_record
from .tags import TagDigests, Tagging

log = logging.getLogger(__name__)

SmokePolicy = Literal["auto", "always"]


@dataclass(frozen=True)
class Release:
    """A build on its way to a tag."""

    result: BuildResult
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of a SIF's manifest, in addition to the recipe's; an OCI image has its own already."""
    verdict: str = "not run"
    """Of the smoke test."""
    report: dict[str, Any] | None = None
    """Of the smoke test; None: there is none."""

    @cached_property
    def image(self) -> Image:
        """The published image, or the artifact that contains the SIF."""
        artifact, recipe = self.result.artifact, self.result.recipe
        if isinstance(artifact, Image):
            return artifact
        annotations = {**recipe.annotations, **self.annotations}
        return sif_artifact(artifact, f"{recipe.name}.sif", annotations)

    def require_verdict(self) -> None:
        """Raise SmokeNotRun unless the verdict is pass, warn or none."""
        if self.verdict not in (*PASSED, "none"):
            name, verdict = self.result.recipe.name, self.verdict
            raise SmokeNotRun(f"{name}: smoke test {verdict}; no tag was moved", "publish again")

    def with_base(self, project: Project) -> Release:
        """Return the release with all layers on this machine; missing base layers are downloaded.

        Raises:
            RegistryError, HashMismatch, SpaceError: see
                :func:`builder.formats.registry.pull.fetch_layers`.
        """
        if not isinstance(self.result.artifact, Image):
            return self
        work = project.work
        image = fetch_layers(self.image, work.store, work.settings, work.reporter)
        return replace(self, result=replace(self.result, artifact=image))


@dataclass
class ReleaseTest:
    """The test that decides whether tags may move to a release, and the comparison after it."""

    project: Project
    destination: PublishDestination
    options: SmokeOptions
    job: SlurmOptions | None
    """The job that tests the pushed image; complete after :meth:`before_push`. None: this host tests
    and compares, before the push."""
    known: Passed | None = None
    """A verdict that is known without a test, and its report; None: a test runs."""
    previous: str | None = None
    """The digest of the published image that the new one is compared with; None: with none."""

    def before_push(self, release: Release) -> Release:
        """Test what this host can test; return the release, with a verdict if there is one.

        Raises:
            SmokeError: the test did not pass, or the new image is slower.
            UsageError: no job can run what is published.
        """
        digest = release.image.digest
        if self.known is not None:
            verdict, report = self.known
            log.info("smoke test of %s: %s, known without a run", digest, verdict)
            release = replace(release, verdict=verdict, report=report)
        elif self.job is not None:
            self.job = self._complete_job(release, self.job)
        else:
            log.info("smoke test of %s on this host, before the push", digest)
            release = release.with_base(self.project)
            release = self._run(release, "to test it on the target instead: --no-tags")
        if self.previous:
            # a SIF or layout that both runs read needs all layers, also for a job
            release = release.with_base(self.project)
            if self.job is None:
                self._compare(release, self.previous)
        return release

    def after_push(self, release: Release) -> Release:
        """Test what needs the pushed image; return the release with its verdict.

        Raises:
            SmokeError: the test did not pass, or the new image is slower.
            RunnerError: Slurm rejects the job, or podman-hpc cannot pull the image.
        """
        if self.job is None:
            return release
        if self.known is None:
            release = self._run_job(release)
        if self.previous:
            self._compare(release, self.previous)
        return release

    def _complete_job(self, release: Release, job: SlurmOptions) -> SlurmOptions:
        """Return the options of the job. A SIF is put into ``dist/``, which the nodes must see.

        Raises:
            UsageError: no job can run what is published.
        """
        from builder.deliver.smoke.slurm import complete_job

        result, runtime = release.result, runtime_of(release.result.recipe)
        name = self.destination.name
        if not (runtime.runs_sif or runtime.is_own) and not isinstance(
            self.destination, RegistryDestination
        ):
            hint = "publish to a registry: --to HOST/ or --to HOST/REPOSITORY"
            raise UsageError(f"the nodes run {runtime.name}, which runs no image from {name}", hint)
        in_dist = result.sif is not None or runtime.is_own
        folder = self.project.place(result) if in_dist else Path()
        return complete_job(job, result, folder, reference=f"{name}@{release.image.digest}")

    def _run_job(self, release: Release) -> Release:
        """Run the job on the image that was pushed; podman-hpc pulls it before."""
        recipe, image = release.result.recipe, release.image
        log.info("smoke test of %s as a job, after the push", image.digest)
        if runtime_of(recipe).migrates:
            from .engines import pull_into
            from .pull import AnyImage

            # not signed yet: no policy
            wanted = AnyImage(recipe.name, architecture=recipe.architecture)
            work = self.project.work
            pull_into("podman-hpc", wanted, self.destination, image.digest, work, if_changed=True)
        hint = f"the image is at {self.destination.name}@{image.digest}, without a tag"
        return self._run(release, hint)

    def _run(self, release: Release, hint: str) -> Release:
        """Return the release with the verdict of a test that runs now.

        Raises:
            SmokeError: it did not pass.
        """
        run = smoke_and_record(self.project, release.result, self.options, self.job)
        name = release.result.recipe.name
        if run.verdict not in PASSED:
            on = " --on slurm" if self.job else ""
            reasons = "".join(f"\n  {reason}" for reason in _found(run.report, "fail"))
            raise SmokeError(
                f"the smoke test of {name} ended with {run.verdict} (runner: {run.runner}); "
                f"no tag was moved{reasons}",
                f"see the failed probes: builder smoke {name}{on}; {hint}",
            )
        for warning in _found(run.report, "warn"):
            self.project.work.reporter.note(f"smoke test: {warning}")
        return replace(release, verdict=run.verdict, report=run.report)

    def _compare(self, release: Release, previous: str) -> None:
        """Raise SmokeError if the new image is slower, or there is no verdict.

        Raises:
            UsageError: the image computes nothing, or no job of the site can run both images.
        """
        from builder.deliver.smoke.ab import MIN_ROUNDS, compare_rounds
        from builder.deliver.smoke.abrun import AbTest, ab_options

        from .sides import built_side, named_side, run_sides

        project, result, name = self.project, release.result, self.destination.name
        recipe = result.recipe
        options = ab_options(project.smoke_plan(result), self.options)
        old, new = f"{name}@{previous}", f"{name}@{release.image.digest}"
        log.info("comparing %s with %s", new, old)
        sides = {
            "old": named_side(old, recipe, project, self.job),
            "new": built_side(project, result, self.job, reference=new),
        }
        runs = run_sides(project, AbTest(sides, recipe, options, MIN_ROUNDS), self.job)
        found = compare_rounds([[run.report for run in reports] for reports in runs.rounds])
        reasons = [*found.notes, *(text for run in runs.all for text in _found(run.report, "fail"))]
        again = f"builder smoke {recipe.name} --ab {old} build{' --on slurm' if self.job else ''}"
        if found.verdict == "unsteady":
            why = "; ".join(reasons)
            raise SmokeNotRun(
                f"{recipe.name} could not be compared with {old}; no tag was moved: {why}",
                f"see all figures: {again}; or publish without --ab",
            )
        if found.slower:
            figures = "".join(f"\n  {figure}" for figure in found.slower)
            hint = f"see all figures: {again}"
            raise SmokeError(f"{recipe.name} is slower than {old}; no tag was moved{figures}", hint)
        rounds = f"in {found.rounds} rounds"
        project.work.reporter.note(f"{recipe.name} is not slower than {old}, {rounds}")


def earlier_image(tagging: Tagging, named: TagDigests, reporter: Reporter) -> str | None:
    """Return the digest of the image that the first moving tag names; None: none, or this one."""
    plan = tagging.plan
    tag = next((tag for tag in plan.tags if tag not in plan.fixed), "")
    digest = named.get(tag)
    if digest and digest != tagging.image.digest:
        return digest
    reason = "no tag of the target moves"
    if tag:
        reason = f"{tag} names {'this image' if digest else 'no image yet'}"
    reporter.note(f"not compared with an earlier image: {reason}")
    return None


def _found(report: dict[str, Any], status: str) -> list[str]:
    """Return one line per finding with the given status."""
    from builder.deliver.smoke.values import findings_of

    entries = [*report.get("probes", ()), *report.get("measurements", ()), *findings_of(report)]
    return [
        f"{status} {entry['id']}: {entry['seen']}" for entry in entries if entry["status"] == status
    ]
