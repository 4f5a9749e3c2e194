"""``builder smoke --ab OLD NEW``: two images in turn, on this host or in one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.cli.context import Context, context_exit
from builder.errors import LockError, SmokeError, SmokeNotRun, UsageError

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.engines.base import BuildResult
    from builder.smoke.ab import Ab
    from builder.smoke.abrun import AbRuns, Side
    from builder.smoke.options import SlurmOptions, SmokeOptions
    from builder.smoke.suggested import SmokePlan


@dataclass(frozen=True)
class PairOptions:
    """What ``--ab`` and ``--rounds`` ask for."""

    pair: tuple[str, str]
    """The old and the new image, see :func:`builder.publishing.sides.named_side`; ``build`` is the
    build.
    """
    rounds: int


def check_ab(
    pair: tuple[str, str] | None, rounds: int | None, others: Mapping[str, object]
) -> PairOptions:
    """Check the options of a comparison.

    Args:
        pair: the value of ``--ab``.
        rounds: the value of ``--rounds``; None: not given.
        others: options that have no meaning with ``--ab``, and their values.

    Raises:
        UsageError: one of these was given, or ``--rounds`` without ``--ab``.
    """
    if pair is None:
        raise UsageError("--rounds requires --ab", "add --ab OLD NEW")
    for option, value in others.items():
        if value:
            raise UsageError(f"{option} cannot be combined with --ab", "leave out one of them")
    from builder.smoke.ab import MIN_ROUNDS

    return PairOptions(pair, rounds or MIN_ROUNDS)


def run_ab(
    context: Context,
    recipe: Recipe,
    wanted: PairOptions,
    options: SmokeOptions,
    slurm: SlurmOptions | None,
    annotations: dict[str, str],
) -> None:
    """Compare two images, prints the result, and ends the command with its exit code.

    Args:
        context: of the command.
        recipe: the target.
        wanted: the images and the number of rounds.
        options: how the benchmark runs.
        slurm: the job; None: on this host.
        annotations: of the build.
    """
    from builder.publishing.sides import BUILD, built_side, named_side, run_sides
    from builder.smoke.abrun import ab_options
    from builder.smoke.slurm import check_smoke_job

    project = context.project
    if slurm is not None:
        check_smoke_job(recipe, slurm, options)
    named = {
        name: named_side(name, recipe, project, slurm, lambda: _repository(recipe))
        for name in wanted.pair
        if name != BUILD
    }
    result = project.build(recipe, annotations=annotations) if BUILD in wanted.pair else None
    options = ab_options(_plan(context, recipe, result), options)
    built = {BUILD: built_side(project, result, slurm)} if result is not None else {}
    sides = {
        which: {**named, **built}[name]
        for which, name in zip(("old", "new"), wanted.pair, strict=True)
    }
    if sides["old"].digest == sides["new"].digest:
        context.output.note("both images are the same: what differs is the machine")
    runs = run_sides(project, recipe, sides, options=options, rounds=wanted.rounds, slurm=slurm)
    _finish(context, recipe, sides, runs)


def _repository(recipe: Recipe) -> str:
    """Return the repository of tags and digests."""
    from builder.publishing.destination import destination_text

    if not recipe.registry.host:
        raise UsageError(
            f"{recipe.source}: registry.host is not set, so a tag or digest names no image",
            "write HOST/REPOSITORY:TAG, FILE.sif or oci:DIR:TAG",
        )
    return destination_text(recipe)


def _plan(context: Context, recipe: Recipe, result: BuildResult | None) -> SmokePlan:
    """Return what the recipe tests, by the packages of the build or of the lock file."""
    from builder.lock.file import read_lock
    from builder.smoke.suggested import TORCH, plan_smoke

    if result is not None:
        return context.project.smoke_plan(result)
    try:
        packages = read_lock(recipe.lock_path).for_platform(recipe.platform)
    except (LockError, OSError):
        return TORCH
    return plan_smoke(recipe.smoke, packages, ())


def _finish(context: Context, recipe: Recipe, sides: dict[str, Side], runs: AbRuns) -> None:
    from builder.publishing.smoke_record import SmokeRecord
    from builder.smoke.ab import compare_rounds
    from builder.smoke.table import render, render_ab

    failed = [run for run in runs.all if run.verdict in ("error", "fail")]
    for run in (run for run in failed if run.verdict == "fail"):
        SmokeRecord(context.settings.cache).update(run)  # an earlier pass does not count any more
    result = None
    if failed:
        context.output.table(render(failed[-1]))
    if runs.rounds:
        result = compare_rounds([[run.report for run in one] for one in runs.rounds])
        context.output.table(render_ab(result, sides))
    code, why = _exit_code(runs, result)
    context.output.result(_to_json(recipe, sides, runs, result))
    context.output.text(f"exit code {code}{why}")
    if code:
        context_exit(code)


def _exit_code(runs: AbRuns, result: Ab | None) -> tuple[int, str]:
    """Return the exit code and the reason for it."""
    if result is None:
        return SmokeNotRun.exit_code, ": no verdict"
    if result.verdict == "unsteady":
        return (
            SmokeNotRun.exit_code,
            ": no verdict; run it again when nothing else uses the machine",
        )
    if any(
        run.verdict == "fail"
        for run in (runs.first["new"], *(r for one in runs.rounds for r in one[1:3]))
    ):
        return SmokeError.exit_code, ": the smoke test of the new image failed"
    if result.verdict == "slower":
        return SmokeError.exit_code, ": the new image is slower"
    return 0, ""


def _to_json(
    recipe: Recipe, sides: dict[str, Side], runs: AbRuns, result: Ab | None
) -> dict[str, Any]:
    return {
        "target": recipe.name,
        **{which: {"name": side.name, "digest": side.digest} for which, side in sides.items()},
        "runner": runs.first["old"].runner,
        **(
            result.to_json()
            if result
            else {"verdict": "error", "rounds": 0, "figures": [], "notes": []}
        ),
        "first": {which: run.verdict for which, run in runs.first.items()},
        "runs": [run.path for run in runs.all],
    }
