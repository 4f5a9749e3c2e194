"""Which function makes the lock of a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.lock.request import LockRequest
from builder.lock.solve import lock_target
from builder.model import Lock

#: What solves the conda packages of an environment.
Solver = Literal["rattler", "conda-lock"]


def choose_solver(recipe: Recipe, solver: Solver) -> Callable[[LockRequest], Lock]:
    """Return the function that makes the lock of a target.

    Args:
        recipe: the target.
        solver: ``rattler``, with uv for pip packages, or ``conda-lock``. The lock of another tool
            is imported in any case.

    Raises:
        UsageError: conda-lock has nothing to solve.
    """
    if recipe.imported_lock is not None:
        from builder.lock.imported import import_lock  # with the readers of all formats

        return import_lock
    if solver == "conda-lock" and recipe.uses_base_python:
        raise UsageError(
            f"--solver conda-lock: {recipe.source} has python: {recipe.python}, and no conda packages "
            "to solve",
            f"builder lock {recipe.name}",
        )
    if solver == "conda-lock":
        from builder.lock.condalock import conda_lock_target

        return conda_lock_target
    return lock_target
