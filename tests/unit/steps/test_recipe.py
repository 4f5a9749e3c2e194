"""Which steps a recipe has, and where they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import qemu
from builder.config.recipe import Recipe
from builder.errors import RunnerError
from builder.layers.entry import LinkContext
from builder.steps.architecture import check_step_architecture
from builder.steps.recipe import link_scripts, recipe_steps
from tests.support import condapackage

CONTEXT = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages")


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


def test_link_scripts(tmp_path: Path) -> None:
    """conda's variables; only for packages that have a script, and that the recipe runs."""
    script = condapackage.Member("bin/.a-post-link.sh", b"true\n")
    a = condapackage.fetched(condapackage.pack(tmp_path, "a", [script]))
    b = condapackage.fetched(condapackage.pack(tmp_path, "b", []))
    policy = {"post_link": {"a": "run", "b": "run"}}
    found = link_scripts(recipe(conda=policy), [a, b], CONTEXT)
    assert [step.name for step in found] == ["post-link script of a"]
    assert found[0].env["PREFIX"] == "/opt/conda" and found[0].env["PKG_NAME"] == "a"
    assert found[0].env["PKG_VERSION"] == "1.0" and found[0].env["PKG_BUILDNUM"] == "0"
    assert "/opt/conda/bin/.a-post-link.sh" in found[0].commands[0]
    assert link_scripts(recipe(conda={"post_link": {"a": "skip"}}), [a], CONTEXT) == []


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
    for values in ({"steps": [{"run": "make"}]}, {"conda": {"post_link": {"a": "run"}}}):
        with pytest.raises(RunnerError, match=r"the image is for arm64, this host is amd64") as caught:
            check_step_architecture(recipe(platform="linux-aarch64", **values))
        assert "apt-get install qemu-user-static" in caught.value.hint
    monkeypatch.setattr(qemu, "is_registered", lambda architecture: True)
    check_step_architecture(recipe(platform="linux-aarch64", steps=[{"run": "make"}]))
