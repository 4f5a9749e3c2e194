"""YAML files that remember the line of each key, so that an error can name it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from builder.errors import ConfigError

Key = str | int


@dataclass(frozen=True)
class YamlFile:
    """A parsed mapping and where its keys stand."""

    path: Path
    data: dict[str, Any]
    lines: dict[tuple[Key, ...], int] = field(default_factory=dict)

    def where(self, *keys: Key) -> str:
        """``file:line`` of a key, or of its nearest parent that the file holds."""
        at = tuple(keys)
        while at and at not in self.lines:
            at = at[:-1]
        return f"{self.path}:{self.lines[at]}" if at in self.lines else str(self.path)


def load_yaml(path: Path) -> YamlFile:
    """Reads a YAML mapping.

    Raises:
        ConfigError: no such file, not YAML, not a mapping, or a key twice; file and line are named.
    """
    text = read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[tuple[Key, ...], int] = {}
        if node is not None:
            _walk(path, node, (), lines)
        data = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise not_yaml(path, e) from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: holds {type(data).__name__}, not a mapping of keys", "write it as KEY: VALUE lines"
        )
    return YamlFile(path, data, lines)


def read_text(path: Path, what: str = "file", hint: str = "check the path") -> str:
    """A text file's content. Raises ConfigError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such {what}", hint) from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}", "it must be a UTF-8 text file") from None


def not_yaml(path: Path, error: yaml.YAMLError) -> ConfigError:
    """Says where a file stops to be YAML."""
    mark = getattr(error, "problem_mark", None)
    at = f"{path}:{mark.line + 1}" if mark else str(path)
    return ConfigError(
        f"{at}: not valid YAML: {getattr(error, 'problem', None) or error}",
        "check indentation and quotes there",
    )


def _walk(path: Path, node: yaml.Node, at: tuple[Key, ...], lines: dict[tuple[Key, ...], int]) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            line = key.start_mark.line + 1
            if here in lines:
                raise ConfigError(
                    f"{path}:{line}: key {key.value!r} stands twice (first on line {lines[here]})",
                    "keep one of them",
                )
            lines[here] = line
            _walk(path, value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _walk(path, value, (*at, i), lines)
