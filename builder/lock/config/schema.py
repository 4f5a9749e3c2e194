"""The JSON schemas of recipes and site files, for editors (yaml-language-server) and validators.

They are made from the pydantic models. The descriptions are the docstrings of the fields, which
Python does not keep: they are read from the source. A validator sees one file, before it is merged
with others, so no key is required.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from builder.core.datafiles import table

from .recipe import FORMAT_VERSION, Recipe
from .site import SiteFile
from .sites import PACKAGE_FOLDER, yaml_files

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_NONE = re.compile(r"(; )?\bNone:")


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a recipe file."""
    schema = _schema(Recipe, "Recipe of builder", "the recipe")
    keys = schema["properties"]
    for internal in ("source", "root"):
        del keys[internal]
    keys["version"] = {**table(__file__, "schema.yaml")["version"], "const": FORMAT_VERSION}
    description = keys["site"]["description"]
    keys["site"] = {
        "title": "Site",
        "description": f"{description} A name (`builder sites` lists them), or a mapping that changes keys.",
        "anyOf": [{"type": "string", "examples": _package_sites()}, {"$ref": "#/$defs/Site"}],
    }
    schema["$defs"]["Site"]["properties"]["name"]["examples"] = _package_sites()
    return schema


def _package_sites() -> list[str]:
    return [name for name in yaml_files(PACKAGE_FOLDER) if not name.startswith("_")]


def site_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a site file."""
    schema = _schema(SiteFile, "Site file of builder", "the site file")
    del schema["$defs"]["Site"]["properties"]["name"]  # a site has the name of its file
    return schema


def _schema(model: type[BaseModel], title: str, what: str) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_Described, mode="validation")
    schema.pop("required", None)
    extends = table(__file__, "schema.yaml")["extends"]
    text = extends["description"].replace("WHAT", what)
    schema["properties"] = {"extends": {**extends, "description": text}, **schema["properties"]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": title}


class _Described(GenerateJsonSchema):
    """Adds the docstrings of models and their fields."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made, model = super().model_schema(schema), schema["cls"]
        texts = dict(_docstrings(model))
        for name, field in made.get("properties", {}).items():
            if name in texts:
                field["description"] = texts[name]
            if "$ref" in field:
                field.pop("default", None)  # all defaults of a model: an editor would insert them
        if model.__doc__:
            made["description"] = _plain(model.__doc__)
        return made


def _docstrings(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the docstrings below the fields of a model and of its parents."""
    for parent in reversed(model.__mro__):
        if not issubclass(parent, BaseModel) or parent is BaseModel:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for field, after in pairwise(statements):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                yield field.target.id, _plain(str(after.value.value))


def _plain(text: str) -> str:
    """Return a docstring as one paragraph of Markdown."""
    text = _NONE.sub(lambda found: "; not set:" if found[1] else "Not set:", text)
    return " ".join(_ROLE.sub(r"`\1`", text).replace("``", "`").split())
