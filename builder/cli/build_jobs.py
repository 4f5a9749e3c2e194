"""``builder build --on slurm``: a job for each target, and one table of the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cli.context import Context, context_exit
from builder.errors import BuilderError
from builder.text import Table, human_bytes, human_seconds

#: Characters of a digest in the table: ``sha256:`` and 12 digits.
_SHOWN_DIGEST = 19

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.site.build_jobs import BuildOutcome, BuildTask


def build_in_jobs(
    context: Context,
    recipes: Sequence[Recipe],
    prepare: Callable[[Recipe], BuildTask],
    folder: Path,
) -> None:
    """Build targets in jobs, and prints a row for each.

    A failure of one does not stop the others. After a failure the command ends with the exit code
    of the first target that failed.

    Args:
        context: of the command.
        recipes: the targets.
        prepare: locks and downloads what a target needs, on this host; returns its build.
        folder: the layout that the builds write.

    Raises:
        BuilderError: the only target cannot be built in a job.
    """
    from builder.site.build_jobs import BuildOutcome, run_builds

    failed: dict[str, BuildOutcome] = {}
    tasks = []
    for recipe in recipes:
        try:
            tasks.append(prepare(recipe))
        except BuilderError as e:
            if len(recipes) == 1:
                raise
            context.output.error(f"{recipe.name}: {e.message}", e.hint)
            failed[recipe.name] = BuildOutcome(
                recipe.name, "not started", {}, e.message, e.hint, e.exit_code
            )
    done = run_builds(tasks, folder, context.output) if tasks else []
    found = failed | {outcome.target: outcome for outcome in done}
    outcomes = [_with_tag(found[recipe.name]) for recipe in recipes]
    _print(context, outcomes)
    codes = [outcome.code for outcome in outcomes if outcome.state != "built"]
    if codes:
        context_exit(codes[0])


def _with_tag(outcome: BuildOutcome) -> BuildOutcome:
    """List an image in the layout again that the build of another target on another node
    removed.
    """
    from builder.oci.layout import restore_tag

    answer = outcome.answer
    if "tag" not in answer:
        return outcome
    try:
        restore_tag(Path(answer["layout"]), answer["tag"], answer["digest"])
    except BuilderError as e:
        return replace(
            outcome, state="failed", answer={}, error=e.message, hint=e.hint, code=e.exit_code
        )
    return outcome


def _print(context: Context, outcomes: Sequence[BuildOutcome]) -> None:

    table = Table(("target", "state", "digest", "size", "time", "error"))
    for outcome in outcomes:
        answer = outcome.answer
        seconds = sum(answer.get("seconds", {}).values())
        lines = outcome.error.splitlines() or [""]
        row = (
            outcome.target,
            outcome.state,
            str(answer.get("digest", ""))[:_SHOWN_DIGEST],
            human_bytes(answer["size"]) if "size" in answer else "",
            human_seconds(seconds) if answer else "",
            lines[-1],
        )
        table.rows.append(row)
    context.output.table(table)
    failed = [outcome for outcome in outcomes if outcome.state != "built"]
    if failed:
        names = ", ".join(outcome.target for outcome in failed)
        context.output.warn(f"{len(failed)} of {len(outcomes)} targets failed: {names}")
        for outcome in failed:
            if outcome.log is not None:
                context.output.note(f"{outcome.target}: messages in {outcome.log}")
    results = [_json(outcome) for outcome in outcomes]
    context.output.result(results[0] if len(results) == 1 else results)


def _json(outcome: BuildOutcome) -> dict[str, Any]:
    if outcome.state == "built":
        return {**outcome.answer, "state": "built"}
    return {
        "target": outcome.target,
        "state": outcome.state,
        "error": outcome.error,
        "hint": outcome.hint,
        "code": outcome.code,
        "log": str(outcome.log) if outcome.log else None,
    }
