"""Builds images on compute nodes: a job array of Slurm with a task per target.

Some sites, such as LUMI, do not allow long builds on login nodes. The compute nodes must have the login
node's file systems, so that project, cache and builder's own Python have the same paths. Each task writes its
result beside the job's script::

    .builds-XXXX/0.json     what ``builder build --json`` printed
    .builds-XXXX/0.code     its exit code, written last
    .builds-XXXX/0.log      its messages

Targets whose jobs have other options or set-up lines (another site) are in an array of their own.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.config.recipe import Recipe
from builder.errors import BuilderError, RunnerError, UsageError
from builder.progress import QUIET, Reporter, working
from builder.site.checks import check_account, check_time
from builder.site.hostsetup import host_setup
from builder.site.job import Resources
from builder.site.limits import check_limits
from builder.site.render import templates
from builder.site.request import NOTHING_ASKED, SlurmRequest
from builder.site.scheduler import cancel, submit, wait_array
from builder.site.slurm import Allocation, allocation_options, find_queue
from builder.site.slurmrequest import asked_queue, check_slurm_request, with_raw_options

#: Seconds to wait for results of tasks that have ended, and between two looks: on a shared file system a file
#: may appear late.
_PATIENCE_S, _PAUSE_S = 10.0, 0.5
#: States in which the build itself has ended: its exit code says how.
_BY_ITSELF = frozenset({"COMPLETED", "FAILED", "UNKNOWN"})


@dataclass(frozen=True, slots=True)
class BuildTask:
    """The build of one target in a job array."""

    name: str
    """Of the target."""
    command: tuple[str, ...]
    """``builder build TARGET --json``, with absolute paths."""
    options: tuple[str, ...]
    """Of sbatch."""
    setup: tuple[str, ...]
    """Shell lines that run first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the build of one target ended."""

    target: str
    state: str
    """``built``, ``failed``, or why Slurm ended it: ``timeout``, ``out of memory``, ``cancelled``."""
    answer: dict[str, Any]
    """What the build printed; empty if it failed."""
    error: str = ""
    hint: str = ""
    code: int = 0
    """The exit code; of a build that Slurm ended, that of RunnerError."""
    log: Path | None = None
    """The messages of a build that failed."""


def build_task(recipe: Recipe, command: Sequence[str], options: Sequence[str]) -> BuildTask:
    """Returns the build of a target; ``options`` are those of :func:`build_options`."""
    return BuildTask(recipe.name, tuple(command), tuple(options), tuple(host_setup(recipe.site)))


def build_options(
    recipe: Recipe, *, account: str = "", time: str = "", asked: SlurmRequest = NOTHING_ASKED
) -> list[str]:
    """Returns the options of Slurm for a build in the site's queue ``build``: a node, and no GPUs.

    Args:
        recipe: the target, whose site has Slurm.
        account: the account to charge; empty: none.
        time: the time limit as Slurm writes it; empty: the recipe's.
        asked: options of Slurm in the place of the recipe's.

    Raises:
        UsageError: the site has no Slurm, its account is missing or has another form, or
            it does not allow the job.
    """
    slurm = recipe.site.slurm
    if slurm is None:
        raise UsageError(
            f"{recipe.source}: site.slurm is not set: target {recipe.name} has no compute nodes to build on",
            "leave --on out, or name the site in the recipe: site: NAME (builder sites list)",
        )
    check_account(recipe, account)
    check_slurm_request(recipe, asked)
    if time:
        check_time(time)
    queue = asked_queue(slurm, find_queue(recipe.site, "build"), asked)
    allocation = Allocation(
        resources=Resources(nodes=1, gpus=0, tasks=1),
        cpus_per_task=queue.cpus_per_task,
        time=time or queue.time or slurm.time,
        account=account if slurm.account != "none" else "",
        name="builder-build",
        memory=f"--mem={queue.memory}" if queue.memory else "",
    )
    check_limits(recipe, allocation.resources, queue, allocation.time, can_chain=False)
    return with_raw_options(allocation_options(allocation, queue), asked)


def run_build_array(
    tasks: Sequence[BuildTask],
    folder: Path,
    reporter: Reporter = QUIET,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Outcome]:
    """Submits the builds and waits for them. On errors and Ctrl-C, all jobs are cancelled.

    Args:
        tasks: the builds.
        folder: a folder that the nodes see; the logs of builds that failed stay there, as ``TARGET.log``.
        reporter: receives progress.
        sleep: waits between two queries of Slurm.

    Returns:
        The outcomes, in the order of the tasks. Targets whose job Slurm rejects have one, too.

    Raises:
        RunnerError: Slurm does not answer.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[BuildTask]] = {}
    for task in tasks:
        groups.setdefault((task.options, task.setup), []).append(task)
    found: dict[str, Outcome] = {}
    running: list[_Array] = []
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            for group in groups.values():
                made = tempfile.TemporaryDirectory(dir=folder, prefix=".builds-", ignore_cleanup_errors=True)
                work = Path(stack.enter_context(made))
                try:
                    number = submit(array_script(group), folder=work)
                except BuilderError as e:
                    found |= {t.name: _failed(t, "rejected", e.message, e.hint, e.exit_code) for t in group}
                    continue
                running.append(_Array(number, group, work))
                reporter.note(f"job {number}: building {', '.join(task.name for task in group)}")
            for array in running:
                found |= _collect(array, reporter, sleep)
        except BaseException:
            for array in running:
                cancel(array.number)
            raise
    return [found[task.name] for task in tasks]


@dataclass(frozen=True, slots=True)
class _Array:
    """A job array that was submitted."""

    number: str
    tasks: Sequence[BuildTask]
    work: Path


def array_script(tasks: Sequence[BuildTask]) -> str:
    """Returns the batch script of builds that have the same options and set-up lines."""
    directives = [*tasks[0].options, f"--array=0-{len(tasks) - 1}", "--output=%a.log"]
    return (
        templates()
        .get_template("build_array.sh.j2")
        .render(
            directives=directives,
            setup=tasks[0].setup,
            names=[task.name for task in tasks],
            commands=[task.command for task in tasks],
        )
    )


def _collect(array: _Array, reporter: Reporter, sleep: Callable[[float], None]) -> dict[str, Outcome]:
    """Waits for an array, and reads the results of its tasks."""
    found: dict[str, Outcome] = {}
    number, count = array.number, len(array.tasks)
    doing = f"building {count} targets in job {number}"
    waits = _waits(sleep)

    def ended(index: int, state: str) -> None:
        task = array.tasks[index]
        outcome = _outcome(task, array.work / str(index), f"{number}_{index}", state, waits)
        found[task.name] = outcome
        reporter.note(f"{task.name}: {outcome.state}")
        reporter.advance(doing, 1)

    with working(reporter, doing, count, "targets"):
        wait_array(number, count, ended, sleep=sleep)
    return found


def _waits(sleep: Callable[[float], None]) -> Iterator[bool]:
    """Waits before each value; the last one comes after :data:`_PATIENCE_S`, which all tasks share."""
    for _ in range(int(_PATIENCE_S / _PAUSE_S)):
        sleep(_PAUSE_S)
        yield True


def _outcome(task: BuildTask, files: Path, job: str, state: str, waits: Iterator[bool]) -> Outcome:
    """Reads the files of a task that has ended; ``files`` is their path without the suffix."""
    code = _exit_code(files.with_suffix(".code"), state, waits)
    answer = _answer(files.with_suffix(".json"))
    kept = files.parent.parent / f"{task.name}.log"
    if code == 0 and answer:
        kept.unlink(missing_ok=True)
        return Outcome(task.name, "built", answer)
    with contextlib.suppress(OSError):
        files.with_suffix(".log").replace(kept)
    if code and state in _BY_ITSELF and "error" in answer:
        error, hint = str(answer["error"]), str(answer.get("hint", ""))
        return _failed(task, "failed", error, hint, code, kept)
    messages = [line for line in _text(kept).splitlines() if line.strip()]
    last = messages[-1] if messages else "no output"
    ended = "failed" if state in _BY_ITSELF else state.lower().replace("_", " ")
    error = f"job {job} ended as {state} and left no result: {last}"
    return _failed(task, ended, error, f"its messages: {kept}; scontrol show job {job}", log=kept)


def _failed(
    task: BuildTask,
    state: str,
    error: str,
    hint: str,
    code: int = RunnerError.exit_code,
    log: Path | None = None,
) -> Outcome:
    return Outcome(task.name, state, {}, error, hint, code, log)


def _exit_code(path: Path, state: str, waits: Iterator[bool]) -> int | None:
    """The exit code that a task wrote; None if it wrote none, because Slurm ended it."""
    while not path.exists() and state in _BY_ITSELF and next(waits, False):
        pass
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _answer(path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(_text(path))
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
