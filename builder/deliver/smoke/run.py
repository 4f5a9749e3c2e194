"""The smoke test on this host: runs the benchmark in an image, checks its report and grades it."""

from __future__ import annotations

import datetime
import logging
import re
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bench.schema import EXIT_CODES, SCHEMA_VERSION
from builder.build.run.base import Mount, RunOptions
from builder.build.run.process import Completed
from builder.build.run.select import find_runner
from builder.core.errors import BuilderError, RunnerError
from builder.core.model import Image, Lock, SifImage
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.text import option_words
from builder.core.workspace import Workspace
from builder.formats.sif.read import sif_digest
from builder.lock.config.recipe import Recipe

from .finding import advice_for
from .grade import grade
from .options import DEFAULTS, SmokeOptions
from .packages import packages_of_lock
from .reference import references
from .reports import store_report
from .schema import TIME, benchmark_problem, could_not_run, find_report
from .values import Report

log = logging.getLogger(__name__)

PROGRAM = "/opt/builder/smoke.py"
ENTRYPOINT = "/opt/builder/entrypoint"
#: Seconds after the benchmark's timeout in which it can still write its report, before the container is
#: stopped.
_GRACE_S = 30.0
#: How the benchmark announces a step on standard error. An image may print anything else.
_STEP = re.compile(r"smoke: begin ([\w.]{1,40})", re.ASCII)
#: Exit codes of a shell that cannot start a program.
_NOT_FOUND = (126, 127)


@dataclass(frozen=True)
class SmokeReport:
    """The result of a smoke test.

    Attributes:
        verdict: ``pass``, ``warn``, ``fail``, ``error`` if the test could not be run, or ``none``
            if the recipe says that the image is not tested.
        report: the benchmark's report (``builder help schema report``) with its grade; a report of
            builder's own if the benchmark wrote none.
        runner: what ran the image: a name of :data:`builder.build.run.RUNNER_NAMES`, or ``slurm
            (RUNTIME)``; ``none``: the image is not tested.
        image_digest: the digest of the image, or the sha256 of the SIF.
        duration_s: seconds of the test, with the start of the container.
        path: the file that the report was stored in; None: it was not stored.
    """

    verdict: str
    report: Report
    runner: str
    image_digest: str
    duration_s: float
    path: Path | None = None


def smoke(
    image: Image | SifImage,
    recipe: Recipe,
    work: Workspace,
    *,
    options: SmokeOptions = DEFAULTS,
    lock: Lock | None = None,
    folder: Path | None = None,
) -> SmokeReport:
    """Run the benchmark inside an image with the image's own Python, and grade its report.

    A failure inside the image is a verdict, not an exception.

    Args:
        image: the image or SIF; all its layers are on this machine.
        recipe: the recipe: the GPUs that the image is for, and the prefix of its environment.
        options: how the benchmark runs.
        lock: the lock of the image; the report lists its packages, for later comparisons.
        folder: where the report is stored, as ``TARGET/DIGEST-TIME.json``; None: nowhere.

    Raises:
        RunnerError: no runner works on this host, or not the requested one.
        SpaceError: there is no space for the report.
    """
    if options.plan.none:
        return not_tested(image.digest, recipe, options.plan.none)
    started = time.monotonic()
    report, runner = _run_benchmark(image, recipe, work, options)
    if report["verdict"] != "error" and (seen := _replaced(image, work.store)):
        report = could_not_run(recipe, "image", seen, f"test it again: builder smoke {recipe.name}")
    report = complete(report, recipe, image.digest, runner, options, lock)
    duration = round(time.monotonic() - started, 3)
    path = store_report(report, folder / recipe.name) if folder is not None else None
    return SmokeReport(report["verdict"], report, runner, image.digest, duration, path)


def not_tested(digest: str, recipe: Recipe, reason: str) -> SmokeReport:
    """Return the report on an image that the recipe does not test: it is attached, not stored."""
    log.info("smoke test of %s: none, by its recipe: %s", recipe.name, reason)
    report = could_not_run(recipe, "smoke", reason, "")
    report["probes"][0]["status"] = "skip"
    report |= {"verdict": "none", "test": {"none": reason}}
    report["image"] = {"target": recipe.name, "runner": "none", "digest": digest}
    return SmokeReport("none", report, "none", digest, 0.0)


def _replaced(image: Image | SifImage, store: Store) -> str:
    """Return a message if a SIF is not in its file any more: all builds of a target write there."""
    if not isinstance(image, SifImage):
        return ""
    with suppress(FileNotFoundError):
        if sif_digest(image.path, store) == image.digest:
            return ""
    return f"another build replaced {image.path} while it was tested"


def _run_benchmark(
    image: Image | SifImage, recipe: Recipe, work: Workspace, options: SmokeOptions
) -> tuple[Report, str]:
    """Return the report and the name of the runner.

    An engine may answer and still be unable to start a container. Unless a runner was requested,
    the next one is tried then.
    """
    command = [*benchmark_command(recipe, options), "--progress"]
    task = f"smoke test of {recipe.name}"
    gpu = recipe.gpu.vendor

    def report_step(line: str) -> None:
        if step := _STEP.fullmatch(line):
            work.reporter.doing(task, step[1])

    how = RunOptions(
        entrypoint=[ENTRYPOINT],  # a recipe's entry point may do anything with its arguments
        mounts=[Mount(options.program, PROGRAM)] if options.program else [],
        gpu=gpu,
        timeout_s=options.limit_s + _GRACE_S,
        on_line=report_step,
    )
    runner = find_runner(work, options.runner, gpu=gpu, image=image)
    failed: list[str] = []
    while True:
        work.reporter.note(f"smoke test of {recipe.name} ({runner.name}): {options.plan.title}")
        log.info("in the image, by %s: %s", runner.name, shlex.join(command))
        try:
            with working(work.reporter, task):
                done = runner.run(image, command, how)
            return interpret(done, recipe), runner.name
        except BuilderError as e:
            failed.append(runner.name)
            following = None
            if options.runner is None and isinstance(e, RunnerError):
                with suppress(RunnerError):  # there is no other
                    following = find_runner(work, gpu=gpu, without=failed, image=image)
            if following is None:
                report = could_not_run(recipe, "runner", f"{runner.name}: {e.message}", e.hint)
                return report, runner.name
            hint = f"\n  hint: {e.hint}" if e.hint else ""
            work.reporter.warn(f"{e.message}; trying {following.name}{hint}")
            runner = following


def benchmark_command(
    recipe: Recipe, options: SmokeOptions, *, report: str = "-", program: str = PROGRAM
) -> list[str]:
    """Return the benchmark's command line inside an image.

    ``report`` is the file for its JSON, ``-`` for standard output; ``program`` the benchmark's
    file.
    """
    python = f"{recipe.conda.prefix}/bin/python"
    how = {
        "--expect": recipe.gpu.vendor,
        "--timeout": f"{options.whole_timeout_s:g}",
        "--architectures": ",".join(recipe.gpu.architectures),
        "--devices": "" if options.devices is None else str(options.devices),
        "--all-gpus": options.all_gpus,
        "--device-only": options.device_only,
        "--python-path": recipe.env.get("PYTHONPATH"),
    }
    return [python, program, "--json", report, *options.plan.arguments(), *option_words(how)]


def complete(
    report: Report,
    recipe: Recipe,
    digest: str,
    runner: str,
    options: SmokeOptions,
    lock: Lock | None,
    nodes: int = 1,
) -> Report:
    """Return a copy of the benchmark's report with its grade and the image.

    Args:
        report: the benchmark's report.
        recipe: the recipe of the image.
        digest: the digest of the image; empty: not known.
        runner: what ran the image.
        options: how the benchmark ran; ``devices`` must be present on each node.
        lock: the lock of the image, if it is known.
        nodes: the number of nodes on which it ran.
    """
    image: dict[str, Any] = {"target": recipe.name, "runner": runner}
    known = {"digest": digest, "tag": dated_tag(recipe, str(report.get("started", "")))}
    image |= {name: value for name, value in known.items() if value}
    if lock is not None:
        image["packages"] = packages_of_lock(lock, recipe.platform)
    report = {**report, "image": image}
    if report["verdict"] != "error":
        devices = None if options.devices is None else options.devices * nodes
        report = grade(report, references(), recipe.gpu, devices)
    log.info("smoke test of %s by %s: %s", recipe.name, runner, report["verdict"])
    return report


def dated_tag(recipe: Recipe, started: str) -> str:
    """Return the recipe's first dated tag (``26.11``) for the day of a report; or empty."""
    pattern = next((tag for tag in recipe.registry.tags if "%" in tag), "")
    try:
        return datetime.datetime.strptime(started, TIME).strftime(pattern)
    except ValueError:
        return ""


def interpret(done: Completed, recipe: Recipe) -> Report:
    """Return the report on a finished benchmark's standard output.

    If there is no valid one: a report with the verdict ``error`` and the reason.
    """
    if done.timed_out:
        seen = "the container did not end in time and was stopped"
        return could_not_run(recipe, "watchdog", seen, "a GPU, driver or file system may hang")
    report = find_report(done.stdout)
    if report is None:
        end = last_lines(done.stderr.strip() or done.stdout)
        seen = f"no report; exit code {done.returncode}: {end}"
        case = "no_python" if done.returncode in _NOT_FOUND else "no_report"
        return could_not_run(recipe, "report", seen, advice_for(case))
    problem, code = benchmark_problem(report), done.returncode
    advice = "run it again; if this does not help, build the image again"
    if report.get("schema_version") != SCHEMA_VERSION:
        advice = "build the image again"
    elif not problem and code != EXIT_CODES[report["verdict"]]:
        problem = f"the benchmark reported {report['verdict']!r}, but its exit code is {code}"
        advice = "it may have been stopped while it wrote the report: run it again"
    return could_not_run(recipe, "report", problem, advice) if problem else report


def last_lines(output: str) -> str:
    """Return the end of what a program printed, on one line."""
    lines = [line for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:] or "no output"
