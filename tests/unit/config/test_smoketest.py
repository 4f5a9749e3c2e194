"""The key ``smoke`` of a recipe: its short forms, its mapping, and messages about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from builder.config.recipe import Recipe, load_recipe
from builder.config.smoketest import SmokeTest
from builder.errors import ConfigError


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
        ("tensorflow", {"framework": "tensorflow"}),
        ("jax", {"framework": "jax"}),
        ("{imports: [sklearn, polars.io]}", {"imports": ("sklearn", "polars.io")}),
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
        ("false", "a reason is required"),
        ('{none: " "}', "a reason is required"),
        ("{none: }", "a reason is required"),
        ("sklearn", "or a mapping such as {imports: [sklearn]}"),
        ("[torch]", "must be auto, torch, tensorflow, jax or a mapping"),
        ("{framwork: torch}", "smoke.framwork: unknown key; did you mean framework?"),
        ("{imports: sklearn}", "smoke.imports: must be a list"),
        ("{imports: [scikit-learn]}", "'scikit-learn' is not the name of a module"),
        ("{none: why, command: [a]}", "'none' excludes all other tests"),
        ("{timeout: 0}", "smoke.timeout"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as e:
        loaded(tmp_path, text)
    assert words in e.value.message and "x.yaml:3: smoke" in e.value.message


def test_json_schema() -> None:
    """Editors accept the short forms and the mapping, and nothing else."""
    schema = Recipe.model_json_schema()
    recipe = {"name": "x", "base": "oci:b", "environment": "e.yml"}
    for value in ("jax", {"imports": ["a"]}, {"none": "why"}):
        jsonschema.validate({**recipe, "smoke": value}, schema)
    for value in ("sklearn", {"import": ["a"]}, 3):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**recipe, "smoke": value}, schema)
