"""Lock a target: from its recipe to the lock file.

    earlier lock ─┐
    recipe ───────┼─▶ base ─▶ packages ─▶ base, if made here ─▶ OS packages ─▶ date ─▶ lock file
    environment ──┘           solved, imported,
                              or those of the earlier lock

A base that is read from a registry is pinned before anything is solved. One that this machine makes
takes a minute, and may fail where the packages have a solution. So they are solved first, and
written beside the lock file: ``NAME.lock.yml.unfinished``. No command takes a file of that name for
a lock. The next ``builder lock`` or ``build`` continues from it if it asks for the same packages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from builder.build.bases.contents import base_glibc, base_python
from builder.build.bases.resolve import is_made_here, open_base, resolve_base
from builder.build.fetch.venv import locked_base_python
from builder.build.steps.apt_solve import solve_os_packages
from builder.build.wheels.builder import ImageWheelBuilder
from builder.build.wheels.locked import place_wheels, remove_unnamed
from builder.core.errors import BuilderError, LockError, UsageError
from builder.core.model import Lock, LockedBase
from builder.core.redact import redact
from builder.core.stages import LockOptions, Solver
from builder.core.workspace import Workspace
from builder.lock.basepython import has_base_python
from builder.lock.config.recipe import Recipe
from builder.lock.file import earlier_lock, read_lock, replace_lock, write_lock
from builder.lock.indexes import warn_of_kind
from builder.lock.inputs import Inputs, glibc_of, known_glibc, stale_reasons
from builder.lock.request import LockRequest
from builder.lock.solve import check_environment, lock_target

log = logging.getLogger(__name__)


def lock(inputs: Inputs, work: Workspace, options: LockOptions, path: Path) -> Lock:
    """Find the packages of a target, and write them to a lock file. Returns the lock as written.

    Raises:
        LockError: the recipe names a lock of conda-lock, or there is no lock to update.
        SolveError: no set of packages satisfies the environment.
        FetchError, RegistryError: base, channel or index do not answer.
    """
    recipe = inputs.recipe
    if recipe.uses_lock_unchanged:
        problem = f"{recipe.source}: lock: names {recipe.lock_path}, which another tool made"
        raise LockError(problem, "remove 'lock:' from the recipe to let builder lock")
    check_environment(inputs, options.exclude_newer)
    has_to_exist = options.is_update and path.exists()
    before = read_lock(path) if has_to_exist else earlier_lock(path)
    request = _request(inputs, work, options, path, before)
    # beside the lock file while the base is made, which may fail
    with _found_packages(request, path) as found:
        base = request.base or resolve_base(recipe.base, recipe, work)
        log.info("%s: base %s is pinned to %s", recipe.name, redact(base.reference), base.digest)
        made = replace(found, base=base)
        has_os_update = len(options.update) > len(request.options.update)
        known = None if options.update_base or has_os_update else request.previous
        made = _with_os_packages(recipe, work, made, known)
        made = replace_lock(made, path)
    if before is not None:
        kept = {package.key for package in made.packages}
        remove_unnamed([p for p in before.packages if p.key not in kept], recipe)
    place_wheels(made, recipe.root, work.store)
    warn_of_kind(recipe, made.packages, work.reporter)
    return made


def _request(
    inputs: Inputs, work: Workspace, options: LockOptions, path: Path, before: Lock | None
) -> LockRequest:
    """Return the request for the packages: what to update, and the base if it is known before.

    ``before`` is the lock at ``path``.
    """
    recipe = inputs.recipe
    previous = before if options.is_update else None
    if options.update and previous is None:
        raise LockError(f"{path}: no lock file to update", f"builder lock {recipe.name}")
    update = without_os_packages(options.update, previous) if previous else ()
    known = None if options.update_base else previous
    base, inputs = _base_before_packages(inputs, work, known)
    if base is not None and recipe.uses_base_python:
        python, folder = base_python(base, recipe, work), work.store.folders.channels / "base"
        base = replace(base, python=locked_base_python(python, recipe.platform, folder))
    locked = before.packages if before else ()
    builder = ImageWheelBuilder(inputs, work, base, options.exclude_newer, locked)
    options = replace(options, update=update)
    return LockRequest(inputs, work.settings, base, previous, options, builder, work.reporter)


def without_os_packages(names: Sequence[str], lock: Lock) -> tuple[str, ...]:
    """Return the names without those that the lock has as OS packages alone."""
    system = {package.name for package in lock.record.os_packages or ()}
    system -= {package.name for package in lock.packages}
    return tuple(name for name in names if name not in system)


def _base_before_packages(
    inputs: Inputs, work: Workspace, known: Lock | None
) -> tuple[LockedBase | None, Inputs]:
    """Return the base, and the inputs with its glibc if that has to be read there.

    None for a base that is made after the packages are solved. ``known`` is the lock whose base
    stays, if it pins one.
    """
    recipe, is_made = inputs.recipe, is_made_here(inputs.recipe.base)
    base = pinned = known.base if known else None
    if base is None and (recipe.uses_base_python or not is_made):
        base = resolve_base(recipe.base, recipe, work)
    if base is None or is_made or known_glibc(recipe):
        return base, inputs
    glibc = glibc_of(known) if known and pinned else base_glibc(base, recipe, work)
    return base, inputs.on_base(glibc)


def _with_os_packages(
    recipe: Recipe, work: Workspace, lock: Lock, previous: Lock | None = None
) -> Lock:
    """Return the lock with the OS packages that ``base_packages`` adds to its base.

    A base that builder makes has them already. Those of an earlier lock stay while base and
    ``base_packages`` are the same.
    """
    packages = None
    if recipe.base_packages and not is_made_here(recipe.base) and lock.base is not None:
        if previous is not None and _adds_to_base(previous) == _adds_to_base(lock):
            packages = previous.record.os_packages
        if packages is None:
            base = open_base(lock.base, recipe, work)
            packages = solve_os_packages(recipe, base, work)
    return replace(lock, record=replace(lock.record, os_packages=packages))


def _adds_to_base(lock: Lock) -> tuple[LockedBase | None, str | None]:
    return lock.base, lock.record.inputs.get("base-packages")


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
        from builder.lock.imported import import_lock  # with the readers of all formats

        log.info("%s: importing %s", recipe.name, recipe.imported_lock)
        return import_lock
    log.info("%s: solving with %s", recipe.name, solver)
    if solver == "rattler":
        return lock_target
    if recipe.uses_base_python:
        problem = f"{recipe.source} has python: {recipe.python}, and no conda packages to solve"
        raise UsageError(f"--solver conda-lock: {problem}", f"builder lock {recipe.name}")
    from builder.lock.condalock import conda_lock_target

    return conda_lock_target


@contextmanager
def _found_packages(request: LockRequest, path: Path) -> Iterator[Lock]:
    """Find packages; while the base is made, store them, and keep them if that fails.

    Those of an earlier lock stay if only the base or OS packages are updated. Nothing is stored
    where the base is known before, or packages of an earlier lock are updated.

    Args:
        request: what to lock.
        path: the lock file.
    """
    recipe, options = request.inputs.recipe, request.options
    if (previous := _staying(request)) is not None:
        log.info("%s: the packages of %s stay", recipe.name, path)
        yield previous
        return
    if options.update:
        log.info("%s: updating %s", recipe.name, ", ".join(options.update))
    solve = choose_solver(recipe, options.solver)
    if request.base is not None or request.previous is not None:
        yield solve(request)
        return
    file = path.with_name(f"{path.name}.unfinished")
    asked = f"{options.solver} {options.exclude_newer}"
    solved = _stored(request, file, asked) or solve(request)
    write_lock(replace(solved, record=replace(solved.record, asked=asked)), file)
    try:
        yield solved
    except BuilderError as e:
        kept = f"{file} has the solved packages, and builder lock continues from it"
        e.hint = f"{e.hint}; {kept}" if e.hint else kept
        raise
    file.unlink(missing_ok=True)


def _staying(request: LockRequest) -> Lock | None:
    """Return the earlier lock if its packages stay; None if they have to be found."""
    previous = request.previous
    if previous is None or request.options.update:
        return None
    fits = glibc_of(previous) == request.inputs.base_glibc
    return previous if fits and has_base_python(previous, request.base) else None


def _stored(request: LockRequest, file: Path, asked: str) -> Lock | None:
    """Return the lock, without its base, that an earlier command solved; None if there is none."""
    found, inputs = earlier_lock(file), request.inputs
    if found is None or found.record.asked != asked or stale_reasons(inputs, found):
        return None
    request.reporter.note(f"{inputs.recipe.name}: continuing from {file}; remove it to solve again")
    return replace(found, record=replace(found.record, asked=""))
