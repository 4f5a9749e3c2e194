"""Which steps a recipe has, and where they run."""

from __future__ import annotations

import pytest

from builder.build.steps.recipe import check_step_architecture, recipe_steps
from builder.core.errors import RunnerError
from builder.formats import qemu
from builder.lock.config.recipe import Recipe


def recipe(**values: object) -> Recipe:
    data = {"name": "a", "base": "debian:bookworm", "environment": "e.yml", **values}
    return Recipe.model_validate(data)


def test_order() -> None:
    """Steps before the first one with files are below the files, all others above."""
    runs = [{"run": "a"}, {"run": ["b", "c"], "network": True}, {"run": "d", "files": True}, {"run": "e"}]
    below, above = recipe_steps(recipe(steps=runs))
    assert [step.commands for step in below] == [("a",), ("b", "c")]
    assert [step.commands for step in above] == [("d",), ("e",)]
    assert [step.network for step in below] == [False, True]
    assert above[0].where == "steps[2]"


def test_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run on the processor that they are for, or under qemu."""
    monkeypatch.setattr(qemu, "is_registered", lambda architecture: False)
    monkeypatch.setattr(qemu, "_static_qemu", lambda architecture: "")
    monkeypatch.setattr(qemu, "host_architecture", lambda: "amd64")
    check_step_architecture(recipe(steps=[{"run": "make"}]))
    check_step_architecture(recipe(platform="linux-aarch64", bytecode="none"))
    with pytest.raises(RunnerError, match="Python compiles its modules: the image is for arm64") as caught:
        check_step_architecture(recipe(platform="linux-aarch64"))
    assert caught.value.hint.endswith("or write in the recipe: bytecode: none")
    with pytest.raises(RunnerError, match=r"the image is for arm64, this host is amd64") as caught:
        check_step_architecture(recipe(platform="linux-aarch64", steps=[{"run": "make"}]))
    assert "apt-get install qemu-user-static" in caught.value.hint
    monkeypatch.setattr(qemu, "is_registered", lambda architecture: True)
    check_step_architecture(recipe(platform="linux-aarch64", steps=[{"run": "make"}]))
