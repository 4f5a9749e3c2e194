"""Reads conda environment files: channels, conda specs with selectors, and the pip section.

The selectors (``# [linux]``) are those of conda-lock, and as in conda-lock a pip section implies
the conda package ``pip``. conda-lock's own parser takes half a second to import and reports no line
numbers, so builder has its own; the tests compare the two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.core.redact import redact

from .condaspec import conda_spec_hint, conda_spec_name
from .config.yamlfile import Key, YamlFile, parse_yaml, read_text
from .othertools import other_file
from .pipsection import PipSection, plain_value
from .spec import Environment, Spec

#: conda-lock's pattern of a line with a selector, in linear time.
_SELECTOR = re.compile(r"(?>.+?\s#)(?>.*\[([^\[\]]+)\])[^()]*$")


def read_environment(path: Path, platform: str, root: Path | None = None) -> Environment:
    """Read an environment file for one platform (``linux-64``).

    Args:
        path: the file.
        platform: with conda's name.
        root: the project folder, in which requirements files may be; None: the folder of the file.

    Raises:
        ConfigError: the file is missing, is not YAML, or contains something that cannot be locked.
            The message names file and line.
    """
    text = read_text(path, "environment file", "check 'environment:' in the recipe")
    refused = _of_other_tool(path, text)
    try:
        file = parse_yaml(path, "\n".join(_selected(path, text, platform)))
    except ConfigError as e:
        raise refused or e from None
    if refused and ("dependencies" not in file.data or "build_dependencies" in file.data):
        raise refused
    return _EnvironmentReader(file, root or path.parent).read(platform)


def read_any_environment(
    path: Path,
    platform: str,
    root: Path,
    groups: Sequence[str] = (),
    environment: str | None = None,
) -> Environment:
    """Return the content of an environment file in any format: conda's, or that of another tool.

    Raises:
        ConfigError: see :func:`read_environment` and :func:`builder.lock.manifests.read_manifest`.
    """
    if path.suffix not in (".yml", ".yaml"):
        from .manifests import is_manifest, read_manifest

        if is_manifest(path):
            return read_manifest(path, platform, root, groups=groups, environment=environment)
    return read_environment(path, platform, root)


def _of_other_tool(path: Path, text: str) -> ConfigError | None:
    """Return the error for a file that another tool reads or writes; None for others."""
    found = other_file(path, text)
    if found is None or found.what == "an environment file":
        return None
    problem = f"{path}: this is {found.what}, and 'environment:' names a conda environment file"
    return ConfigError(problem, found.hint)


def _selected(path: Path, text: str, platform: str) -> Iterator[str]:
    """Yield the lines for a platform; empty ones for the others, so that line numbers stay."""
    for number, line in enumerate(text.splitlines(), 1):
        match = None if line.lstrip().startswith("#") else _SELECTOR.match(line)
        if match is None:
            yield line
            continue
        selector, selectors = match[1].strip(), table(__file__, "selectors.yaml")
        known = sorted(set(chain(*selectors.values())))
        if selector not in known:
            raise ConfigError(
                f"{path}:{number}: unknown selector [{selector}]",
                f"known selectors: {', '.join(known)}; write other comments without brackets",
            )
        yield line if selector in selectors[platform] else ""


class _EnvironmentReader:
    """Reads the keys of one file."""

    def __init__(self, file: YamlFile, root: Path) -> None:
        self._file = file
        self._conda: list[Spec] = []
        self._pip = PipSection(file.path, root)

    def read(self, platform: str) -> Environment:
        self._check_keys()
        if any("<<" in keys for keys in self._file.lines):
            raise ConfigError(f"{self._file.path}: a key is <<", "write its KEY: VALUE lines")
        platforms = self._strings("platforms")
        if platforms and platform not in platforms:
            hint = f"add '- {platform}', or remove platforms:"
            raise self._error(f"platforms: does not list {platform}", hint, "platforms")
        self._read_dependencies(self._file.data.get("dependencies"))
        found = self._pip
        found.extra_index_urls += self._strings("pip-repositories")
        found.channels = [name for name in self._strings("channels") if name != "nodefaults"]
        found.name, found.variables = self._file.texts.get(("name",), ""), self._variables()
        found.conda = _unique(self._conda)
        return found.environment()

    def _variables(self) -> dict[str, str]:
        names = self._file.data.get("variables") or {}
        if not isinstance(names, dict):
            hint = "write NAME: VALUE lines below it"
            raise self._error("variables: must be a table", hint, "variables")
        return {str(name): self._text("variables", name) for name in names}

    def _check_keys(self) -> None:
        """Refuse keys with an error in them, and values that builder does not follow.

        conda warns of other unknown keys, and ignores them.
        """
        known = table(__file__, "environment_keys.yaml")
        for key, value in self._file.data.items():
            near = difflib.get_close_matches(str(key).lower(), known, n=1, cutoff=0.7)
            if key not in known and near:
                raise self._error(f"unknown key {key!r}", f"did you mean '{near[0]}:'?", key)
            if (rule := known.get(key)) and value not in rule["values"]:
                raise self._error(f"{key}: builder does not support this", rule["hint"], key)

    def _read_dependencies(self, items: Any) -> None:
        if not isinstance(items, list):
            hint = "write '- PACKAGE' or '- PACKAGE=VERSION' lines below it"
            raise self._error("dependencies: must be a list", hint, "dependencies")
        for number, item in enumerate(items):
            keys: tuple[Key, ...] = ("dependencies", number)
            if isinstance(item, dict):
                for name in item:
                    self._read_section(item[name], *keys, str(name))
            else:
                self._read_conda_spec(*keys)

    def _read_section(self, value: Any, *keys: Key) -> None:
        if keys[-1] != "pip":
            hint = "dependencies: may contain the section 'pip:' only"
            if version := self._file.texts.get(keys):
                hint = f"write '- {keys[-1]}={version}', or '- {version}  # [linux]' for sel(linux)"
            raise self._error(f"unknown section {keys[-1]!r}", hint, *keys)
        if value:
            self._conda.append(Spec("pip", "pip", self._file.where(*keys)))
        for text, where in self._items(value, *keys):
            self._pip.read(text, where)

    def _read_conda_spec(self, *keys: Key) -> None:
        text = " ".join(self._text(*keys).split())
        name = conda_spec_name(text)
        if not name:
            raise self._error(f"{redact(text)!r} is not a conda spec", conda_spec_hint(text), *keys)
        self._conda.append(Spec(text, name, self._file.where(*keys)))

    def _strings(self, key: str) -> list[str]:
        return [text for text, _ in self._items(self._file.data.get(key), key)]

    def _items(self, value: Any, *keys: Key) -> list[tuple[str, str]]:
        """Return the texts of a list, each with ``FILE:LINE``; nothing for a missing key."""
        if value is not None and not isinstance(value, list):
            hint = f"write {keys[-1]}: [{redact(self._file.texts.get(keys, 'ITEM'))}]"
            raise self._error(f"{keys[-1]}: must be a list", hint, *keys)
        paths = [(*keys, number) for number in range(len(value or ()))]
        return [(self._text(*path), self._file.where(*path)) for path in paths]

    def _text(self, *keys: Key) -> str:
        """Return a scalar as it is written: 3.10 is no number."""
        key = next(key for key in reversed(keys) if isinstance(key, str))
        text = self._file.texts.get(keys, "")
        if not text.strip():
            hint = "write '- ITEM', with quotation marks where needed"
            raise self._error(f"{key}: an item is not text", hint, *keys)
        return plain_value(text, f"{self._file.where(*keys)}: {key}")

    def _error(self, message: str, hint: str, *keys: Key) -> ConfigError:
        return ConfigError(f"{self._file.where(*keys)}: {message}", hint)


def _unique(specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs without repetitions, each at the position of its last occurrence.

    A ``pip`` with a version replaces the plain ``pip`` that a pip section implies.
    """
    if any(spec.name == "pip" and spec.text != "pip" for spec in specs):
        specs = [spec for spec in specs if spec.text != "pip"]
    found: dict[str, Spec] = {}
    for spec in specs:
        found[spec.text] = found.pop(spec.text, spec)
    return list(found.values())
