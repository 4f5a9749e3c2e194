"""The whole run: command line, ranks, report, exit code."""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from typing import Any

from .core import Item, finding, one_line
from .options import parse
from .ranks.child import adopt_orphans, complain, end_orphans
from .ranks.launcher import Launcher
from .ranks.positions import plan
from .ranks.relay import relay
from .report import deliver, empty_report, verdict
from .schema import EXIT_CODES

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked this process to end."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and return its exit code, see ``schema.EXIT_CODES``."""
    options = parse(arguments)
    started = time.monotonic()
    report = empty_report(options.expect, options.architectures, options.devices)
    report["test"] = _test(options)
    if options.device_only:
        report["device_only"] = True
    unit, trouble = _run_ranks(options)
    if isinstance(unit, int):  # the launcher writes the report
        if trouble is not None:
            complain(trouble["seen"])
        return unit

    if unit is not None:
        report.update(unit.report())
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


def _test(options: argparse.Namespace) -> Item:
    """Return what is tested, for the report: a pass of another test is no pass."""
    test: Item = {}
    if options.framework != "none":
        test["framework"] = options.framework
    for name in ("imports", "packages", "command"):
        if getattr(options, name):
            test[name] = getattr(options, name)
    return test


def _run_ranks(options: argparse.Namespace) -> tuple[Launcher | int | None, Item | None]:
    """Start all ranks and wait for their end. Signals end this early; afterwards they are ignored.

    Returns the launcher, or the exit code of a relay, and why the ranks could not run to their end.
    """
    unit: Launcher | int | None = None
    trouble: Item | None = None
    folder = ""
    before = adopt_orphans()
    try:
        for number in _SIGNALS:
            signal.signal(number, _interrupt)
        folder = _temporary_folder()
        launch = plan(options)
        if launch.unit:
            unit = EXIT_CODES["error"]  # after an exception
            unit = relay(options, launch, folder)
        else:
            unit = Launcher(options, launch, folder)
            unit.run()
    except Interrupted as e:
        trouble = finding("process", "fail", f"interrupted by {e}", "run it again")
    except Exception as e:
        advice = "the test cannot run here: see the message"
        trouble = finding("process", "fail", one_line(e), advice)
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
    """Return a new folder; empty if none can be made, which the probe ``system.tmp`` reports."""
    try:
        return tempfile.mkdtemp(prefix="builder-smoke-")
    except OSError:
        return ""
