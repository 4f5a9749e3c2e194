"""The smoke test: the benchmark inside an image, on this host, what it says, and what that is worth (grade.py)."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bench.schema import EXIT_CODES, SCHEMA_VERSION
from builder.config.recipe import Recipe
from builder.errors import BuilderError, RunnerError
from builder.model import Image, Lock, SifImage
from builder.progress import QUIET, Reporter
from builder.run.base import Runner
from builder.run.process import Completed
from builder.run.select import find_runner
from builder.settings import Settings
from builder.smoke.grade import Expected, grade, references
from builder.smoke.schema import could_not_run, fault, find_report, packages_of
from builder.store.blobs import Store
from builder.store.files import write_atomic

PROGRAM = "/opt/builder/smoke.py"
ENTRYPOINT = "/opt/builder/entrypoint"
#: Seconds that the benchmark has for writing its report, when it had to end a hang, before the container is ended.
_GRACE_S = 30.0


@dataclass(frozen=True)
class SmokeReport:
    """What the benchmark said. ``report`` is its JSON (report.schema.json), or was made here when there was none to be had."""

    verdict: str
    report: dict[str, Any]
    runner: str
    image_digest: str
    duration_s: float
    path: Path | None = None
    """Where the report was kept."""


def smoke(
    image: Image | SifImage,
    recipe: Recipe,
    settings: Settings,
    store: Store,
    *,
    runner: str | None = None,
    timeout_s: float = 300,
    devices: int | None = None,
    all_gpus: bool = False,
    budget_s: float | None = None,
    lock: Lock | None = None,
    folder: Path | None = None,
    reporter: Reporter = QUIET,
) -> SmokeReport:
    """Runs the benchmark inside an image, by its own Python, and grades it; what goes wrong in there is a verdict, no exception.

    Args:
        image: the image or SIF; all its layers are on this machine.
        recipe: what the image is for: its GPUs and architectures, and where its environment lies.
        settings: where unpacked images are kept.
        store: the blobs.
        runner: ``docker``, ``podman``, ``apptainer``, ``userns``; None takes the first that works.
        timeout_s: seconds after which the benchmark ends itself and says what hung.
        devices: how many GPUs there must be; None: at least one when the recipe is for GPUs.
        all_gpus: one process per GPU, all measured at once and against each other.
        budget_s: seconds that the measurements may take; None: the benchmark's own, a minute on CPUs.
        lock: what the image was made from: the report keeps its packages, for comparisons.
        folder: where the report is kept, as ``<target>/<digest12>-<time>.json``.
        reporter: hears what is being done.

    Raises:
        RunnerError: no runner works here, or not the one asked for.
        SpaceError: the report cannot be written.
    """
    vendor = recipe.gpu.vendor
    command = benchmark_command(recipe, timeout_s, devices=devices, all_gpus=all_gpus, budget_s=budget_s)
    started = time.monotonic()
    chosen = find_runner(settings, store, runner, reporter)
    given_up: list[str] = []
    while True:
        reporter.note(f"smoke test of {recipe.name} ({chosen.name})")
        try:
            # Builder's entry point, whatever the recipe's own may do with its arguments: it is the environment that is tested.
            done = chosen.run(
                image, command, entrypoint=[ENTRYPOINT], gpu=vendor, timeout_s=timeout_s + _GRACE_S
            )
            report = interpret(done, recipe)
            break
        except BuilderError as e:
            report = could_not_run(recipe, "runner", f"{chosen.name}: {e.message}", e.hint)
            given_up.append(chosen.name)
            following = (
                _next_runner(settings, store, reporter, given_up)
                if runner is None and isinstance(e, RunnerError)
                else None
            )
            if following is None:
                break
            reporter.warn(f"{e.message}; trying {following.name}")
            chosen = following
    report = complete(report, recipe, image.digest, chosen.name, devices=devices, lock=lock)
    duration = round(time.monotonic() - started, 3)
    path = keep(report, folder / recipe.name) if folder is not None else None
    return SmokeReport(report["verdict"], report, chosen.name, image.digest, duration, path)


def benchmark_command(
    recipe: Recipe,
    timeout_s: float,
    *,
    devices: int | None = None,
    all_gpus: bool = False,
    budget_s: float | None = None,
    report: str = "-",
) -> list[str]:
    """The benchmark's command line inside an image; ``report`` is where it writes its JSON."""
    prefix, vendor = recipe.conda.prefix, recipe.gpu.vendor
    command = [
        f"{prefix}/bin/python",
        PROGRAM,
        "--json",
        report,
        "--expect",
        vendor,
        "--timeout",
        f"{timeout_s:g}",
    ]
    if recipe.gpu.architectures:
        command += ["--architectures", ",".join(recipe.gpu.architectures)]
    if devices is not None:
        command += ["--devices", str(devices)]
    if all_gpus:
        command.append("--all-gpus")
    if budget_s is not None:
        command += ["--budget", f"{budget_s:g}"]
    return command


def complete(
    report: dict[str, Any],
    recipe: Recipe,
    digest: str,
    runner: str,
    *,
    devices: int | None = None,
    lock: Lock | None = None,
) -> dict[str, Any]:
    """The benchmark's report with what it cannot know (which image it was in), and graded."""
    about: dict[str, Any] = {"digest": digest, "target": recipe.name, "runner": runner}
    if tag := dated_tag(recipe, str(report.get("started", ""))):
        about["tag"] = tag
    if lock is not None:
        about["packages"] = packages_of(lock, recipe.platform)
    report = {**report, "image": about}
    return (
        report if report["verdict"] == "error" else grade(report, references(), Expected.of(recipe, devices))
    )


def dated_tag(recipe: Recipe, started: str) -> str:
    """The recipe's first dated tag (``26.11``) for the day that a report was begun; empty when it has none."""
    pattern = next((t for t in recipe.registry.tags if "%" in t), "")
    try:
        return datetime.datetime.strptime(started, "%Y-%m-%dT%H:%M:%SZ").strftime(pattern)
    except ValueError:
        return ""


def _next_runner(
    settings: Settings, store: Store, reporter: Reporter, given_up: Sequence[str]
) -> Runner | None:
    """Another runner: an engine that answers and then starts nothing is no engine."""
    try:
        return find_runner(settings, store, None, reporter, without=given_up)
    except RunnerError:
        return None


def interpret(done: Completed, recipe: Recipe) -> dict[str, Any]:
    """The report on a finished benchmark's standard output; without one, a report with the verdict ``error`` that says why."""
    if done.timed_out:
        return could_not_run(
            recipe,
            "watchdog",
            "the container did not end in time and was ended",
            "a hung GPU, driver or file system",
        )
    report = find_report(done.stdout)
    if report is None:
        said = (
            " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])[-600:]
            or "nothing was said"
        )
        advice = "see whether the image's python starts at all; 137 is killed: out of memory, perhaps"
        return could_not_run(recipe, "report", f"no report; exit code {done.returncode}: {said}", advice)
    if report.get("schema_version") != SCHEMA_VERSION:
        seen = f"a report of schema version {report.get('schema_version')!r}, not {SCHEMA_VERSION}"
        return could_not_run(
            recipe, "report", seen, "the image was built by another version of builder: build it again"
        )
    if said := fault(report):
        return could_not_run(recipe, "report", said, "run it again; if it stays so, build the image again")
    if done.returncode != EXIT_CODES[report["verdict"]]:
        seen = f"the benchmark said {report['verdict']!r} and ended with code {done.returncode}"
        return could_not_run(
            recipe, "report", seen, "it was ended while it was writing, perhaps: run it again"
        )
    return report


def keep(report: dict[str, Any], folder: Path) -> Path:
    """Writes a report into a folder, under a name that no other one has.

    Raises:
        SpaceError: there is no room for it.
    """
    about = report.get("image", {})
    stem = f"{str(about.get('digest', '')).partition(':')[2][:12] or 'report'}-{re.sub(r'[-:]', '', report['started'])}"
    path = folder / f"{stem}.json"
    for n in itertools.count(2):
        if not path.exists():
            break
        path = folder / f"{stem}-{n}.json"
    write_atomic(path, json.dumps(report, indent=1, sort_keys=True).encode() + b"\n")
    return path
