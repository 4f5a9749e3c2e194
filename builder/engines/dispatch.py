"""Finds an engine by name and builds with it."""

from __future__ import annotations

import importlib

from builder.engines.base import BuildRequest, BuildResult, Engine
from builder.engines.last_build import LastBuild
from builder.errors import RunnerError, UsageError

#: Names, and the class of each in the module of the same name.
ENGINES = {"layered": "Layered", "docker": "Docker", "apptainer": "Apptainer", "cotainr": "Cotainr"}
_FORMATS = {"oci": "OCI image", "sif": "SIF"}


def find_engine(name: str) -> Engine:
    """The engine of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in ENGINES:
        raise UsageError(f"no engine named {name!r}", f"engines: {', '.join(ENGINES)}")
    found: Engine = getattr(importlib.import_module(f"builder.engines.{name}"), ENGINES[name])()
    return found


def run_engine(engine: Engine, request: BuildRequest) -> BuildResult:
    """Builds with an engine, when it can build what the target is and works on this host.

    One that gives other bytes each time is not asked twice for the same: its last build is the target's, see ``kept.py``.

    Raises:
        UsageError: it builds the wrong format.
        RunnerError: it does not work here.
        BuilderError: see :meth:`Engine.build`.
    """

    recipe = request.recipe
    if recipe.format not in engine.formats:
        fit = [name for name in ENGINES if recipe.format in find_engine(name).formats]
        raise UsageError(
            f"the engine {engine.name} makes {' and '.join(_FORMATS[f] + 's' for f in sorted(engine.formats))}, and target "
            f"{recipe.name} is {'an' if recipe.format == 'oci' else 'a'} {_FORMATS[recipe.format]} "
            f"({recipe.source}: format: {recipe.format})",
            f"build it with --engine {', '.join(fit[:-1])} or {fit[-1]}, or change 'format:' in the recipe",
        )
    kept = None if engine.repeatable else LastBuild(engine.name, request)
    if kept and not request.rebuild and (same := kept.find()) is not None:
        return same
    if (reason := engine.available()) is not None:
        raise RunnerError(
            f"the engine {engine.name} does not work here: {reason}",
            "correct that, or build with --engine layered, which needs nothing; builder doctor says what there is",
        )
    result = engine.build(request)
    if kept:
        kept.keep(result)
    return result
