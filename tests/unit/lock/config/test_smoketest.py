"""The key ``smoke`` of a recipe: its short forms, its mapping, and messages about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import ConfigError
from builder.lock.config.recipe import load_recipe
from builder.lock.config.smoketest import SmokeTest


def loaded(folder: Path, smoke: str) -> SmokeTest:
    """The smoke test of a recipe with this value, in YAML."""
    (folder / "recipes").mkdir(exist_ok=True)
    text = f"base: debian:bookworm\nenvironment: e.yml\nsmoke: {smoke}\n"
    (folder / "recipes" / "x.yaml").write_text(text)
    return load_recipe("x", folder).smoke


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("auto", {}),
        ("torch", {"framework": "torch"}),
        ("jax", {"framework": "jax"}),
        (
            "{command: [python, -m, mytest], timeout: 9}",
            {"command": ("python", "-m", "mytest"), "timeout": 9},
        ),
        ("{framework: jax, imports: [flax]}", {"framework": "jax", "imports": ("flax",)}),
        ("{none: no licence here}", {"none": "no licence here"}),
    ],
)
def test_forms(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    found = loaded(tmp_path, text)
    assert found == SmokeTest(**expected) and found.is_auto == (not expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("none", 'smoke: a reason is required; write  smoke: {none: "why'),
        ('{none: " "}', "a reason is required"),
        ("sklearn", "or a mapping such as {imports: [sklearn]}"),
        ("{imports: [scikit-learn]}", "'scikit-learn' is not the name of a module"),
        ("{none: why, command: [a]}", "'none' excludes all other tests"),
        ("{timeout: 0}", "smoke.timeout"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as e:
        loaded(tmp_path, text)
    assert words in e.value.message and "x.yaml:3: smoke" in e.value.message
