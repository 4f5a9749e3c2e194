"""``builder build --on slurm``: a job for each target, and one table of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from builder.core.errors import BuilderError
from builder.core.text import Table, human_bytes, human_seconds
from builder.deliver.site.build_jobs import BuildOutcome, listed_again, run_builds
from builder.lock.config.recipe import Recipe

from .context import Context

#: Characters of a digest in the table: ``sha256:`` and 12 digits.
_SHOWN_DIGEST = 19


def build_in_jobs(
    context: Context,
    recipes: Sequence[Recipe],
    prepare: Callable[[Recipe], str],
    folder: Path,
) -> None:
    """Build targets in jobs, and print a row for each.

    Args:
        context: of the command.
        recipes: the targets.
        prepare: locks and downloads what a target needs, on this host; returns the script of its
            build.
        folder: the layout that the builds write.

    Raises:
        BuilderError: the only target cannot be built in a job.
    """
    outcomes = _outcomes(context, context.attempt(recipes, prepare), folder)
    table = Table(("target", "state", "digest", "size", "time", "error"))
    table.rows.extend(map(_row, outcomes))
    context.output.table(table)
    failed = [outcome for outcome in outcomes if outcome.state != "built"]
    for outcome in failed:
        if outcome.log is not None:
            context.output.note(f"{outcome.target}: messages in {outcome.log}")
    codes = {outcome.target: outcome.code for outcome in failed}
    context.finish([_json(outcome) for outcome in outcomes], codes)


def _outcomes(
    context: Context, prepared: Mapping[str, str | BuilderError], folder: Path
) -> list[BuildOutcome]:
    """Run the builds; return an outcome for each target, in their order."""
    scripts = {name: script for name, script in prepared.items() if isinstance(script, str)}
    done = run_builds(scripts, folder, context.output) if scripts else []
    found = {outcome.target: listed_again(outcome) for outcome in done}
    for name, error in prepared.items():
        if isinstance(error, BuilderError):
            found[name] = BuildOutcome.of_error(name, "not started", error)
    return [found[name] for name in prepared]


def _row(outcome: BuildOutcome) -> tuple[str, ...]:
    answer = outcome.answer
    return (
        outcome.target,
        outcome.state,
        str(answer.get("digest", ""))[:_SHOWN_DIGEST],
        human_bytes(answer["size"]) if "size" in answer else "",
        human_seconds(sum(answer.get("seconds", {}).values())) if answer else "",
        (outcome.error.splitlines() or [""])[-1],
    )


def _json(outcome: BuildOutcome) -> dict[str, Any]:
    if outcome.state == "built":
        return {**outcome.answer, "state": "built"}
    return {name: value for name, value in asdict(outcome).items() if name != "answer"}
