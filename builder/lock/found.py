"""The packages of a lock: what finds them, and where they are stored while the base is made.

A ``debian:`` base takes a minute, and may fail where the packages have a solution. So they are
solved first, and written beside the lock file: ``NAME.lock.yml.unfinished``. No command takes a
file of that name for a lock. The next ``builder lock`` or ``build`` continues from it if it asks
for the same packages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from builder.core.errors import BuilderError, UsageError
from builder.core.model import Lock
from builder.core.stages import Solver

from .basepython import has_base_python
from .config.recipe import Recipe
from .file import earlier_lock, write_lock
from .inputs import stale_reasons
from .request import LockRequest
from .solve import lock_target

log = logging.getLogger(__name__)


def choose_solver(recipe: Recipe, solver: Solver) -> Callable[[LockRequest], Lock]:
    """Return the function that finds the packages of a target.

    Args:
        recipe: the target.
        solver: ``rattler``, with uv for pip packages, or ``conda-lock``. The lock of another tool
            is imported in any case.

    Raises:
        UsageError: conda-lock has nothing to solve.
    """
    if recipe.imported_lock is not None:
        from .imported import import_lock  # with the readers of all formats

        log.info("%s: importing %s", recipe.name, recipe.imported_lock)
        return import_lock
    log.info("%s: solving with %s", recipe.name, solver)
    if solver == "rattler":
        return lock_target
    if recipe.uses_base_python:
        problem = f"{recipe.source} has python: {recipe.python}, and no conda packages to solve"
        raise UsageError(f"--solver conda-lock: {problem}", f"builder lock {recipe.name}")
    from .condalock import conda_lock_target

    return conda_lock_target


@contextmanager
def found_packages(request: LockRequest, path: Path) -> Iterator[Lock]:
    """Find packages; while the base is made, store them, and keep them if that fails.

    Those of an earlier lock stay if only the base or OS packages are updated. Nothing is stored
    where the base is known before, or packages of an earlier lock are updated.

    Args:
        request: what to lock.
        path: the lock file.
    """
    previous, recipe, options = request.previous, request.inputs.recipe, request.options
    if previous and not options.update and has_base_python(previous, request.base):
        log.info("%s: the packages of %s stay", recipe.name, path)
        yield previous
        return
    if options.update:
        log.info("%s: updating %s", recipe.name, ", ".join(options.update))
    solve = choose_solver(recipe, options.solver)
    if request.base is not None or previous is not None:
        yield solve(request)
        return
    file = path.with_name(f"{path.name}.unfinished")
    asked = f"{options.solver} {options.exclude_newer}"
    lock = _stored(request, file, asked) or solve(request)
    write_lock(replace(lock, record=replace(lock.record, asked=asked)), file)
    try:
        yield lock
    except BuilderError as e:
        kept = f"{file} has the solved packages, and builder lock continues from it"
        e.hint = f"{e.hint}; {kept}" if e.hint else kept
        raise
    file.unlink(missing_ok=True)


def _stored(request: LockRequest, file: Path, asked: str) -> Lock | None:
    """Return the lock, without its base, that an earlier command solved; None if there is none."""
    lock, inputs = earlier_lock(file), request.inputs
    if lock is None or lock.record.asked != asked or stale_reasons(inputs, lock):
        return None
    request.reporter.note(f"{inputs.recipe.name}: continuing from {file}; remove it to solve again")
    return replace(lock, record=replace(lock.record, asked=""))
