"""``builder smoke``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

import click

from builder.build.run import RUNNER_NAMES
from builder.core.errors import refuse

from .context import Context, context_exit, target_argument, with_context
from .options import COUNT, choice, flag, option, take_origin, text_option
from .slurmoptions import job_options, take_job_options

if TYPE_CHECKING:
    from builder.deliver.launch.pair import PairTest
    from builder.deliver.launch.smoke import SmokeOutcome


@click.command()
@target_argument
@choice("--runner", of=RUNNER_NAMES)
@flag("--all-gpus")
@option("--devices", type=COUNT, metavar="N")
@option("--timeout", "timeout_s", metavar="S", default=420.0, show_default=True)
@text_option("--compare", "X")
@option("--ab", "pair", nargs=2, metavar="OLD NEW")
@option("--rounds", type=click.IntRange(min=3, max=20), metavar="N")
@job_options
@option("--image", default="")
@flag("--all", "everything")
@with_context
def smoke(
    context: Context,
    /,
    target: str | None,
    compare: str,
    pair: tuple[str, str] | None,
    rounds: int | None,
    image: str,
    everything: bool,
    **values: Any,
) -> None:
    """Build TARGET if needed, run the benchmark inside its image, and grade the results.

    \b
        builder smoke cpu --compare previous
        builder smoke lumi-g --on slurm --nodes 2 --account project_465000000
        builder smoke cpu --ab 26.10 build
    """
    from builder.deliver.launch.pair import compare_pair
    from builder.deliver.launch.smoke import SmokeRequest, smoke_target
    from builder.deliver.smoke.options import SmokeOptions

    slurm = take_job_options(values, runner=values["runner"], image=image)
    options = SmokeOptions(**values)
    origin = {name: os.environ.get(f"BUILDER_{name.upper()}") for name in ("source", "revision")}
    recipe = context.project.one_recipe(target)
    request = SmokeRequest(options, slurm, compare, take_origin(origin))
    if pair:
        others = {"--compare": compare, "--image": image}
        refuse(others, "{} cannot be combined with --ab", "leave out one of them")
        _print_pair(context, compare_pair(context.project, recipe, pair, request, rounds))
    else:
        refuse({"--rounds": rounds}, "{} requires --ab", "add --ab OLD NEW")
        test = smoke_target(context.project, recipe, request)
        _print(context, test, compare, everything=everything)


def _print(context: Context, test: SmokeOutcome, compare: str, *, everything: bool) -> None:
    """Print the result, or why the recipe has no test, and end the command with its exit code."""
    from builder.deliver.smoke.grade import MEANINGS
    from builder.deliver.smoke.table import render, render_changes

    run, comparison = test.run, test.comparison
    name = run.report["image"]["target"]
    if run.verdict == "none":
        context.output.note(f"{name} is not smoke-tested: {run.report['test']['none']}")
        context.output.note(MEANINGS[run.verdict])
    else:
        context.output.table(render(run, everything=everything))
    if comparison and (compare or everything or comparison.changed):
        earlier = compare or "earlier runs on GPUs of the same model"
        context.output.table(render_changes(comparison, earlier))
    context.output.result(
        {
            "target": name,
            "digest": run.image_digest,
            "runner": run.runner,
            "verdict": run.verdict,
            "seconds": run.duration_s,
            "report": run.report,
            "file": run.path,
            "comparison": comparison.to_json() if comparison else None,
        }
    )
    _exit(context, test.exit_code)


def _print_pair(context: Context, test: PairTest) -> None:
    """Print the result for two images, and end the command with its exit code."""
    from builder.deliver.smoke.table import render, render_ab

    if test.failed:
        context.output.table(render(test.failed[-1]))
    if test.result is not None:
        context.output.table(render_ab(test.result, test.images))
    context.output.result(test.to_json())
    _exit(context, *test.exit_code)


def _exit(context: Context, code: int, reason: str = "") -> NoReturn:
    context.output.text(f"exit code {code}{reason}")
    context_exit(code)
