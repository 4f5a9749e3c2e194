"""The JSON schemas of ``builder help schema``: of files, and of what commands print with ``--json``.

``documents.yaml`` has the keys of each document. A list, as ``builder targets`` prints, has a
document in each element; a command or a target that failed has the document ``error`` instead.
"""

from __future__ import annotations

import json
from typing import Any

from builder.core.datafiles import table
from builder.deliver.smoke.schema import report_schema
from builder.lock.config.schema import recipe_schema, site_schema

from .output import DOCUMENTS_VERSION

_FILES = {"recipe": recipe_schema, "site": site_schema, "report": report_schema}
_FORMS = table(__file__, "documents.yaml")["documents"]
#: The names that ``builder help schema`` takes.
SCHEMAS = (*_FILES, *_FORMS)


def schema_text(name: str) -> str:
    """Return a JSON schema as text, as in docs/schemas/."""
    schema = _FILES[name]() if name in _FILES else _output_schema(name)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _output_schema(name: str) -> dict[str, Any]:
    """Return the schema of everything that a command prints with ``--json``."""
    one = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in dict.fromkeys((name, "error"))]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"builder {name.replace('-', ' ')} --json",
        "anyOf": [*one["anyOf"], {"type": "array", "items": one}],
        "$defs": {kind: _document(kind) for kind in (name, "error")},
    }


def _document(kind: str) -> dict[str, Any]:
    """Return the schema of one document: one form or several, each with its name and version."""
    version = {"const": f"{kind}/{DOCUMENTS_VERSION}", "description": "name and version"}
    forms = [one | {"properties": {"schema": version} | one["properties"]} for one in _FORMS[kind]]
    return {"anyOf": json.loads(json.dumps(forms), object_hook=_with_required)}


def _with_required(node: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema, whose objects require their keys but those that end in ``?``."""
    if keys := node.get("properties"):
        required = [key for key in keys if not key.endswith("?")]
        named = {key.removesuffix("?"): value for key, value in keys.items()}
        node |= {"type": "object", "properties": named, "required": required}
    return node
