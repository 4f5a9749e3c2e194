"""The smoke test that an image must pass before a tag moves: on this host, or as a Slurm job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from builder.engines.base import BuildResult
from builder.errors import SmokeError, SmokeNotRun, UsageError
from builder.model import Image
from builder.project import Project
from builder.publishing.places import Place, RegistryPlace
from builder.publishing.smoke_record import PASSED, SmokeRecord
from builder.smoke.options import SlurmOptions, SmokeOptions

SmokePolicy = Literal["auto", "always"]
#: A verdict with which tags may move, and the report.
Passed = tuple[str, dict[str, Any] | None]


@dataclass(frozen=True)
class SmokeGate:
    """The smoke test of one publish."""

    project: Project
    options: SmokeOptions
    policy: SmokePolicy = "auto"
    job: SlurmOptions | None = None
    """The job that runs the test; None: it runs on this host."""

    def known(self, result: BuildResult) -> Passed | None:
        """Return the verdict without a test: it is on record, or the recipe says that there is
        none.

        A SIF and the image that it was made of contain the same files: a test of either counts. A
        pass of another test than the recipe's does not.
        """
        plan = self.project.smoke_plan(result)
        if plan.none:
            from builder.smoke.run import not_tested

            self.project.reporter.note(f"{result.recipe.name} is not smoke-tested: {plan.none}")
            return "none", not_tested(result.digest, result.recipe, plan.none).report
        if self.policy == "always":
            return None
        record = SmokeRecord(self.project.settings.cache)
        for artifact in (result.sif, result.image):
            verdict = record.passed(artifact.digest, plan) if artifact is not None else None
            if artifact is not None and verdict:
                self.project.reporter.note(
                    f"{result.recipe.name}: smoke test {verdict}, on record for {artifact.digest[:19]}"
                )
                return verdict, record.report(artifact.digest, plan)
        return None

    def prepare_job(self, place: Place, result: BuildResult, image: Image) -> SlurmOptions | None:
        """Return the complete options of the job, before anything is pushed; None without a job.

        A SIF is put into ``dist/``, which the nodes must see.

        Raises:
            UsageError: no job can run what is published.
        """
        if self.job is None:
            return None
        from builder.smoke.slurm import complete_job

        runtime = result.recipe.site.runtime
        if (
            not isinstance(place, RegistryPlace)
            and not runtime.takes_sif
            and runtime.kind != "userns"
        ):
            raise UsageError(
                f"the nodes run {runtime.kind}, which runs no image from {place.name}",
                "publish to a registry: --to HOST/ or --to HOST/REPOSITORY",
            )
        is_file = result.sif is not None or runtime.kind == "userns"
        folder = self.project.place(result) if is_file else Path()
        reference = f"{place.name}@{image.digest}"
        all_gpus = self.options.all_gpus
        return complete_job(self.job, result, folder, all_gpus=all_gpus, reference=reference)

    def run(self, result: BuildResult) -> Passed:
        """Run the test on this host, and records its result.

        Raises:
            SmokeError: it did not pass.
        """
        return self._run(result, None, "to test it on the target instead: --no-tags")

    def run_job(self, place: Place, result: BuildResult, image: Image, job: SlurmOptions) -> Passed:
        """Run the test as a job on the image that was pushed, and records its result.

        Raises:
            SmokeError: it did not pass.
            RunnerError: Slurm rejects the job, or podman-hpc cannot pull the image.
        """
        recipe = result.recipe
        if recipe.site.runtime.kind == "podman-hpc" and isinstance(place, RegistryPlace):
            from builder.publishing.engines import PullEngine, pull_into

            engine = PullEngine("podman-hpc", self.project.settings, self.project.reporter)
            pull_into(engine, recipe, place, image.digest, if_changed=True)
        return self._run(result, job, f"the image is at {place.name}@{image.digest}, without a tag")

    def compare(self, place: Place, result: BuildResult, image: Image, previous: str) -> None:
        """Run the published image and the new one in turn, on this host or in a job.

        Args:
            place: where the published image is; in a job, the new one too.
            result: the build.
            image: what is published of it.
            previous: the digest of the published image.

        Raises:
            SmokeError: the new image is slower, or there is no verdict.
            UsageError: the image computes nothing, or no job of the site can run both images.
        """
        from builder.publishing.sides import built_side, named_side, run_sides
        from builder.smoke.ab import MIN_ROUNDS, compare_rounds
        from builder.smoke.abrun import ab_options

        recipe, project = result.recipe, self.project
        options = ab_options(project.smoke_plan(result), self.options)
        old = f"{place.name}@{previous}"
        sides = {
            "old": named_side(old, recipe, project, self.job, lambda: place.name),
            "new": built_side(project, result, self.job, reference=f"{place.name}@{image.digest}"),
        }
        runs = run_sides(project, recipe, sides, options=options, rounds=MIN_ROUNDS, slurm=self.job)
        found = compare_rounds([[run.report for run in reports] for reports in runs.rounds])
        reasons = [*found.notes, *(text for run in runs.all for text in _found(run.report, "fail"))]
        again = f"builder smoke {recipe.name} --ab {old} build{' --on slurm' if self.job else ''}"
        if found.verdict == "unsteady":
            raise SmokeNotRun(
                f"{recipe.name} could not be compared with {old}; no tag was moved: {'; '.join(reasons)}",
                f"see all figures: {again}; or publish without --ab",
            )
        if found.slower:
            raise SmokeError(
                f"{recipe.name} is slower than {old}; no tag was moved"
                + "".join(f"\n  {figure}" for figure in found.slower),
                f"see all figures: {again}",
            )
        project.reporter.note(f"{recipe.name} is not slower than {old}, in {found.rounds} rounds")

    def _run(self, result: BuildResult, job: SlurmOptions | None, hint: str) -> Passed:
        report = self.project.smoke(result, self.options, job)
        name = result.recipe.name
        plan = self.project.smoke_plan(result)
        SmokeRecord(self.project.settings.cache).update(report, plan)
        if report.verdict not in PASSED:
            on = " --on slurm" if job else ""
            reasons = "".join(f"\n  {reason}" for reason in _found(report.report, "fail"))
            raise SmokeError(
                f"the smoke test of {name} ended with {report.verdict} (runner: {report.runner}); "
                f"no tag was moved{reasons}",
                f"see the failed probes: builder smoke {name}{on}; {hint}",
            )
        for warning in _found(report.report, "warn"):
            self.project.reporter.note(f"smoke test: {warning}")
        return report.verdict, report.report


def _found(report: dict[str, Any], status: str) -> list[str]:
    """Return what a report says about everything with a status, a line each."""
    from builder.smoke.values import findings_of

    entries = [*report.get("probes", ()), *report.get("measurements", ()), *findings_of(report)]
    return [
        f"{status} {entry['id']}: {entry['seen']}" for entry in entries if entry["status"] == status
    ]
