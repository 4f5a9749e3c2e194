"""builder.lock.solvers: which function makes the lock of a target."""

from __future__ import annotations

import pytest

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.lock.condalock import conda_lock_target
from builder.lock.imported import import_lock
from builder.lock.solve import lock_target
from builder.lock.solvers import choose_solver


def _recipe(**values: object) -> Recipe:
    return Recipe.model_validate({"name": "t", "base": "debian:bookworm", "environment": "e.yml", **values})


def test_by_recipe_and_option() -> None:
    assert choose_solver(_recipe(), "rattler") is lock_target
    assert choose_solver(_recipe(), "conda-lock") is conda_lock_target
    assert choose_solver(_recipe(lock="uv.lock"), "conda-lock") is import_lock


def test_conda_lock_with_the_python_of_the_base() -> None:
    with pytest.raises(UsageError, match="no conda packages to solve"):
        choose_solver(_recipe(python="base"), "conda-lock")
