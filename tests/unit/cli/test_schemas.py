"""The published schemas: of files, and of everything that ``--json`` prints.

``.json`` of a command's result checks it with its schema, in all tests: see ``tests/support/documents.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import jsonschema
import pytest

from builder.cli import cli
from builder.cli.schemas import SCHEMAS, schema_text
from tests.support.cli import Cli
from tests.support.documents import FOLDER, checked, required, schema
from tests.support.project import TinyProject
from tests.unit.cli.test_main import ALL

FILES = ("recipe", "site", "report")
OUTPUTS = [name for name in SCHEMAS if name not in FILES]
ERROR = {"schema": "error/1", "error": "x", "hint": "", "code": 3}


@pytest.mark.parametrize("name", SCHEMAS)
def test_published(name: str) -> None:
    """docs/schemas/ has what builder prints (make schemas)."""
    assert (FOLDER / f"{name}.schema.json").read_text() == schema_text(name)


def test_names() -> None:
    """Each command with ``--json`` has a schema, and nothing else has one."""
    assert {path.name.removesuffix(".schema.json") for path in FOLDER.iterdir()} == set(SCHEMAS)
    documents = {"-".join(path) for path, command in ALL if "as_json" in {p.name for p in command.params}}
    documents = documents - {"report"} | {"report-page", "sites", "error"}
    assert documents == set(OUTPUTS)
    assert isinstance(cli.get_command(click.Context(cli), "sites"), click.Group), "a group with a result"


def test_help(do: Cli) -> None:
    """``builder help schema`` prints them, and lists the names."""
    assert do("help", "schema", "cache-info").out == schema_text("cache-info")
    for words in ((), ("rezept",), ("cache", "info")):
        result = do("help", "schema", *words)
        assert result.code == 2 and "recipe, site, report, error, init" in result.err


def parts(node: Any) -> Iterator[tuple[str, Any]]:
    """All keys that a schema describes, with their schemas."""
    if isinstance(node, dict):
        yield from node.get("properties", {}).items()
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from parts(value)


@pytest.mark.parametrize("name", OUTPUTS)
def test_descriptions(name: str) -> None:
    """Each number has its unit, and each object names its keys or the kind of its values."""
    for key, value in parts(schema(name)):
        if value.get("type") in ("integer", "number"):
            assert value.get("description"), key
        if value.get("type") == "object" and key not in ("gpu", "site"):
            assert "properties" in value or "additionalProperties" in value, key


def test_new_target(do: Cli, tiny: TinyProject) -> None:
    """Both documents of ``builder init``."""
    tiny.recipe.unlink()
    made = do(
        "init", "-y", "--name", "new", "--from", str(tiny.environment), "--base", "oci:base", "--json"
    ).json
    assert made["target"] == "new" and "recipes/new.yaml" in made["files"]
    assert do("init", "-y", "--json").json["targets"].keys() == {"new"}


def test_document_of_another_command(do: Cli, tiny: TinyProject) -> None:
    """A subcommand's document has its own name, whichever word the option follows."""
    for words in (("sites", "--json", "show", "lumi-g"), ("sites", "show", "lumi-g", "--json")):
        assert do(*words).json["schema"] == "sites-show/1"
    assert {row["schema"] for row in do("sites", "--json").json} == {"sites/1"}
    failed = do("sites", "show", "lumi", "--json").json
    assert failed["schema"] == "error/1" and failed["code"] == 3


def test_wrong_documents() -> None:
    """A document without a required key, of another version, or with a key of no schema, is refused."""
    assert checked(dict(ERROR)) == ERROR and required("error", ERROR) == [*ERROR]
    for key in ERROR:
        less = {other: value for other, value in ERROR.items() if other != key}
        with pytest.raises((jsonschema.ValidationError, KeyError)):
            checked(less)
    for wrong in (
        {"schema": "error/2"},
        {"code": "3"},
        {"code": 0},
        {"reason": "x"},
        {"schema": "doctor/1"},
    ):
        with pytest.raises((jsonschema.ValidationError, OSError)):
            checked(ERROR | wrong)
