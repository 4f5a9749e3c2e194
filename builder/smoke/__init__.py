"""The smoke test: the benchmark inside an image, on this host, and what it says."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.config.recipe import Recipe
from builder.errors import BuilderError, RunnerError
from builder.model import Image
from builder.progress import QUIET, Reporter
from builder.run import Completed, Runner, find_runner
from builder.settings import Settings
from builder.store import Store, write_atomic

PROGRAM = "/opt/builder/smoke.py"
ENTRYPOINT = "/opt/builder/entrypoint"
SCHEMA_VERSION = 2
#: Verdicts and the exit code that the benchmark ends with when it gives them.
VERDICTS = {"pass": 0, "warn": 0, "fail": 1, "error": 2}
#: Seconds that the benchmark has for writing its report, when it had to end a hang, before the container is ended.
_GRACE_S = 30.0
_STATUSES = frozenset({"pass", "warn", "fail", "skip"})


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
    image: Image,
    recipe: Recipe,
    settings: Settings,
    store: Store,
    *,
    runner: str | None = None,
    timeout_s: float = 300,
    devices: int | None = None,
    folder: Path | None = None,
    reporter: Reporter = QUIET,
) -> SmokeReport:
    """Runs the benchmark inside an image, by its own Python; what goes wrong in there is a verdict, never an exception.

    Args:
        image: the image; all its layers are on this machine.
        recipe: what the image is for: its GPUs and architectures, and where its environment lies.
        settings: where unpacked images are kept.
        store: the blobs.
        runner: ``docker``, ``podman``, ``apptainer``, ``embedded``; None takes the first that works.
        timeout_s: seconds after which the benchmark ends itself and says what hung.
        devices: how many GPUs there must be; None: at least one when the recipe is for GPUs.
        folder: where the report is kept, as ``<target>/<digest12>-<time>.json``.
        reporter: hears what is being done.

    Raises:
        RunnerError: no runner works here, or not the one asked for.
        SpaceError: the report cannot be written.
    """
    vendor = recipe.gpu.vendor
    command = [f"{recipe.conda.prefix}/bin/python", PROGRAM, "--json", "-", "--expect", vendor, "--timeout", f"{timeout_s:g}"]
    if recipe.gpu.architectures:
        command += ["--architectures", ",".join(recipe.gpu.architectures)]
    if devices is not None:
        command += ["--devices", str(devices)]
    started = time.monotonic()
    chosen = find_runner(settings, store, runner, reporter)
    given_up: list[str] = []
    while True:
        reporter.note(f"smoke test of {recipe.name} ({chosen.name})")
        try:
            # Builder's entry point, whatever the recipe's own may do with its arguments: it is the environment that is tested.
            done = chosen.run(image, command, entrypoint=[ENTRYPOINT], gpu=vendor, timeout_s=timeout_s + _GRACE_S)
            report = interpret(done, recipe)
            break
        except BuilderError as e:
            report = could_not_run(recipe, "runner", f"{chosen.name}: {e.message}", e.cure)
            given_up.append(chosen.name)
            following = (
                _next_runner(settings, store, reporter, given_up) if runner is None and isinstance(e, RunnerError) else None
            )
            if following is None:
                break
            reporter.warn(f"{e.message}; trying {following.name}")
            chosen = following
    report["image"] = {"digest": image.digest, "target": recipe.name, "runner": chosen.name}
    duration = round(time.monotonic() - started, 3)
    path = _keep(report, folder / recipe.name, image.digest) if folder is not None else None
    return SmokeReport(report["verdict"], report, chosen.name, image.digest, duration, path)


def _next_runner(settings: Settings, store: Store, reporter: Reporter, given_up: Sequence[str]) -> Runner | None:
    """Another runner: an engine that answers and then starts nothing is no engine."""
    try:
        return find_runner(settings, store, None, reporter, without=given_up)
    except RunnerError:
        return None


def interpret(done: Completed, recipe: Recipe) -> dict[str, Any]:
    """The report on a finished benchmark's standard output; without one, a report with the verdict ``error`` that says why."""
    if done.timed_out:
        return could_not_run(
            recipe, "watchdog", "the container did not end in time and was ended", "a hung GPU, driver or file system"
        )
    report = find_report(done.stdout)
    if report is None:
        said = " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])[-600:] or "nothing was said"
        advice = "see whether the image's python starts at all; 137 is killed: out of memory, perhaps"
        return could_not_run(recipe, "report", f"no report; exit code {done.returncode}: {said}", advice)
    if report.get("schema_version") != SCHEMA_VERSION:
        seen = f"a report of schema version {report.get('schema_version')!r}, not {SCHEMA_VERSION}"
        return could_not_run(recipe, "report", seen, "the image was built by another version of builder: build it again")
    if fault := _fault(report):
        return could_not_run(
            recipe, "report", f"a damaged report: {fault}", "run it again; if it stays so, build the image again"
        )
    if done.returncode != VERDICTS[report["verdict"]]:
        seen = f"the benchmark said {report['verdict']!r} and ended with code {done.returncode}"
        return could_not_run(recipe, "report", seen, "it was ended while it was writing, perhaps: run it again")
    return report


def find_report(text: str) -> dict[str, Any] | None:
    """The last JSON object on a line of its own in an output that may hold more than it should, if there is one."""
    found = None
    decoder = json.JSONDecoder()
    for start in _objects(text):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "schema_version" in value:
            found = value
    return found


def _objects(text: str) -> Iterator[int]:
    start = -1
    while (start := text.find("{", start + 1)) >= 0:
        if start == 0 or text[start - 1] == "\n":
            yield start


def _fault(report: dict[str, Any]) -> str:
    """What keeps a report from being believed: a hand-written part of the schema, as that is checked in tests only."""
    if str(report.get("verdict")) not in VERDICTS:
        return f"verdict {report.get('verdict')!r}"
    worst = "pass"
    for kind in ("probes", "measurements"):
        items = report.get(kind)
        if not isinstance(items, list):
            return f"{kind} is no list"
        for item in items:
            if not isinstance(item, dict) or str(item.get("status")) not in _STATUSES:
                return f"an entry of {kind} without a status"
            if not all(isinstance(item.get(key), str) for key in ("id", "seen", "advice")):
                return f"an entry of {kind} without id, seen or advice"
            if item["status"] == "fail" or (item["status"] == "warn" and worst == "pass"):
                worst = item["status"]
    if not isinstance(report.get("facts"), dict):
        return "facts is no mapping"
    if (report["verdict"] == "pass" and worst != "pass") or (report["verdict"] == "warn" and worst == "fail"):
        return f"verdict {report['verdict']!r}, though something in it says {worst!r}"
    return ""


def could_not_run(recipe: Recipe, probe: str, seen: str, advice: str) -> dict[str, Any]:
    """A report with the verdict ``error``, for a benchmark that gave none."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "error",
        "started": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "duration_s": 0.0,
        "expect": {"gpu": recipe.gpu.vendor, "architectures": list(recipe.gpu.architectures), "devices": None},
        "facts": {},
        "probes": [{"id": probe, "status": "fail", "seen": seen, "advice": advice}],
        "measurements": [],
    }


def _keep(report: dict[str, Any], folder: Path, digest: str) -> Path:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{digest.partition(':')[2][:12]}-{now}.json"
    write_atomic(path, json.dumps(report, indent=1, sort_keys=True).encode() + b"\n")
    return path
