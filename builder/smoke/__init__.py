"""The smoke test: the benchmark inside an image, on this host, and what it says."""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.config.recipe import Recipe
from builder.errors import RunnerError
from builder.model import Image
from builder.progress import QUIET, Reporter
from builder.run import Completed, find_runner
from builder.settings import Settings
from builder.store import Store, write_atomic

PROGRAM = "/opt/builder/smoke.py"
SCHEMA_VERSION = 1
VERDICTS = ("pass", "warn", "fail", "error")
#: Seconds for starting and stopping the container, beside the benchmark's own time limit.
_GRACE = 120.0


@dataclass(frozen=True)
class SmokeReport:
    """What the benchmark said. ``report`` is its JSON (see report.schema.json); for a run that gave none, made here."""

    verdict: str
    report: dict[str, Any]
    runner: str
    image_digest: str
    duration_s: float
    path: Path | None = None


def smoke(
    image: Image,
    recipe: Recipe,
    settings: Settings,
    store: Store,
    *,
    runner: str | None = None,
    timeout_s: float = 300,
    folder: Path | None = None,
    reporter: Reporter = QUIET,
) -> SmokeReport:
    """Runs the benchmark inside an image; what goes wrong in there is a verdict, never an exception.

    Args:
        runner: ``docker``, ``podman``, ``apptainer``, ``embedded``, or the first that works.
        timeout_s: after which the benchmark ends itself and says it hung.
        folder: where the report is kept, as ``<target>/<time>-<digest>.json``.

    Raises:
        RunnerError: no runner works here.
    """
    chosen = find_runner(settings, store, runner, reporter)
    reporter.note(f"smoke test of {recipe.name} ({chosen.name})")
    command = [f"{recipe.conda.prefix}/bin/python", PROGRAM, "--json", "-", "--expect", recipe.gpu.vendor, "--timeout", str(timeout_s)]
    if recipe.gpu.architectures:
        command += ["--architectures", ",".join(recipe.gpu.architectures)]
    started = time.monotonic()
    try:
        done = chosen.run(image, command, gpu=recipe.gpu.vendor, timeout_s=timeout_s + _GRACE)
        report = interpret(done, recipe.gpu.vendor)
    except RunnerError as e:
        report = _could_not_run("runner", e.message, e.cure, recipe.gpu.vendor)
    duration = round(time.monotonic() - started, 3)
    report["image"] = {"digest": image.digest, "target": recipe.name, "runner": chosen.name}
    path = None
    if folder is not None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        path = folder / recipe.name / f"{now}-{image.digest.partition(':')[2][:12]}.json"
        write_atomic(path, json.dumps(report, indent=1, sort_keys=True).encode() + b"\n")
    return SmokeReport(report["verdict"], report, chosen.name, image.digest, duration, path)


def interpret(done: Completed, expect: str) -> dict[str, Any]:
    """The report on a finished benchmark's standard output; anything else becomes a report with the verdict ``error``."""
    start = done.stdout.find("{")
    try:
        report = json.loads(done.stdout[start:]) if start >= 0 else None
    except ValueError:
        report = None
    if isinstance(report, dict) and report.get("schema_version") == SCHEMA_VERSION and report.get("verdict") in VERDICTS:
        expected = {"pass": 0, "warn": 0, "fail": 1, "error": 2}[report["verdict"]]
        if done.returncode == expected and isinstance(report.get("probes"), list) and isinstance(report.get("measurements"), list):
            return report
        return _could_not_run("exit", f"the benchmark said {report['verdict']} and ended with code {done.returncode}", "run it by hand", expect)
    if isinstance(report, dict) and "schema_version" in report and report["schema_version"] != SCHEMA_VERSION:
        return _could_not_run(
            "schema", f"a report of schema version {report['schema_version']!r}, not {SCHEMA_VERSION}", "build the image again with this builder", expect
        )
    if done.timed_out:
        return _could_not_run("watchdog", "the container did not end in time and was ended", "a hung GPU, driver or file system", expect)
    tail = " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])[-400:]
    return _could_not_run("start", f"no report; exit code {done.returncode}: {tail}", "see whether the image's python starts at all", expect)


def _could_not_run(probe: str, seen: str, advice: str, expect: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "schema_version": SCHEMA_VERSION,
        "started": now,
        "duration_s": 0,
        "verdict": "error",
        "expect": expect,
        "facts": {},
        "probes": [{"id": probe, "status": "fail", "seen": seen, "advice": advice}],
        "measurements": [],
    }
