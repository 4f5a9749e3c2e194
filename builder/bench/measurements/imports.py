"""Importing modules: the test of an image whose packages have no device to measure."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time

from ..core import Item, Run, fail, skip, warn
from ..machine.modules import modules_of
from .accuracy import checked
from .timing import spread

#: Seconds for one module, and for all of them.
LIMIT_S, TOTAL_S = 60.0, 120.0
#: How many failed modules a message names.
_NAMED = 3
#: Imports modules in one process, as a program does, and prints a line of JSON after each.
_IMPORTER = """
import importlib, json, os, sys, time
lines = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what modules print must not get between the lines
for name in sys.argv[1:]:
    started = time.perf_counter()
    problem = ""
    try:
        importlib.import_module(name)
    except BaseException as e:
        text = [line.strip() for line in str(e).splitlines() if line.strip()]
        problem = type(e).__name__ + (": " + text[-1][:300] if text else "")
    seconds = time.perf_counter() - started
    lines.write(json.dumps({"seconds": seconds, "problem": problem}) + "\\n")
    lines.flush()
os._exit(0)  # not a module's business
"""


def measure_imports(run: Run) -> Item:
    """Imports each module that the recipe names, or that the packages of the environment file install.

    A module that fails, crashes or hangs does not keep the others from being imported.
    """
    options = run.options
    if not options.imports and not options.packages:
        raise skip("the recipe's test imports nothing")
    found = modules_of(options.packages) if options.packages else {}
    wanted = list(dict.fromkeys([*options.imports, *(name for names in found.values() for name in names)]))
    if not wanted:
        seen = f"no Python module in {', '.join(options.packages)}"
        raise warn(seen, "name a test in the recipe: 'smoke: {command: [...]}' or 'smoke: {imports: [...]}'")

    modules = import_all(wanted)
    failed = [item for item in modules if item["status"] == "fail"]
    if failed:
        raise _failure(failed, modules)
    seconds = sum(item["seconds"] for item in modules)
    check = checked("modules that import", len(modules), len(wanted), len(modules) == len(wanted))
    without = [package for package, names in found.items() if not names]
    fields: Item = {"modules": modules, "seen": _describe(modules, seconds)}
    if without:
        fields["packages_without_modules"] = without
    return {**spread("s", [seconds]), "better": "lower", **fields, **check}


def _describe(modules: list[Item], seconds: float) -> str:
    names = ", ".join(item["name"] for item in modules)
    return f"{names}: imported in {seconds:.1f} s"


def _failure(failed: list[Item], modules: list[Item]) -> Exception:
    shown = "; ".join(f"{item['name']}: {item['seen']}" for item in failed[:_NAMED])
    more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    seen = f"{len(failed)} of {len(modules)} modules do not import: {shown}{more}"
    advice = (
        "a package or a library is missing or too old: add it to the environment or the base; modules that "
        "need what this machine lacks: name the others in the recipe, 'smoke: {imports: [...]}'"
    )
    return fail(seen, advice, modules=modules)


def import_all(modules: list[str]) -> list[Item]:
    """Name, status, seconds and what was seen of each module."""
    out: list[Item] = []
    end = time.monotonic() + TOTAL_S
    while len(out) < len(modules):  # after a crash the rest goes on in a new process
        out += _import_in_process(modules[len(out) :], end)
    return out


def _import_in_process(modules: list[str], end: float) -> list[Item]:
    """Imports modules in a new process, up to the first one that ends it."""
    command = [sys.executable, "-c", _IMPORTER, *modules]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    out: list[Item] = []
    try:
        for name in modules:
            limit_s = max(0.0, min(LIMIT_S, end - time.monotonic()))
            line = _read_line(process.stdout.fileno(), limit_s)
            if line is None:
                out.append(_module(name, limit_s, f"did not end within {limit_s:.0f} s"))
                break
            if not line:
                out.append(_module(name, 0.0, _death(process.wait())))
                break
            answer = json.loads(line)
            out.append(_module(name, answer["seconds"], answer["problem"]))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return out


def _module(name: str, seconds: float, problem: str) -> Item:
    return {"name": name, "status": "fail" if problem else "pass", "seconds": seconds, "seen": problem}


def _read_line(pipe: int, limit_s: float) -> bytes | None:
    """A line; empty at the end of the output, None if none came in time. Lines are shorter than a pipe's
    buffer, and the writer flushes each, so a read returns whole lines; reading byte by byte returns one."""
    line = b""
    end = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, end - time.monotonic())):
                return None
            byte = os.read(pipe, 1)
            if not byte:
                return b""
            line += byte
    return line


def _death(code: int) -> str:
    """How a process ended that imported a module."""
    if code >= 0:
        return f"it ended the process with exit code {code}"
    try:
        return f"it ended the process by {signal.Signals(-code).name}"
    except ValueError:
        return f"it ended the process by signal {-code}"
