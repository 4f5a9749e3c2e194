"""Finds an engine by name and builds with it."""

from __future__ import annotations

import importlib
import logging

from builder.build.engines import ENGINES
from builder.core.errors import RunnerError, UsageError, refuse
from builder.core.progress import working
from builder.formats.oci.image import host_architecture
from builder.formats.qemu import cannot_run, is_registered, registration_hint
from builder.lock.config.recipe import Recipe

from .base import BuildRequest, BuildResult, Engine

log = logging.getLogger(__name__)


def find_engine(name: str) -> Engine:
    """Return the engine of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in ENGINES:
        raise UsageError(f"no engine named {name!r}", f"engines: {', '.join(ENGINES)}")
    module = importlib.import_module(f"builder.build.engines.{name}")
    engine: Engine = getattr(module, ENGINES[name])()
    return engine


def run_engine(engine: Engine, request: BuildRequest) -> BuildResult:
    """Build with an engine.

    An engine that is not repeatable returns its last build while the inputs are unchanged, see
    last_build.py.

    Raises:
        UsageError: The engine builds another format, or the recipe has what only ``layered`` can
            do: steps, the Python of the base, or a choice of compiled modules.
        RunnerError: The engine does not work on this host, or not for the image's processor.
        BuilderError: See :meth:`Engine.build`.
    """
    if request.recipe.format not in engine.formats:
        others = [name for name in ENGINES if request.recipe.format in find_engine(name).formats]
        raise UsageError(
            f"the engine {engine.name} does not build what {request.recipe.source} says: "
            f"format: {request.recipe.format}",
            f"build it with --engine {', '.join(others)}, or change 'format:' in the recipe",
        )
    _require_supported(engine, request.recipe)
    _require_processor(engine, request.recipe)
    if engine.repeatable:
        _require_available(engine, request.recipe)
        return _build(engine, request)

    from .last_build import LastBuild

    last_build = LastBuild(engine.name, request)
    found = None if request.options.rebuild else last_build.find()
    if found is not None:
        log.info("the last build with %s has the same inputs: it is reused", engine.name)
        return found
    _require_available(engine, request.recipe)
    with working(request.work.reporter, f"building {request.recipe.name} with {engine.name}"):
        result = _build(engine, request)
        last_build.store(result)
    return result


def _build(engine: Engine, request: BuildRequest) -> BuildResult:
    result = engine.build(request)
    log.info("engine %s built %s %s", engine.name, request.recipe.name, result.digest)
    log.info("seconds by stage: %s", result.timings)
    return result


def _require_supported(engine: Engine, recipe: Recipe) -> None:
    """Raise UsageError if the recipe has something that the engine ignores."""
    is_cotainr = engine.name == "cotainr"
    ignored = {
        "steps:": engine.name in ("docker", "cotainr") and len(recipe.steps) > 0,
        f"python: {recipe.python}": is_cotainr and recipe.uses_base_python,
        f"bytecode: {recipe.bytecode}": is_cotainr and "bytecode" in recipe.model_fields_set,
    }
    about = f"the engine {engine.name} does not support {{}} ({recipe.source})"
    hint = "build with --engine layered, or remove that or 'engine:' from the recipe"
    refuse(ignored, about, hint)


def _require_processor(engine: Engine, recipe: Recipe) -> None:
    """Raise RunnerError if an engine but ``layered`` cannot run programs of the image here."""
    architecture = recipe.architecture
    if engine.name == "layered" or architecture == host_architecture():
        return
    if is_registered(architecture):
        return
    raise RunnerError(
        f"the engine {engine.name} runs programs of the image: {cannot_run(architecture)}",
        "build with --engine layered, which runs none with bytecode: none; or "
        + registration_hint(architecture),
    )


def _require_available(engine: Engine, recipe: Recipe) -> None:
    problem = engine.available()
    if problem is None:
        return
    modules = " ".join(recipe.site.modules)
    remedy = f"load the modules of the site (module load {modules})" if modules else "fix that"
    hint = f"{remedy}, or build with --engine layered, which needs no other program"
    raise RunnerError(f"the engine {engine.name} does not work here: {problem}", hint)
