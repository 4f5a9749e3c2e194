"""``builder schema``."""

from __future__ import annotations

import json
from typing import Any

import click

from builder.cli.context import common_options

KINDS = ("recipe", "site", "report")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@common_options
def schema(kind: str) -> None:
    """Print the JSON schema of recipes, site files or smoke reports.

    In an editor that speaks yaml-language-server, the first line of a recipe can name it:
    # yaml-language-server: $schema=PATH
    """
    click.echo(schema_text(kind), nl=False)


def schema_text(kind: str) -> str:
    """Returns a JSON schema as text, as in docs/schemas/."""
    return json.dumps(_schema(kind), indent=2, ensure_ascii=False) + "\n"


def _schema(kind: str) -> Any:
    from builder.config.schema import recipe_schema, site_schema
    from builder.smoke.schema import report_schema

    return {"recipe": recipe_schema, "site": site_schema, "report": report_schema}[kind]()
