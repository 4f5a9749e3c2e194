"""Checks what commands print with ``--json`` with the published schemas."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

#: Where the schemas are published.
FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def _closed(node: Any) -> Any:
    """A schema without keys that it does not name, so that a new key of an output gets a description."""
    if isinstance(node, list):
        return list(map(_closed, node))
    if not isinstance(node, dict):
        return node
    made = {key: _closed(value) for key, value in node.items()}
    return {"additionalProperties": False, **made} if "required" in made else made


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """A published schema."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@functools.cache
def _validator(name: str, *, closed: bool = False) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(_closed(schema(name)) if closed else schema(name))


def checked(output: Any) -> Any:
    """Returns an output of ``--json``; fails unless the schema that it names describes it, key by key."""
    documents = output if isinstance(output, list) else [output]
    names = [document["schema"].removesuffix("/1") for document in documents]
    for name in {*names} - {"error"} or {*names}:
        _validator(name).validate(output)  # errors of some targets, too
    for name, document in zip(names, documents, strict=True):
        _validator(name, closed=True).validate(document)
        for key in required(name, document):
            less = {other: value for other, value in document.items() if other != key}
            assert not _validator(name, closed=True).is_valid(less), f"{name} does not require {key}"
    return output


def required(name: str, document: dict[str, Any]) -> list[str]:
    """The keys that the form of this document requires."""
    forms = _closed(schema(name)["$defs"][name]["anyOf"])
    form = next(form for form in forms if jsonschema.Draft202012Validator(form).is_valid(document))
    return list(form["required"])
