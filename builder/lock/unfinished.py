"""The solved packages of a lock while its base is made.

A ``debian:`` base takes a minute, and may fail where the packages have a solution. So they are
solved first, and written beside the lock file: ``NAME.lock.yml.unfinished``. No command takes a
file of that name for a lock. The next ``builder lock`` or ``build`` continues from it if it asks
for the same packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from builder.errors import BuilderError, LockError
from builder.lock.file import read_lock, write_lock
from builder.lock.inputs import stale_reasons
from builder.lock.request import LockRequest
from builder.lock.solvers import Solver, choose_solver
from builder.model import Lock

#: Key of the metadata: what was asked for in addition to the recipe and its environment.
_ASKED = "builder.asked"


@contextmanager
def solved(request: LockRequest, path: Path, solver: Solver) -> Iterator[Lock]:
    """Solve packages, and store them until the context ends, and longer if it fails.

    Nothing is stored where the base is known before, or packages of an earlier lock are updated.

    Args:
        request: what to lock.
        path: the lock file.
        solver: see :func:`builder.lock.solvers.choose_solver`.
    """
    solve = choose_solver(request.recipe, solver)
    if request.base is not None or request.previous is not None:
        yield solve(request)
        return
    file = path.with_name(f"{path.name}.unfinished")
    asked = f"{solver} {request.exclude_newer}"
    lock = _stored(request, file, asked) or solve(request)
    write_lock(replace(lock, custom={**lock.custom, _ASKED: asked}), file)
    try:
        yield lock
    except BuilderError as e:
        kept = f"{file} has the solved packages, and builder lock continues from it"
        e.hint = f"{e.hint}; {kept}" if e.hint else kept
        raise
    file.unlink(missing_ok=True)


def _stored(request: LockRequest, file: Path, asked: str) -> Lock | None:
    """Return the lock, without its base, that an earlier command solved; None if there is none."""
    try:
        lock = read_lock(file)
    except LockError:  # there is none, or it is damaged
        return None
    if lock.custom.get(_ASKED) != asked or stale_reasons(request.recipe, lock, request.settings):
        return None
    note = f"{request.recipe.name}: continuing from {file}; remove it to solve again"
    request.reporter.note(note)
    return replace(lock, custom={key: text for key, text in lock.custom.items() if key != _ASKED})
