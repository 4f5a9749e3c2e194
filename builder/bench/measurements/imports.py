"""Imports in new processes: of torch, and of the modules that a recipe names."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution, distributions

from ..core import Item, Run, fail, skip, warn
from .accuracy import checked
from .command import last_lines, run_limited
from .timing import spread

#: Seconds for all modules in one process, and for one module alone.
TOTAL_S, LIMIT_S = 120.0, 60.0
#: How many failed modules a message names.
_NAMED = 3
#: What a test of Python alone imports: modules that need shared libraries of the image.
_STANDARD = ("ctypes", "zlib")
_IMPORTER = """
import importlib, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # threads that a module started must not keep the process
"""


_STARTER = """
import time
started = time.perf_counter()
import torch
print()
print(time.perf_counter() - started, torch.__version__)
"""
_MODULE_NAME = re.compile(r"^[^\W\d_]\w*$", re.MULTILINE)
#: A file of a public top-level module: a package's ``__init__.py``, or a module of one file.
_MODULE_FILE = re.compile(r"([^\W\d_]\w*)(/(.+/)?__init__\.py|(\.[\w-]+)?\.(py|so))")
#: Modules that packages install by accident.
_ACCIDENTS = re.compile("tests?|testing|docs?|examples?|benchmarks?")
#: The most starts; no other one begins after so many seconds.
_STARTS, _ENOUGH_S = 3, 5.0


def measure_imports(run: Run) -> Item:
    """Import each module that the recipe names, or that the environment's packages install."""
    options = run.options
    found = modules_of(options.packages) if options.packages else {}
    wanted = list(dict.fromkeys(itertools.chain(options.imports, *found.values())))
    is_empty = not wanted and bool(options.packages)
    if not wanted and not is_empty and (options.command or options.framework != "none"):
        raise skip("the recipe's test imports nothing")

    wanted = wanted or list(_STANDARD)
    started = time.perf_counter()
    problems = failed_imports(wanted)
    seconds = time.perf_counter() - started
    if problems:
        raise _failure(problems, len(wanted))
    check = checked("modules that do not import", 0, 0, True)
    item = {**spread("s", [seconds]), "better": "lower", **check}
    if is_empty:
        advice = "name a test in the recipe: 'smoke: {command: [...]}' or 'smoke: {imports: [...]}'"
        raise warn(f"no Python module in {', '.join(options.packages)}", advice, **item)
    return {**item, "seen": f"{', '.join(wanted)}: imported in {seconds:.1f} s"}


def failed_imports(modules: list[str]) -> dict[str, str]:
    """Return the reasons why modules do not import, by name.

    One process imports them all, as a program does. If it fails, each module gets its own process,
    so that one that crashes or hangs does not hide the others.
    """
    if not _problem(modules, TOTAL_S):
        return {}
    end = time.monotonic() + TOTAL_S
    problems = {}
    for name in modules:
        problem = _problem([name], max(1.0, min(LIMIT_S, end - time.monotonic())))
        if problem:
            problems[name] = problem
    return problems or {" and ".join(modules): "they import alone, but not in one process"}


def _problem(modules: list[str], limit_s: float) -> str:
    """Return the reason why a process that imports these modules fails; empty if it does not."""
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-c", _IMPORTER, *modules]
        code = run_limited(command, output, limit_s, os.environ)
        lines = last_lines(output)
    if code is None:
        return f"did not end within {limit_s:.0f} s"
    if code < 0:
        return f"it ended the process by signal {-code}"
    if code == 0:
        return ""
    is_error = bool(lines) and "Error" in lines[-1]
    return lines[-1][:300] if is_error else f"it ended the process with exit code {code}"


def _failure(problems: dict[str, str], count: int) -> Exception:
    shown = "; ".join(f"{name}: {problem}" for name, problem in list(problems.items())[:_NAMED])
    more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    seen = f"{len(problems)} of {count} modules do not import: {shown}{more}"
    advice = (
        "a package or a library is missing or too old: add it to the environment or the base; modules that "
        "need what this machine lacks: name the others in the recipe, 'smoke: {imports: [...]}'"
    )
    return fail(seen, advice)


def measure_torch(run: Run) -> Item:
    """Import torch in up to three new processes."""
    version = str(run.need_torch.__version__)
    seconds: list[float] = []
    found = version
    while not seconds or (len(seconds) < _STARTS and sum(seconds) < _ENOUGH_S):
        import_s, found = _start()
        seconds.append(import_s)
    check = checked("a new process imports the same version", found, version, found == version)
    return {**spread("s", seconds), "better": "lower", **check}


def _start() -> tuple[float, str]:
    """Return the seconds of an import in a new process, and torch's version there."""
    done = subprocess.run([sys.executable, "-c", _STARTER], capture_output=True, check=False)
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode or len(words) < 2:
        code = done.returncode
        seen = f"torch imports in this process, but fails in a new one (exit code {code})"
        raise fail(seen, "check what differs in a new process: memory, limits, variables")
    return float(words[-2]), words[-1]


def modules_of(packages: list[str]) -> dict[str, list[str]]:
    """Return the modules of each package, by its name; a package may have none.

    Args:
        packages: names of installed wheels, in any spelling; conda packages are often called alike.
    """
    installed = {_normal(found.metadata["Name"] or ""): found for found in distributions()}
    found = {package: installed.get(_normal(package)) for package in packages}
    return {name: sorted(set(_modules(one))) if one else [] for name, one in found.items()}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _modules(distribution: Distribution) -> list[str]:
    """Return a distribution's public top-level modules; if one has its name, only that one."""
    files = [str(file) for file in distribution.files or []]
    names = {match[1] for match in map(_MODULE_FILE.fullmatch, files) if match}
    if not files:  # Debian's packages have no list of files
        names = set(_MODULE_NAME.findall(distribution.read_text("top_level.txt") or ""))
    public = [name for name in names if not _ACCIDENTS.fullmatch(name)]
    own = _normal(distribution.metadata["Name"] or "").replace("-", "_")
    return [name for name in public if name.lower() == own] or public
