"""Imports modules in the image, and reports which files that reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from builder.config.recipe import Recipe
from builder.errors import LockError, RunnerError
from builder.image.files import ENTRYPOINT, HOME
from builder.image.smoke_program import PACKAGE
from builder.lock.modules import MAX_MODULES
from builder.model import Image, SifImage
from builder.progress import Reporter, working
from builder.run.base import RunOptions
from builder.run.process import Completed
from builder.run.select import ENGINE_NAMES, find_runner
from builder.settings import Settings
from builder.store.blobs import Store

#: Seconds for one module, and for all of them. On a busy machine torch took 50 s.
LIMIT_S, TOTAL_S = 300, 1800
#: Modules that are imported. An environment file lists tens.
_MAX_NAMES = 1000
#: Characters that a message shows of what went wrong in the image.
_SHOWN = 300
#: The line of the answer begins with it: modules print what they like.
_ANSWER = '{"builder": "imports", '

# Imports one module as a program does, and prints what went wrong, and the files of all modules that are
# loaded. Frozen modules have another origin: Python does not read their files. json comes after the list.
_IMPORTER = """
import os, sys
out = os.dup(1)
os.dup2(2, 1)  # what modules print
problem = ""
try:
    __import__(sys.argv[1])
except BaseException as e:
    problem = type(e).__name__ + ": " + str(e)
files = set()
for module in list(sys.modules.values()):
    try:
        origin = module.__spec__.origin
    except BaseException:
        continue
    if type(origin) is str and origin.endswith(".py"):
        files.add(origin)
import json
with os.fdopen(out, "w") as stream:
    json.dump([problem, sorted(files)], stream)
    stream.flush()
    os._exit(0)
"""

# Each module has a process of its own: one that crashes is named, and the others are still listed.
_PROGRAM = f"""
import json, subprocess, sys
names, packages, importer = json.loads(sys.argv[1])
if packages:
    sys.path.insert(0, "{HOME}/smoke.py")
    from {PACKAGE}.machine.modules import modules_of
    names += [name for found in modules_of(packages).values() for name in found]
failed, files = {{}}, set()
names = list(dict.fromkeys(names))
for name in names:
    try:
        done = subprocess.run(
            [sys.executable, "-c", importer, name],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout={LIMIT_S},
        )
        problem, found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        problem, found = "it did not end within {LIMIT_S} s", []
    except ValueError:
        problem, found = "it ended the process with exit code %d" % done.returncode, []
    files.update(found)
    if problem:
        failed[name] = problem[:{_SHOWN}]
print()
print('{_ANSWER}' + json.dumps({{"names": names, "failed": failed, "files": sorted(files)}})[1:], flush=True)
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """What the imports of a target read."""

    names: tuple[str, ...]
    """The modules that were imported: ``torch``."""
    failed: dict[str, str]
    """Those that cannot be imported, and why."""
    files: tuple[str, ...]
    """Absolute paths in the image of all modules that were loaded, as the image's Python reported them."""


@dataclass(frozen=True, slots=True)
class Imports:
    """What is imported, see :class:`builder.smoke.plan.SmokePlan`."""

    names: tuple[str, ...] = ()
    """Modules."""
    packages: tuple[str, ...] = ()
    """Packages all of whose modules are imported; the image knows which these are."""


def image_for_imports(recipe: Recipe) -> Recipe:
    """The recipe of the image that lists the modules: it needs no list, and no SIF if the base is none."""
    format_ = recipe.format if recipe.base.startswith("sif:") else "oci"
    return recipe.model_copy(update={"bytecode": "none", "format": format_})


def import_modules(
    image: Image | SifImage,
    recipe: Recipe,
    imports: Imports,
    settings: Settings,
    store: Store,
    reporter: Reporter,
) -> Imported:
    """Imports modules with the image's own Python, in a container without a network.

    Raises:
        LockError: there is nothing to import, or no module can be imported.
        RunnerError: no runner works on this host, or the image's Python does not start.
    """
    if not imports.names and not imports.packages:
        raise LockError(
            f"{recipe.source}: the smoke test of {recipe.name} imports no modules that builder could list",
            "name them in the recipe: 'smoke: {imports: [...]}'; or write 'bytecode: all'",
        )
    unfit = ENGINE_NAMES if isinstance(image, SifImage) else ()
    runner = find_runner(settings, store, None, reporter, gpu=recipe.gpu.vendor, without=unfit)
    asked = json.dumps([imports.names, imports.packages, _IMPORTER])
    command = [f"{recipe.conda.prefix}/bin/python", "-c", _PROGRAM, asked]
    options = RunOptions(entrypoint=[ENTRYPOINT], gpu=recipe.gpu.vendor, timeout_s=TOTAL_S)
    with working(reporter, f"importing the modules of {recipe.name} ({runner.name})"):
        done = runner.run(image, command, options)
    return _checked(_answer(done, recipe), recipe, reporter)


def _checked(found: Imported, recipe: Recipe, reporter: Reporter) -> Imported:
    """Warns of modules that cannot be imported."""
    failed = "; ".join(f"{name}: {problem}" for name, problem in found.failed.items())
    if len(found.failed) == len(found.names):
        raise LockError(
            f"target {recipe.name}: no module can be imported: {failed or 'its packages install none'}",
            f"builder smoke {recipe.name} shows what is missing; or name modules in the recipe: "
            "'smoke: {imports: [...]}'",
        )
    if failed:
        reporter.warn(f"{recipe.name}: {len(found.failed)} modules cannot be imported: {failed}")
    return found


def _answer(done: Completed, recipe: Recipe) -> Imported:
    """What the program in the image printed. The image may print anything."""
    line = next((text for text in reversed(done.stdout.splitlines()) if text.startswith(_ANSWER)), "")
    try:
        value = json.loads(line)
        names = _texts(value["names"], _MAX_NAMES)
        failed = value["failed"]
        problems = dict(zip(_texts(list(failed), _MAX_NAMES), _texts(list(failed.values())), strict=True))
        return Imported(names, problems, _texts(value["files"], 2 * MAX_MODULES))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        ended = "did not end in time" if done.timed_out else f"ended with exit code {done.returncode}"
        said = " | ".join(done.stderr.strip().splitlines()[-3:])[-_SHOWN:]
        raise RunnerError(
            f"the imports of target {recipe.name} {ended} and left no list: {said or 'no output'}",
            f"builder smoke {recipe.name} shows whether the image's Python starts",
        ) from None


def _texts(value: Any, most: int = _MAX_NAMES) -> tuple[str, ...]:
    """A list of texts, none of which a terminal would execute.

    Raises:
        ValueError: it is none, or too long.
    """
    if not isinstance(value, list) or len(value) > most or not all(isinstance(text, str) for text in value):
        raise ValueError("not a list of texts")
    return tuple("".join(c if c.isprintable() else " " for c in text) for text in value)
