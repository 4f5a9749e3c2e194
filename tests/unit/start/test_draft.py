"""Drafts of recipes: names, files, scripts, and the recipe that they become."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.recipe import load_recipe
from builder.errors import ConfigError, UsageError
from builder.start.draft import Draft, added_files, only_script, target_name
from builder.start.text import recipe_text

FULL = Draft(
    "mine",
    "environment.yml",
    lock="conda-lock.yml",
    base="debian:bookworm",
    platform="linux-aarch64",
    files=(("a b: c.py", "/app/a b: c.py"), ("src", "/app/src")),
    script="a b: c.py",
    python_path="/app/src",
    conda_fallback=True,
    pip_fallback=True,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mine", "mine"),
        ("My Model (v2)", "my-model-v2"),
        ("_x_", "x"),
        ("\N{SNOWMAN}", "image"),
        ("", "image"),
    ],
)
def test_target_name(text: str, name: str) -> None:
    """Any folder has a valid target name."""
    assert target_name(text) == name
    assert Draft(name, "e.yml", base="debian:bookworm").recipe(Path()).name == name


@pytest.mark.parametrize(
    "draft", [FULL, Draft("x", "e.yml", site="perlmutter"), Draft("y", "e.yml", base="oci:b")]
)
def test_file_and_memory(tmp_path: Path, draft: Draft) -> None:
    """A written recipe is the same as the one in memory, whatever characters its values have."""
    path = tmp_path / "recipes" / f"{draft.name}.yaml"
    path.parent.mkdir()
    path.write_text(recipe_text(draft))
    assert load_recipe(draft.name, tmp_path) == draft.recipe(tmp_path, path)
    assert path.read_text().splitlines()[1] == "version: 1  # of the recipe's format"


def test_unknown_site(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no site named 'perlmuter'"):
        Draft("x", "e.yml", site="perlmuter").recipe(tmp_path)


def test_added_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are relative to the current folder, targets below /app where none is named."""
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path / "src")
    added = added_files(["../train.py", "deep", "deep:/data", "..", "../train.py:/opt/t.py"], tmp_path)
    assert added == (
        ("train.py", "/app/train.py"),
        ("src/deep", "/app/src/deep"),
        ("src/deep", "/data"),
        (".", "/app"),
        ("train.py", "/opt/t.py"),
    )


def test_wrong_added_files(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with pytest.raises(UsageError, match="does not exist"):
        added_files([str(project / "nope.py")], project)
    with pytest.raises(UsageError, match="is not below"):
        added_files([str(tmp_path)], project)


@pytest.mark.parametrize(
    ("sources", "script"),
    [
        (["fit.py"], "fit.py"),
        (["fit.py", "src"], "fit.py"),
        (["helpers.py", "train.py"], "train.py"),
        (["main.py", "train.py"], ""),
        (["a.py", "b.py"], ""),
        (["src/train.py"], ""),
        ([], ""),
    ],
)
def test_only_script(sources: list[str], script: str) -> None:
    """The image runs a script if it is clear which one."""
    assert only_script([(source, f"/app/{source}") for source in sources]) == script
