"""The whole run: command line, ranks, report, exit code."""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from typing import Any

from .core import BUDGETS_S, Item, finding, one_line
from .options import parse
from .ranks.child import adopt_orphans, complain, end_orphans
from .ranks.launcher import Launcher
from .ranks.plan import plan
from .ranks.relay import Relay
from .report import deliver, verdict
from .schema import SCHEMA_VERSION

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked this process to end."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and return its exit code, see ``schema.EXIT_CODES``."""
    options = parse(arguments)
    started = time.monotonic()
    report = _empty_report(options)
    unit, trouble = _run_ranks(options)
    if isinstance(unit, Relay):  # the launcher writes the report
        if trouble is not None:
            complain(trouble["seen"])
        return unit.exit_code

    if unit is not None:
        report.update(unit.report())
        if options.budget is None:
            report["budget_s"] = BUDGETS_S["gpu" if report["facts"].get("devices") else "cpu"]
    if trouble is None:
        report["verdict"] = verdict(report)
    else:
        report["probes"] = [item for item in report["probes"] if item["id"] != "process"]
        report["probes"].append(trouble)
    report["duration_s"] = round(time.monotonic() - started, 3)

    code = deliver(report, options.json)
    if unit is not None:
        unit.dismiss(report["verdict"])
    return code


def _empty_report(options: argparse.Namespace) -> Item:
    """The report of a run without results."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "error",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "duration_s": 0.0,
        "budget_s": options.budget,
        "expect": {
            "gpu": options.expect,
            "architectures": options.architectures,
            "devices": options.devices,
        },
        "test": _test(options),
        **({"device_only": True} if options.device_only else {}),
        "launch": {"ranks": 1, "nodes": 1, "by": "single"},
        "facts": {},
        "probes": [],
        "measurements": [],
    }


def _test(options: argparse.Namespace) -> Item:
    """What is tested. Whoever reads the report relies on it: a pass of another test is no pass."""
    test: Item = {}
    if options.framework != "none":
        test["framework"] = options.framework
    for name in ("imports", "packages", "command"):
        if getattr(options, name):
            test[name] = getattr(options, name)
    return test


def _run_ranks(options: argparse.Namespace) -> tuple[Launcher | Relay | None, Item | None]:
    """Start all ranks and wait for their end. Signals end this early; afterwards they are ignored.

    Returns this process's unit, and why the ranks could not run to their end.
    """
    unit: Launcher | Relay | None = None
    trouble: Item | None = None
    folder = ""
    before = adopt_orphans()
    try:
        for number in _SIGNALS:
            signal.signal(number, _interrupt)
        folder = _temporary_folder()
        launch = plan(options)
        unit = Relay(options, launch, folder) if launch.unit else Launcher(options, launch, folder)
        unit.run()
    except Interrupted as e:
        trouble = finding("process", "fail", f"interrupted by {e}", "run it again")
    except Exception as e:
        trouble = finding("process", "fail", one_line(e), "the test cannot run here: see the message")
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        end_orphans(before)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    return unit, trouble


def _interrupt(number: int, frame: Any) -> None:
    raise Interrupted(signal.Signals(number).name)


def _temporary_folder() -> str:
    """A new folder; empty if none can be made, which the probe ``system.tmp`` reports."""
    try:
        return tempfile.mkdtemp(prefix="builder-smoke-")
    except OSError:
        return ""
