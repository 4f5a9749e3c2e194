"""Compares two images of a target in turn, on this host or in one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from builder.build.engines.base import BuildResult
from builder.core.errors import LockError, SmokeError, SmokeNotRun
from builder.core.stages import BuildOptions
from builder.deliver.project import Project
from builder.deliver.publishing.sides import BUILD, built_side, named_side, run_sides
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.ab import MIN_ROUNDS, Ab, compare_rounds
from builder.deliver.smoke.abrun import AbRuns, AbTest, Side, ab_options
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.slurm import check_smoke_job
from builder.deliver.smoke.suggested import TORCH, SmokePlan, plan_smoke
from builder.lock.config.recipe import Recipe
from builder.lock.file import read_lock

from .smoke import SmokeRequest


@dataclass(frozen=True)
class PairTest:
    """The result for two images."""

    target: str
    images: Mapping[str, Side]
    """``old`` and ``new``."""
    runs: AbRuns

    @cached_property
    def result(self) -> Ab | None:
        """The comparison; None: one of the images could not be tested."""
        rounds = [[run.report for run in reports] for reports in self.runs.rounds]
        return compare_rounds(rounds) if rounds else None

    @property
    def failed(self) -> list[SmokeReport]:
        """The runs that failed or were not possible."""
        return [run for run in self.runs.all if run.verdict in ("error", "fail")]

    @property
    def exit_code(self) -> tuple[int, str]:
        """The exit code of ``builder smoke --ab``, and the reason for it."""
        if self.result is None:
            return SmokeNotRun.exit_code, ": no verdict"
        if self.result.verdict == "unsteady":
            advice = "run it again when nothing else uses the machine"
            return SmokeNotRun.exit_code, f": no verdict; {advice}"
        new = [self.runs.first["new"], *(run for runs in self.runs.rounds for run in runs[1:3])]
        if any(run.verdict == "fail" for run in new):
            return SmokeError.exit_code, ": the smoke test of the new image failed"
        if self.result.verdict == "slower":
            return SmokeError.exit_code, ": the new image is slower"
        return 0, ""

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``builder smoke --ab --json``."""
        nothing = {"verdict": "error", "rounds": 0, "figures": [], "notes": []}
        return {
            "target": self.target,
            **{key: {"name": one.name, "digest": one.digest} for key, one in self.images.items()},
            "runner": self.runs.first["old"].runner,
            **(asdict(self.result) if self.result else nothing),
            "first": {which: run.verdict for which, run in self.runs.first.items()},
            "runs": [run.path for run in self.runs.all],
        }


def compare_pair(
    project: Project,
    recipe: Recipe,
    pair: tuple[str, str],
    request: SmokeRequest,
    rounds: int | None = None,
) -> PairTest:
    """Run two images in turn, and forget an earlier pass of one that fails.

    Args:
        project: of the target.
        recipe: the target.
        pair: the old and the new image, see :func:`builder.deliver.publishing.sides.named_side`;
            ``build`` is the build.
        request: how the benchmark runs, and where.
        rounds: the number of rounds; None: :data:`builder.deliver.smoke.ab.MIN_ROUNDS`.

    Raises:
        UsageError: a name is no image, the image computes nothing, or no job of the site can run
            both images.
        BuilderError: the target cannot be built.
    """
    job = request.job
    if job is not None:
        check_smoke_job(recipe, job, request.options)
    images = {name: named_side(name, recipe, project, job) for name in pair if name != BUILD}
    build = BuildOptions(annotations=request.annotations)
    result = project.build(recipe, build) if BUILD in pair else None
    options = ab_options(_plan(project, recipe, result), request.options)
    if result is not None:
        images[BUILD] = built_side(project, result, job)
    sides = {"old": images[pair[0]], "new": images[pair[1]]}
    if sides["old"].digest == sides["new"].digest:
        project.work.reporter.note("both images are the same: what differs is the machine")
    runs = run_sides(project, AbTest(sides, recipe, options, rounds or MIN_ROUNDS), job)
    test = PairTest(recipe.name, sides, runs)
    for run in test.failed:
        # an earlier pass does not count any more
        SmokeRecord(project.work.settings.cache).update(run)
    return test


def _plan(project: Project, recipe: Recipe, result: BuildResult | None) -> SmokePlan:
    """Return the plan of the test, by the packages of the build or of the lock file."""
    if result is not None:
        return project.smoke_plan(result)
    try:
        packages = read_lock(recipe.lock_path).for_platform(recipe.platform)
    except (LockError, OSError):
        return TORCH
    return plan_smoke(recipe.smoke, packages, ())
