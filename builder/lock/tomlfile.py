"""TOML files of other tools. Values of a wrong type are ignored."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.core.errors import ConfigError

from .config.safetoml import loads
from .config.yamlfile import read_text


@dataclass(frozen=True)
class TomlFile:
    """A parsed TOML file."""

    path: Path
    text: str
    data: dict[str, Any]

    def where(self, value: str) -> str:
        """Return ``FILE:LINE`` of the first line with a quoted text or key; else the file."""
        text, quoted = re.escape(value), re.escape(json.dumps(value))
        found = re.compile(rf"{quoted}|'{text}'|(?<![\w-]){text}(\s*=|\])")
        for number, line in enumerate(self.text.splitlines(), 1):
            if found.search(line):
                return f"{self.path}:{number}"
        return str(self.path)


def load_toml(path: Path) -> TomlFile:
    """Read a TOML file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML; the message names the line.
    """
    text = read_text(path)
    try:
        return TomlFile(path, text, loads(text))
    except ValueError as e:
        raise ConfigError(f"{path}: not valid TOML: {e}", "correct the file") from None


def table(value: Any, *keys: str) -> dict[str, Any]:
    """Return a table, or the one below it at these keys; empty for anything else."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a list; empty for anything else."""
    return value if isinstance(value, list) else []


def strings(value: Any) -> list[str]:
    """Return the texts of a list."""
    return [item for item in items(value) if isinstance(item, str)]
