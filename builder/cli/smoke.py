"""``builder smoke``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.context import Context, common_options, context_exit, pass_context, target_argument
from builder.run.select import RUNNER_NAMES

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.engines.base import BuildResult
    from builder.smoke.history import Comparison, Kept
    from builder.smoke.run import SmokeReport

#: The smoke test did not pass, or is slower than what ``--compare`` names; it could not be carried out.
NOT_PASSED, NOT_RUN = 11, 14


@click.command()
@target_argument
@click.option(
    "--runner",
    type=click.Choice(RUNNER_NAMES),
    help="Default: the first that works.",
)
@click.option(
    "--all-gpus",
    is_flag=True,
    help="One process for each GPU of this host (or node): all at once, and with each other.",
)
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="How many GPUs there must be, on each node."
)
@click.option(
    "--timeout",
    "timeout_s",
    default=300.0,
    show_default=True,
    help="Seconds after which the test counts as hung.",
)
@click.option(
    "--budget", "budget_s", type=click.FloatRange(min=1), metavar="S", help="Seconds for the measurements."
)
@click.option(
    "--compare",
    metavar="X",
    help="A dated tag, date, digest, 'previous', host/repository:tag, or a report's file.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1, max=20),
    help="Runs of the test. Default: 1; 3 where --compare finds it slower.",
)
@click.option(
    "--on",
    "where",
    type=click.Choice(["slurm"]),
    help="As a job on the target's own nodes, through its site's recipe.",
)
@click.option(
    "--nodes", default=1, show_default=True, help="With --on slurm: 2 and more measure the network."
)
@click.option("--account", default="", metavar="A", help="With --on slurm: whom the time is charged to.")
@click.option(
    "--time",
    "time_limit",
    default="",
    metavar="T",
    help="With --on slurm: the job's limit, as Slurm writes it.",
)
@click.option(
    "--image",
    default="",
    help="With --on slurm: a SIF's path there, or a reference. Default: the SIF built here.",
)
@click.option("--mlflow", metavar="URI", help="Log the figures there (needs mlflow beside builder).")
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Log the figures there.",
)
@common_options
@pass_context
def smoke(
    context: Context,
    target: str,
    runner: str | None,
    all_gpus: bool,
    devices: int | None,
    timeout_s: float,
    budget_s: float | None,
    compare: str | None,
    repeat: int | None,
    where: str | None,
    nodes: int,
    account: str,
    time_limit: str,
    image: str,
    mlflow: str | None,
    tensorboard: Path | None,
) -> None:
    """Build TARGET if needed, run the smoke benchmark inside its image, and grade what it measured.

    \b
        builder smoke cpu --compare previous
        builder smoke lumi-g --on slurm --nodes 2 --account project_465000000
    """
    from builder.errors import UsageError
    from builder.publishing.publish import SmokeRecord
    from builder.smoke import track
    from builder.smoke.grade import worst
    from builder.smoke.slurm import smoke_on_slurm
    from builder.smoke.table import render, render_comparison

    if where is None:
        for option, given in (
            ("--nodes", nodes != 1),
            ("--account", account),
            ("--time", time_limit),
            ("--image", image),
        ):
            if given:
                raise UsageError(f"{option} is for jobs", "add --on slurm")
    elif runner:
        raise UsageError(
            "--runner and --on slurm do not go together: the site's recipe says what runs the image",
            "leave one out",
        )
    track.check(mlflow, tensorboard)
    project = context.project
    recipe = project.recipe(target)
    folder = project.reports / recipe.name
    result = project.build(recipe)
    place = project.place(result)
    old = _baseline(context, recipe, compare, folder, result.digest) if compare else []

    def launch() -> SmokeReport:
        if where == "slurm":
            return smoke_on_slurm(
                recipe,
                image or _sif(result, place),
                result.digest,
                folder.absolute(),
                nodes=nodes,
                gpus=recipe.site.node.gpus or None if all_gpus else None,
                account=account,
                time_limit=time_limit,
                timeout_s=timeout_s,
                budget_s=budget_s,
                devices=devices,
                lock=result.lock,
                reporter=context.output,
            )
        return project.smoke(
            result, runner=runner, timeout_s=timeout_s, devices=devices, all_gpus=all_gpus, budget_s=budget_s
        )

    runs = [_run(context, launch, mlflow, tensorboard) for _ in range(repeat or 1)]
    comparison = None
    if old and any(r.verdict != "error" for r in runs):
        comparison = _compare(context, runs, old)
        if comparison.regressions and repeat is None:
            context.output.note(
                f"slower: {', '.join(sorted({c.id for c in comparison.regressions}))}; running it twice more to be sure"
            )
            runs += [_run(context, launch, mlflow, tensorboard) for _ in range(2)]
            comparison = _compare(context, runs, old)
    verdict = worst(r.verdict for r in runs)
    shown = max(runs, key=lambda r: r.verdict == verdict)
    context.output.table(render(shown))
    if comparison is not None:
        context.output.table(render_comparison(comparison, compare or ""))
    context.output.result(
        {
            "target": target,
            "digest": shown.image_digest,
            "runner": shown.runner,
            "verdict": verdict,
            "seconds": shown.duration_s,
            "report": shown.report,
            "runs": [r.path for r in runs],
            "comparison": comparison.to_json() if comparison else None,
        }
    )
    if verdict == "error":
        context_exit(NOT_RUN)
    if verdict == "fail" or (comparison and comparison.regressions):
        context_exit(NOT_PASSED)
    SmokeRecord(context.settings.cache).keep(shown.image_digest, verdict, shown.runner, shown.path)


def _run(
    context: Context, launch: Callable[[], SmokeReport], mlflow: str | None, tensorboard: Path | None
) -> SmokeReport:
    """One run, logged where that was asked for."""
    from builder.smoke import track

    report = launch()
    if mlflow is not None:
        number = track.to_mlflow(mlflow, report.report, report.path)
        context.output.note(f"logged to MLflow as run {number}")
    if tensorboard is not None:
        context.output.note(f"logged to {track.to_tensorboard(tensorboard, report.report)}")
    return report


def _sif(result: BuildResult, place: Path) -> str:
    """The SIF that was built here, where the site's runtime takes one; it has to lie where the nodes see it."""
    return str(place.absolute()) if result.sif is not None and result.recipe.site.runtime.takes_sif else ""


def _baseline(context: Context, recipe: Recipe, text: str, folder: Path, digest: str) -> list[Kept]:
    """The runs that ``--compare`` names: kept here, or attached to a published image."""
    from builder.publishing.attest import SMOKE_REPORT
    from builder.publishing.publish import destination_text
    from builder.registry.referrers import fetch_attached
    from builder.smoke.history import resolve

    def attached(name: str) -> Sequence[tuple[str, bytes]]:
        reference = name if "/" in name or name.startswith("oci:") else ""
        if not reference:
            if not recipe.registry.host:
                return []
            reference = f"{destination_text(recipe, None, None)}:{name}"
        found = fetch_attached(reference, SMOKE_REPORT, context.settings, reporter=context.output)
        return [(reference, f.data) for a in found for f in a.files]

    return resolve(text, folder, without=digest, attached=attached)


def _compare(context: Context, runs: Sequence[SmokeReport], old: Sequence[Kept]) -> Comparison:
    from builder.smoke.history import Kept, compare

    new = [Kept(r.report, str(r.path or "this run")) for r in runs if r.verdict != "error"]
    return compare(new, old, old_packages=_packages_attached(context, old))


def _packages_attached(context: Context, old: Sequence[Kept]) -> dict[str, str] | None:
    """The packages of a published image from its bill of material, where its reports do not tell them."""
    from builder.errors import BuilderError
    from builder.publishing.attest import SBOM
    from builder.registry.referrers import fetch_attached
    from builder.smoke.history import packages_of_sbom

    source = old[-1].source
    if old[-1].packages is not None or Path(source).exists():
        return None
    try:
        found: list[Any] = fetch_attached(source, SBOM, context.settings, reporter=context.output)
        return packages_of_sbom(found[-1].files[0].data, source) if found and found[-1].files else None
    except BuilderError as e:
        context.output.warn(e.message)
        return None
