"""Drafts of recipes: names, files, scripts, and the recipe that they become."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.cli.start.draft import Draft, target_name
from builder.cli.start.text import recipe_text
from builder.lock.config.recipe import load_recipe

FULL = Draft(
    "mine",
    {
        "environment": "environment.yml",
        "lock": "conda-lock.yml",
        "base": "debian:bookworm",
        "platform": "linux-aarch64",
        "files": {"a b: c.py": "/app/a b: c.py", "src": "/app/src"},
        "python": "base",
        "pip": {"fallback": "pip"},
    },
)
SITE = Draft("x", {"environment": "e.yml", "site": "perlmutter"})
BASE = Draft("y", {"environment": "e.yml", "base": "oci:b"})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("My Model (v2)", "my-model-v2"),
        ("\N{SNOWMAN}", "image"),
        ("", "image"),
    ],
)
def test_target_name(text: str, name: str) -> None:
    """Any folder has a valid target name."""
    assert target_name(text) == name
    keys = {"environment": "e.yml", "base": "debian:bookworm"}
    assert Draft(name, keys).recipe(Path()).name == name


@pytest.mark.parametrize("draft", [FULL, SITE, BASE])
def test_file_and_memory(tmp_path: Path, draft: Draft) -> None:
    """A written recipe is the same as the one in memory, whatever characters its values have."""
    path = tmp_path / "recipes" / f"{draft.name}.yaml"
    path.parent.mkdir()
    path.write_text(recipe_text(draft))
    assert load_recipe(draft.name, tmp_path) == draft.recipe(tmp_path)
    assert path.read_text().splitlines()[2] == "version: 1  # of the recipe's format"


@pytest.mark.parametrize(
    ("sources", "script"),
    [
        (["helpers.py", "train.py"], "train.py"),
        (["main.py", "train.py"], ""),
    ],
)
def test_only_script(sources: list[str], script: str) -> None:
    """The image runs a script if it is clear which one."""
    files = {source: f"/app/{source}" for source in sources}
    assert Draft("t", {"environment": "environment.yml", "files": files}).script == script
