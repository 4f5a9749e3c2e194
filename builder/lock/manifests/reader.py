"""Collects the entries of a file of another tool: conda specs, and lines of a pip section.

Keys that builder would drop are refused; ``keys.yaml`` has one rule per key.

| rule | meaning |
|---|---|
| ``read`` | builder reads the key |
| ``uv`` | uv reads it: the value is copied into the settings of uv (:func:`settings_of_uv`) |
| ``build`` | it concerns wheels that are built: an error if the recipe has no settings for one |
| ``build packages`` | the same, for those of the packages that it lists |
| ``same`` | it cannot change what is locked |
| ``refuse`` | an error; text after a colon is the hint |
| a list | these values are read, others are refused |
| a table | the rules of a table, or of the tables in a list |

``"*"`` is the rule of all names that have none. A key without a rule is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.core.model import MAIN
from builder.formats.net.pipconfig import PYPI
from builder.lock.config.yamlfile import read_text
from builder.lock.pipsection import PipSection, check_url, plain_value, requirement_lines
from builder.lock.spec import Environment, IndexPin, Spec
from builder.lock.tomlfile import TomlFile

Rules = Mapping[str, Any]


def rules_of(tool: str) -> Rules:
    """Return the rules of a tool's keys: ``hint``, and ``keys``."""
    return dict(table(__file__, "keys.yaml")[tool])


def check_keys(file: TomlFile, data: Mapping[str, Any], tool: str, *at: str) -> None:
    """Refuse the keys of a table that builder would drop.

    Args:
        file: the file, for the message.
        data: the table, or one below it.
        tool: whose table it is.
        at: the keys that lead from the tool's table to this one.

    Raises:
        ConfigError: a key is not known, or has a value that changes what is locked in a way that
            builder does not follow. The message names file, line and key.
    """
    rules = rules_of(tool)
    keys = rules["keys"]
    for key in at:
        keys = keys.get(key, keys.get("*", {}))
    _check(file, data, keys, ".".join((rules["table"], *at)).strip("."), rules["hint"])


def _check(file: TomlFile, data: Mapping[str, Any], rules: Rules, at: str, hint: str) -> None:
    for key, value in data.items():
        rule = rules.get(key, rules.get("*", "refuse"))
        name = f"{at}.{key}".strip(".")
        if isinstance(rule, dict):
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, dict):
                    _check(file, entry, rule, name, hint)
        elif str(rule).startswith("refuse") or (isinstance(rule, list) and value not in rule):
            raise refused(file, name, str(rule).partition(": ")[2] or hint)


def refused(file: TomlFile, key: str, hint: str) -> ConfigError:
    """Return the error for a key that builder does not follow."""
    where = file.where(key.rpartition(".")[2])
    return ConfigError(f"{where}: {key}: builder does not support this key", hint)


def settings_of_uv(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in ``[tool.uv]`` that uv itself reads, and those of builds."""
    keys = rules_of("uv")["keys"]
    return {key: v for key, v in data.items() if str(keys.get(key)).startswith(("uv", "build"))}


def build_settings(settings: Mapping[str, Any], name: str) -> list[str]:
    """Return the keys among uv's settings that change how a package is built."""
    keys = rules_of("uv")["keys"]
    of_all = [key for key, value in settings.items() if keys.get(key) == "build" and value]
    of_some = [key for key in settings if keys.get(key) == "build packages"]
    return of_all + [
        key for key in of_some if name in [str(canonicalize_name(one)) for one in settings[key]]
    ]


#: The channel of files that name none.
CHANNEL = "conda-forge"
#: ``3``, ``3.12``, ``cpython@3.12.4``, ``3.13t``, ``3.13+freethreaded``, ``cpython-3.12.4-linux-...``
_PYTHON_VERSION = re.compile(
    r"(?:c?python)?[-@]?(3(?:\.\d+)?)(\.\d+)?(t|\+freethreaded)?(?:-linux.*)?"
)
#: ``>=3.11,<3.13``, ``cpython>=3.11``
_PYTHON_SPECIFIER = re.compile(r"(?:c?python)?\s*([<>=!~][\d.,<>=!~* ]+)")


class ManifestReader(PipSection):
    """Collects the entries of a file."""

    def __init__(self, path: Path, root: Path) -> None:
        super().__init__(path, root)
        self._entered: set[tuple[object, ...]] = set()

    def add_conda(self, text: str, name: str, where: str) -> None:
        """Add a conda spec, unless there is the same."""
        text = plain_value(text, where)
        if all(spec.text != text for spec in self.conda):
            self.conda.append(Spec(text, name.lower(), where))

    def own_code(self, groups: Sequence[str], where: str, marker: Marker | None = None) -> None:
        """Add the project itself with extras: pip's ``.[EXTRA] ; MARKER``."""
        extras = ",".join(group for group in groups if group != MAIN)
        tail = f" ; {marker}" if marker else ""
        self.read((f".[{extras}]" if extras else ".") + tail, where)

    def option(self, option: str, values: Any, file: TomlFile) -> None:
        """Add an option of pip with each of some values; ``true`` stands for all packages.

        A project with indexes of its own takes each package from the first index that has it, as
        uv does by default. PyPI is the main index anyway.
        """
        for entry in values if isinstance(values, list) else [values]:
            value = entry.get("url", entry.get("path")) if isinstance(entry, dict) else entry
            text = ":all:" if value is True else str(value or "").rstrip("/")
            if not text or (text == PYPI and option == "--index-url"):
                continue
            if option.endswith("index-url"):
                self.uv.setdefault("index-strategy", "first-index")
            self.read(f"{option} {shlex.quote(text)}", file.where(str(value)), (file.path,))

    def options(self, tool: str, data: Mapping[str, Any], file: TomlFile) -> None:
        """Add the settings of a tool that are options of pip, too."""
        for key, option in rules_of(tool)["options"].items():
            self.option(option, data.get(key), file)

    def enter(self, *key: object) -> bool:
        """Return whether a part of a file is read for the first time."""
        is_new = key not in self._entered
        self._entered.add(key)
        return is_new

    def pin(self, name: str, url: Any, where: str, marker: object = None) -> None:
        """Add an index that alone may have a package; one without URL is an error."""
        if not url:
            problem = f"{where}: the index of {name} has no URL"
            raise ConfigError(problem, "add it: [[tool.uv.index]] with name and url")
        text = plain_value(str(url).rstrip("/"), where)
        check_url(text, where)
        self.pins.append(IndexPin(canonicalize_name(name), text, str(marker or "")))

    def python(self, specifier: str, where: str, *folders: Path) -> None:
        """Add the version of Python: ``requires-python``, and that of ``.python-version``.

        Args:
            specifier: of PEP 440; empty accepts any.
            where: ``FILE:LINE``.
            folders: those that may have the file; the first counts.
        """
        self.add_conda(f"python {conda_version(specifier)}".strip(), "python", where)
        if pinned := next(filter(None, map(pinned_python, folders)), None):
            self.add_conda(pinned.text, pinned.name, pinned.where)

    def environment(self) -> Environment:
        """Return the environment of all entries, with a Python, pip and a channel."""
        if not any(spec.name == "python" for spec in self.conda):
            self.python("", str(self.path), self.path.parent)
        if not any(spec.name == "pip" for spec in self.conda):
            self.add_conda("pip", "pip", str(self.path))
        named = [channel for channel in self.channels if channel != "nodefaults"]
        where = f"{self.path}: channels"
        self.channels = [plain_value(channel, where) for channel in named or [CHANNEL]]
        return super().environment()


def conda_version(specifier: str) -> str:
    """Return a version specifier of PEP 440 as conda writes it; empty accepts any."""
    parts = specifier.replace(" ", "").replace("===", "==").split(",")
    return ",".join(
        part.removeprefix("==") if part.endswith(".*") else part
        for part in parts
        if part.strip("*")
    )


def pinned_python(folder: Path) -> Spec | None:
    """Return the version in ``.python-version`` of a folder as a conda spec; None without a file.

    As with uv and pyenv the first line that is no comment counts.

    Raises:
        ConfigError: it is no version of CPython.
    """
    names = (".python-version", ".python-versions")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        return None
    for number, text in requirement_lines(read_text(path)):
        where = f"{path}:{number}"
        if match := _PYTHON_VERSION.fullmatch(text):
            version = match[1] + (match[2] or "")
            free_threaded = f"python {version}.* *_cp{match[1].replace('.', '')}t"
            return Spec(free_threaded if match[3] else f"python={version}", "python", where)
        if match := _PYTHON_SPECIFIER.fullmatch(text):
            return Spec(f"python {conda_version(match[1])}", "python", where)
        hint = "write a version of CPython, such as 3.12"
        raise ConfigError(f"{where}: {text[:80]!r} is no version of CPython", hint)
    return None


def both(first: Marker | None, second: Marker | None) -> Marker | None:
    """Return the marker of what two markers apply to; None: always."""
    return first & second if first and second else first or second


def source_line(requirement: Requirement, source: Mapping[str, Any]) -> str:
    """Return the line of a pip section for a source of uv or pixi; empty for one without a place.

    Args:
        requirement: the name, extras and marker; it gets the URL of the source in place of versions.
        source: ``git``, ``url`` or ``path``, and what belongs to it.
    """
    folder, url = source.get("subdirectory"), source.get("url")
    option = "-e " if source.get("path") and source.get("editable") else ""
    if source.get("path"):
        url = f"file:{quote(str(source['path']))}"
    elif source.get("git"):
        revision = source.get("rev") or source.get("tag") or source.get("branch")
        url = f"git+{source['git']}" + (f"@{revision}" if revision else "")
    if not url:
        return ""
    requirement.url = f"{url}#subdirectory={folder}" if folder else url
    requirement.specifier = SpecifierSet()
    return option + str(requirement)
