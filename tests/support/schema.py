"""The schema of smoke reports."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

import builder.deliver.smoke

SCHEMA = json.loads((Path(builder.deliver.smoke.__file__).parent / "report.schema.json").read_text())


@functools.cache
def _validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(
        SCHEMA
    )  # jsonschema.validate() does it again for each report
    return jsonschema.Draft202012Validator(SCHEMA)


def check_report(report: Any) -> None:
    """Raises jsonschema.ValidationError unless a report matches the schema."""
    _validator().validate(report)
