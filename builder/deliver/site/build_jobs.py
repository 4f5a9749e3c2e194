"""Builds images on compute nodes: a job of Slurm for each target.

Some sites, such as LUMI, do not allow long builds on login nodes. The compute nodes must have the
login node's file systems, so that project, cache and builder's own Python have the same paths. Each
job runs in a new folder, which is removed at the end::

    build-XXXX/result.json      the output of ``builder build --json``: the build, or the error
    build-XXXX/log              its messages
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.core.errors import BuilderError, RunnerError, UsageError
from builder.core.progress import QUIET, Reporter, working
from builder.core.store.reading import text_of
from builder.core.store.temporary import temporary_folder
from builder.formats.oci.layout import restore_tag
from builder.lock.config.recipe import Recipe

from .job import Resources
from .render import templates
from .request import JobRequest
from .runtimes.table import runtime_of
from .scheduler import cancel, read_result, submit, wait
from .slurm import KEEP_LOG, check_slurm_request, job_options, with_raw_options

#: States in which the build itself has ended: its result says how.
_BY_ITSELF = frozenset({"COMPLETED", "FAILED", "UNKNOWN"})


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """The end of the build of one target."""

    target: str
    state: str
    """``built``, ``failed``, or Slurm's reason: ``timeout``, ``out of memory``, ``cancelled``."""
    answer: dict[str, Any]
    """The output of the build; empty if it failed."""
    error: str = ""
    hint: str = ""
    code: int = 0
    """The exit code; of a build that Slurm ended, that of RunnerError."""
    log: Path | None = None
    """The messages of a build that failed."""

    @classmethod
    def of_error(cls, target: str, state: str, error: BuilderError) -> BuildOutcome:
        """Return the outcome of a build that ended with an error on this machine."""
        return cls(target, state, {}, error.message, error.hint, error.exit_code)


def build_script(recipe: Recipe, command: Sequence[str], request: JobRequest) -> str:
    """Return the script that builds a target in the site's queue ``build``: on a node, without
    GPUs.

    Args:
        recipe: the target, whose site has Slurm.
        command: ``builder build TARGET --json``, with absolute paths.
        request: account, time limit, and options of Slurm instead of the recipe's.

    Raises:
        UsageError: the site has no Slurm, its account is missing or has another form, or
            it does not allow the job.
    """
    site = recipe.site
    if site.slurm is None:
        raise UsageError(
            f"{recipe.source}: site.slurm is not set: "
            f"target {recipe.name} has no compute nodes to build on",
            "leave --on out, or name the site in the recipe: site: NAME (builder sites list)",
        )
    check_slurm_request(recipe, request)
    options = job_options(recipe, request, Resources(nodes=1, gpus=0, tasks=1), "build")
    options = with_raw_options(["--job-name=builder-build", *options, KEEP_LOG], request.slurm)
    directives = [*options, "--output=log"]
    template = templates().get_template("build.sh.j2")
    setup = runtime_of(recipe).host_setup()
    return template.render(directives=directives, setup=setup, command=command)


def run_builds(
    scripts: Mapping[str, str], folder: Path, reporter: Reporter = QUIET
) -> list[BuildOutcome]:
    """Submit the builds and wait for them. On errors and Ctrl-C, all jobs are cancelled.

    Args:
        scripts: the builds, see :func:`build_script`, by the names of their targets.
        folder: a folder that the nodes see; the logs of builds that failed stay there, as
            ``TARGET.log``.
        reporter: receives progress.

    Returns:
        The outcomes, in the order of the scripts. Targets whose job Slurm rejects have one, too.

    Raises:
        RunnerError: Slurm does not answer.
    """
    found: dict[str, BuildOutcome] = {}
    running: list[tuple[str, str, Path]] = []
    doing = f"building {len(scripts)} targets in jobs"
    with contextlib.ExitStack() as stack:
        stack.enter_context(working(reporter, doing, len(scripts), "targets"))
        try:
            for target, script in scripts.items():
                work = stack.enter_context(temporary_folder(folder, 0o700))
                try:
                    number = submit(script, folder=work, reporter=reporter)
                except BuilderError as e:
                    found[target] = BuildOutcome.of_error(target, "rejected", e)
                    continue
                running.append((target, number, work))
                reporter.note(f"job {number}: building {target}")
            for target, number, work in running:
                outcome = _outcome(target, work, number, wait(number, reporter))
                found[target] = outcome
                reporter.note(f"{target}: {outcome.state}")
                reporter.advance(doing, 1)
        except BaseException:
            for _, number, _ in running:
                cancel(number)
            raise
    return [found[target] for target in scripts]


def listed_again(outcome: BuildOutcome) -> BuildOutcome:
    """List an image in the layout again that the build of another target on another node removed,
    and return the outcome: failed if that is not possible.
    """
    answer = outcome.answer
    if "tag" in answer:
        try:
            restore_tag(Path(answer["layout"]), answer["tag"], answer["digest"])
        except BuilderError as e:
            return BuildOutcome.of_error(outcome.target, "failed", e)
    return outcome


def _outcome(target: str, work: Path, number: str, state: str) -> BuildOutcome:
    """Read the files of a job that has ended."""
    found = read_result(work / "result.json", is_sure=state in _BY_ITSELF)
    answer = found if isinstance(found, dict) else {}
    kept = work.parent / f"{target}.log"
    if answer and "error" not in answer and state in _BY_ITSELF:
        kept.unlink(missing_ok=True)
        return BuildOutcome(target, "built", answer)
    with contextlib.suppress(OSError):
        (work / "log").replace(kept)
    if answer and state in _BY_ITSELF:
        error, hint = str(answer["error"]), str(answer.get("hint", ""))
        code = int(answer.get("code", RunnerError.exit_code))
        return BuildOutcome(target, "failed", {}, error, hint, code, kept)
    text = text_of(kept).strip()
    last = text.splitlines()[-1] if text else "no output"
    ended = "failed" if state in _BY_ITSELF else state.lower().replace("_", " ")
    error = f"job {number} ended as {state} and left no result: {last}"
    hint = f"its messages: {kept}; scontrol show job {number}"
    return BuildOutcome(target, ended, {}, error, hint, RunnerError.exit_code, kept)
