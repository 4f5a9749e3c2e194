"""From a recipe to a lock; solves with real solvers are in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.recipe import Recipe
from builder.lock.request import LockRequest
from builder.lock.solve import lock_target
from builder.settings import Settings
from tests.support.reporters import Warnings


def test_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What conda ignores in a spec is reported once."""
    (tmp_path / "e.yml").write_text("channels: [c]\ndependencies: ['uvicorn[standard]']\n")
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": tmp_path}
    recipe = Recipe.model_validate(values)
    monkeypatch.setattr("builder.lock.conda.solve_conda", lambda request: ([], ("c",)))
    reporter = Warnings()
    settings = Settings(tmp_path / "cache", tmp_path / "tmp", 1)
    lock_target(LockRequest(recipe, settings, reporter=reporter))
    assert len(reporter.messages) == 1 and "conda ignores [standard]" in reporter.messages[0]
