"""YAML files that remember the line of each key, so that error messages can name it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.core.store.reading import Reader

from .safeyaml import compose, load

Key = str | int
_CONFLICT = re.compile(r"^<{7} ", re.MULTILINE)
#: Bytes of a recipe or an environment file. Those of the largest sites have 10 kB.
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class YamlFile:
    """A parsed YAML mapping with the line number of every key."""

    path: Path
    data: dict[str, Any]
    lines: dict[tuple[Key, ...], int] = field(default_factory=dict)
    """Path of keys and list indexes -> line, counted from 1. The empty path is the document
    itself.
    """
    texts: dict[tuple[Key, ...], str] = field(default_factory=dict)
    """Path of keys and list indexes -> the text of a scalar as it is in the file."""

    def where(self, *keys: Key) -> str:
        """Return ``file:line`` of a key, or of its nearest parent that the file contains."""
        at = tuple(keys)
        while at and at not in self.lines:
            at = at[:-1]
        return f"{self.path}:{self.lines[at]}" if at in self.lines else str(self.path)

    def collect(self, node: yaml.Node, at: tuple[Key, ...] = ()) -> None:
        """Add the lines of a node and of everything below it, and the texts of scalars.

        Raises:
            ConfigError: it contains a key twice, or one that is no scalar.
        """
        self.lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            self.texts[at] = str(node.value)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.collect(value, (*at, index))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    problem = f"{self.path}:{line}: a key is a list or mapping"
                    raise ConfigError(problem, "write it as KEY: VALUE lines")
                here = (*at, str(key.value))
                if here in self.lines:
                    twice = f"key {key.value!r} appears twice (first on line {self.lines[here]})"
                    raise ConfigError(f"{self.path}:{line}: {twice}", "remove one of them")
                self.lines[here] = line
                self.collect(value, here)


def place_of(path: Path, *keys: Key) -> str:
    """Return ``FILE:LINE: KEY`` for messages about a key of a file that was loaded before.

    Without a line where the key is in another file, or the file has changed since; the key alone
    for a recipe that is in no file (``Path()``).
    """
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    names = "".join(parts).removeprefix(".")
    if path == Path():
        return names
    try:
        return f"{load_yaml(path).where(*keys)}: {names}"
    except ConfigError:
        return f"{path}: {names}"


def load_yaml(path: Path) -> YamlFile:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, is not a mapping, or contains a key twice;
            the message names file and line.
    """
    return parse_yaml(path, read_text(path))


def parse_yaml(path: Path, text: str) -> YamlFile:
    """Return the YAML mapping of a file's text. Raises as :func:`load_yaml`."""
    try:
        node = compose(text)
        file = YamlFile(path, {})
        if node is not None:
            file.collect(node)
        data = load(text)
    except yaml.YAMLError as e:
        raise not_yaml(path, e, text) from None
    if not isinstance(data, dict):
        problem = f"{path}: is {type_name(data)}, not a mapping of keys"
        raise ConfigError(problem, "write it as KEY: VALUE lines")
    return replace(file, data=data)


def type_name(value: object) -> str:
    """Return what a value of YAML is, in words."""
    kind = type(value).__name__
    return str(table(__file__, "type_names.yaml").get(kind, f"a {kind}"))


def read_text(path: Path, what: str = "file", hint: str = "check the path") -> str:
    """Return the content of a text file.

    Args:
        path: the file.
        what: the word for a missing file in the message.
        hint: the hint for a missing file.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    convert = f"iconv -f WINDOWS-1252 -t UTF-8 '{path}' > NEW"
    correct = f"write a UTF-8 text file ({convert}); split a large one, comments count too"
    return Reader(ConfigError, correct, MAX_BYTES, what, marked=True).text(path, hint)


def not_yaml(path: Path, error: yaml.YAMLError, text: str) -> ConfigError:
    """Return the error for a file that is not valid YAML, with the line where parsing failed."""
    conflict = _CONFLICT.search(text)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        hint = "resolve the conflict: edit the file, or git checkout"
        return ConfigError(f"{path}:{line}: a conflict marker of git", hint)
    mark = getattr(error, "problem_mark", None)
    at = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = str(getattr(error, "problem", None) or error)
    lines = text.splitlines()
    line_text = lines[mark.line] if mark and mark.line < len(lines) else ""
    if line_text[: len(line_text) - len(line_text.lstrip())].count("\t"):
        return ConfigError(f"{at}: not valid YAML: a tab", "YAML takes no tabs: indent with spaces")
    return ConfigError(
        f"{at}: not valid YAML: {problem}",
        "check the indentation on that line; put values with ': ' or a special character into quotes",
    )
