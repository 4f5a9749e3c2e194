"""The recipe of a draft as a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from builder.core.datafiles import read_beside, table
from builder.lock.config.recipe import FORMAT_VERSION

from .draft import Draft


def recipe_text(draft: Draft) -> str:
    """Return the recipe of a draft, with comments."""
    # keys that many recipes get later; a site has the last two
    later = read_beside(__file__, "examples.txt").format(name=draft.name).splitlines()
    lines = (*_lines(draft), *(later[:-2] if draft.keys.get("site") else later))
    return "".join(f"{line}\n" for line in lines)


def _lines(draft: Draft) -> Iterator[str]:
    yield "# yaml-language-server: $schema=./.schema.json"
    yield f"# Target {draft.name}. All keys with their values: builder targets {draft.name}"
    yield f"version: {FORMAT_VERSION}  # of the recipe's format"
    comments = table(__file__, "comments.yaml")
    for key, value in draft.data().items():
        topic = [*value][-1] if key == "pip" else key
        if key == "base" and value.startswith("debian:"):
            topic = "debian"
        if key == "lock" and not value.endswith((".yml", ".yaml")):
            topic = "imported"
        comment = f"  # {comments[topic]}" if topic in comments else ""
        if key == "files":
            yield f"{key}:{comment}"
            yield from (f"  - {yaml_line(item)}" for item in value)
        else:
            yield f"{key}: {yaml_line(value)}{comment}"


def yaml_line(value: Any) -> str:
    """Return a value as YAML on one line, with quotation marks where YAML needs them."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("...\n").strip()
