"""The smoke test as a Slurm job on the target's own nodes, through its recipe's site: all GPUs, and the network between nodes."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.model import Lock
from builder.progress import QUIET, Reporter
from builder.site.plan import plan_job
from builder.site.render import render
from builder.site.request import JobRequest
from builder.site.slurm import cancel, submit, wait
from builder.smoke.run import SmokeReport, benchmark_command, complete, keep
from builder.smoke.schema import could_not_run, fault

_REPORT = "report.json"
#: Seconds that a job gets beside the benchmark's own: starting the containers, writing the report on a shared file system.
_MARGIN_S = 300
#: A file system of many nodes shows a file a little later than it was written.
_PATIENCE_S = 10.0


def smoke_on_slurm(
    recipe: Recipe,
    image: str,
    digest: str,
    folder: Path,
    *,
    nodes: int = 1,
    gpus: int | None = None,
    account: str = "",
    time_limit: str = "",
    timeout_s: float = 300,
    budget_s: float | None = None,
    devices: int | None = None,
    lock: Lock | None = None,
    reporter: Reporter = QUIET,
    sleep: Callable[[float], None] = time.sleep,
) -> SmokeReport:
    """Queues the benchmark on the target's nodes, waits for it, and grades and keeps its report.

    Args:
        recipe: the target, with its site.
        image: a SIF's path on the site or a reference; empty: what the recipe says.
        digest: the image's.
        folder: ``reports/TARGET``, on a file system that the nodes have too; the job starts in a folder of its own there.
        nodes: 2 and more measure the network.
        gpus: of each node; None: one, or all on several nodes.
        account: whom the time is charged to.
        time_limit: of the job, as Slurm writes it; empty: the benchmark's and five minutes.
        timeout_s: seconds after which the benchmark ends itself and says what hung.
        devices: how many GPUs each node must have.
        budget_s, lock: as in :func:`builder.smoke.smoke`.

    Raises:
        UsageError: the site has no Slurm, or cannot give what is asked for.
        RunnerError: Slurm refuses the job, or cannot be asked about it.
        SpaceError: the report cannot be written.
    """
    if recipe.site.slurm is None:
        raise UsageError(
            f"{recipe.site.title or recipe.name} has no scheduler: its recipe says nothing of site.slurm",
            f"leave out --on slurm: builder smoke {recipe.name}",
        )
    work = folder / f".job-{secrets.token_hex(4)}"
    work.mkdir(parents=True)
    started = time.monotonic()
    request = JobRequest(
        command=tuple(
            benchmark_command(recipe, timeout_s, devices=devices, budget_s=budget_s, report=_REPORT)
        ),
        nodes=nodes,
        gpus=gpus,
        time=time_limit or _time(timeout_s + _MARGIN_S),
        account=account,
        image=image,
        name=f"smoke-{recipe.name}",
    )
    number = ""
    try:
        number = submit(render(plan_job(recipe, request)), folder=work)
        reporter.note(f"smoke test of {recipe.name}: job {number} on {nodes} node{'s' if nodes > 1 else ''}")
        report = _collect(recipe, work, number, wait(number, reporter, sleep=sleep), sleep)
    except BaseException:
        if number:
            cancel(number)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    runner = f"slurm ({recipe.site.runtime.kind})"
    total = devices * nodes if devices is not None else None
    report = complete(report, recipe, digest, runner, devices=total, lock=lock)
    path = keep(report, folder)
    return SmokeReport(report["verdict"], report, runner, digest, round(time.monotonic() - started, 3), path)


def _collect(
    recipe: Recipe, work: Path, number: str, state: str, sleep: Callable[[float], None]
) -> dict[str, Any]:
    """What the job wrote, as a report; one that says why there is none, otherwise, beside which the job's output is kept."""
    found, waited = work / _REPORT, 0.0
    while not found.exists() and state == "COMPLETED" and waited < _PATIENCE_S:
        sleep(0.5)
        waited += 0.5
    try:
        text = found.read_text("utf-8", "replace")
    except OSError:
        logs = sorted(work.glob("*.out"))
        said = " | ".join(_tail(logs)) or "it said nothing"
        advice = f"scontrol show job {number}"
        if logs:
            kept = work.parent / f"job-{number}.out"
            logs[-1].replace(kept)
            advice = f"its output: {kept}"
        probe = "watchdog" if state == "TIMEOUT" else "job"
        return could_not_run(
            recipe, probe, f"job {number} ended as {state} and left no report: {said}", advice
        )
    try:
        report = json.loads(text)
    except ValueError:
        return could_not_run(
            recipe, "report", f"job {number} left a damaged report", "a full or failing file system, perhaps"
        )
    if why := fault(report):
        return could_not_run(recipe, "report", f"job {number}: {why}", "build and publish the image again")
    return dict(report)


def _tail(logs: Sequence[Path]) -> list[str]:
    try:
        return (
            [line for line in logs[-1].read_text("utf-8", "replace").splitlines() if line.strip()][-3:]
            if logs
            else []
        )
    except OSError:
        return []


def _time(seconds: float) -> str:
    """``00:10:00``: whole minutes, rounded up."""
    minutes = -(-int(seconds) // 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:00"
