"""The JSON schemas accept all shipped files, and report a wrong key or type at its path."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from builder.lock.config.schema import recipe_schema, site_schema
from builder.lock.config.sites import PACKAGE_FOLDER

ROOT = Path(__file__).parents[4]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SITES = sorted(PACKAGE_FOLDER.glob("*.yaml"))
SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {"recipe": recipe_schema, "site": site_schema}


class EditorLoader(yaml.SafeLoader):
    """YAML 1.2's core schema, which yaml-language-server reads: a date, ``yes`` and ``on`` are texts."""


EditorLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":bool"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
EditorLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false"), list("tf"))


@functools.cache
def validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = SCHEMAS[kind]()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def problems(kind: str, text: str) -> list[tuple[str, str]]:
    """The errors of a YAML text: paths and messages, of the alternatives the one that fits best."""
    value = yaml.load(text, EditorLoader)  # noqa: S506  a safe loader
    found = []
    for error in validator(kind).iter_errors(value):
        best = jsonschema.exceptions.best_match([error])
        found.append((".".join(str(key) for key in best.absolute_path), best.message))
    return found


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes(path: Path) -> None:
    """Each recipe is valid, and its first line leads an editor to the schema."""
    text = path.read_text()
    assert problems("recipe", text) == []
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named and (path.parent / named[1]).resolve() == ROOT / "docs/schemas/recipe.schema.json"


@pytest.mark.parametrize("path", SITES, ids=lambda path: path.stem)
def test_site_files(path: Path) -> None:
    assert problems("site", path.read_text()) == []


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_descriptions(kind: str) -> None:
    """Every key has a description, in Markdown, and refuses unknown keys."""
    schema = SCHEMAS[kind]()
    for name, whole in {"": schema, **schema["$defs"]}.items():
        forms = whole.get("anyOf", [])  # some models have a short form beside the mapping
        definition = next((form for form in forms if "properties" in form), whole)
        assert definition["additionalProperties"] is False, name
        for key, value in definition["properties"].items():
            text = value.get("description", "")
            assert text and "``" not in text and "\n" not in text, f"{name}.{key}"


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("sit: perlmutter", "", "'sit' was unexpected"),
        ("conda: {exclude_newer: 2026}", "conda.exclude_newer", "2026 is not"),
        ("cmd: python train.py", "cmd", "'python train.py' is not of type 'array'"),
        ("site: {slurm: {queues: {fast: {}}}}", "site.slurm.queues", "'fast' is not one of"),
    ],
)
def test_wrong_recipes(text: str, path: str, message: str) -> None:
    """An editor underlines the wrong key or value."""
    ((at, said),) = problems("recipe", text)
    assert at == path and message in said


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("environment: e.yml", "", "'environment' was unexpected"),
        ("site: lumi-g", "site", "'lumi-g' is not of type 'object'"),
        ("site: {name: x}", "site", "'name' was unexpected"),
    ],
)
def test_wrong_site_files(text: str, path: str, message: str) -> None:
    ((at, said),) = problems("site", text)
    assert at == path and message in said


def test_dates_as_editors_read_them() -> None:
    """A date without quotes is a text; builder accepts both."""
    assert problems("recipe", "conda: {exclude_newer: 2026-11-01}") == []
    assert problems("recipe", 'conda: {exclude_newer: "2026-11-01"}') == []
