"""TOML files of other tools. The only reader of TOML: bounded in depth, and in the tables of a text.

Values of a wrong type are ignored.

tomli makes a table, and a tuple of all names before it, for each part of a dotted key, and
remembers each of them. So 120 kB are gigabytes of memory::

    a.a.a.a.a.a.a = 1          a table for each a
    [a]                        6 bytes of text, about 1 kB of memory

Each text is searched before it is parsed. Names in quotation marks have dots of their own, so
strings and comments become one letter first.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from builder.core.datafiles import read_beside
from builder.core.errors import ConfigError
from builder.formats.oci.documents import is_deeper
from builder.lock.config.yamlfile import read_text

#: Levels of tables and lists, and parts of a key. Lock files and projects have at most 8.
MAX_DEPTH = 100
#: Tables with a header, lists, and dots in keys and numbers. The ``uv.lock`` of 300 packages has 2,000.
MAX_TABLES = 200_000

# A string that is not closed ends with its line or with the text; tomli refuses it.
_OPAQUE = re.compile(read_beside(__file__, "opaque_toml.txt"), re.VERBOSE | re.DOTALL)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")


def loads(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    tomli reads TOML 1.1, as uv does: formatters break the tables of a ``uv.lock`` into lines.
    Python's own reader knows TOML 1.0 only.

    Raises:
        ValueError: it is no TOML, or exceeds a bound.
    """
    bare = _OPAQUE.sub("s", text)
    if bare.count("[") + bare.count(".") > MAX_TABLES:
        raise ValueError(f"more than {MAX_TABLES} tables, lists and parts of keys")
    if _LONG_KEY.search(bare):
        raise ValueError(f"a key has more than {MAX_DEPTH} parts")
    data: dict[str, Any] | None = None
    with contextlib.suppress(RecursionError):
        data = tomli.loads(text)
    if data is None or is_deeper(data, MAX_DEPTH):
        raise ValueError(f"tables and lists are more than {MAX_DEPTH} levels deep")
    return data


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
