"""Files of other tools as environment files: ``pyproject.toml``, ``pixi.toml``, requirements files.

Their content is translated into that of an environment file, so that all formats have the same
rules and messages: conda specs, and lines of a pip section::

    pyproject.toml                             conda                 pip
    requires-python = ">=3.11"                 python >=3.11         .
    dependencies = ["flask>=3"]                pip                   flask>=3
    [tool.uv.sources]
    torch = {index = "pytorch"}                                      --extra-index-url https://...

A project whose dependencies only its build backend knows (``setup.py``, ``[tool.poetry]``,
``dynamic``) is the line ``.``: its wheel is built in the image, and names them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.core.errors import ConfigError
from builder.core.model import MAIN
from builder.formats.net.pipconfig import PYPI

from .config.merge import choices
from .pipsection import PipSection, plain_value
from .spec import Environment, Spec
from .tomlfile import TomlFile, items, load_toml, strings, table

#: The channel of files that name none.
CHANNEL = "conda-forge"
_REQUIREMENTS = (".txt", ".in")
_SETUP = "setup.py"
#: Targets of pixi's tables that are Linux, the general ones first; the last one is the platform.
_PIXI_TARGETS = ("unix", "linux")
_PYTHON_VERSION = re.compile(r"(?:cpython-|python-)?(3\.\d+)(\.\d+)?")
#: Characters of ``.python-version`` that are read.
_PYTHON_VERSION_CHARS = 100


def is_manifest(path: Path) -> bool:
    """Return whether a file is one that :func:`read_manifest` reads, by its name."""
    return path.name in ("pyproject.toml", "pixi.toml", _SETUP) or path.suffix in _REQUIREMENTS


def read_manifest(
    path: Path,
    platform: str,
    root: Path | None = None,
    *,
    groups: Sequence[str] = (),
    environment: str | None = None,
) -> Environment:
    """Read a file of another tool as an environment file.

    Args:
        path: ``pyproject.toml``, ``pixi.toml``, ``setup.py``, or a requirements file (``*.txt``,
            ``*.in``).
        platform: with conda's name.
        root: the project folder, in which requirements files may be; None: the folder of the file.
        groups: dependency groups and extras of a ``pyproject.toml``; ``main`` stands for
            the dependencies without a group. Empty: ``main``.
        environment: the environment of a pixi project; None: ``default``.

    Raises:
        ConfigError: the file is not valid, has no such group or environment, or an entry that
            cannot be locked. The message names file and line.
    """
    reader = _ManifestReader(path, PipSection(path, root or path.parent))
    if path.suffix in _REQUIREMENTS:
        _refuse_groups(path, groups)
        reader.pip(f"-r {path.name}", str(path))
        return reader.environment()
    if path.name == _SETUP:
        reader.own_code(groups, str(path))
        return reader.environment()
    file = load_toml(path)
    pixi = table(file.data, "tool", "pixi") if path.name == "pyproject.toml" else file.data
    project = _Project(file) if path.name == "pyproject.toml" else None
    if pixi:
        _refuse_groups(path, groups)
        _Pixi(file, pixi, platform, project).read(reader, environment)
    elif project is not None:
        project.read(reader, groups)
    return reader.environment()


def _refuse_groups(path: Path, groups: Sequence[str]) -> None:
    named = [group for group in groups if group != MAIN]
    if named:
        raise ConfigError(
            f"{path}: the file has no groups, and the recipe names {', '.join(named)}",
            "remove 'groups:' from the recipe; "
            "lock_environment: NAME chooses an environment of pixi",
        )


class _ManifestReader:
    """Collects the entries of a file."""

    def __init__(self, path: Path, section: PipSection) -> None:
        self.path = path
        self.channels: list[str] = []
        self._conda: dict[str, Spec] = {}
        self._section = section

    def conda(self, text: str, name: str, where: str) -> None:
        text = plain_value(text, where)
        self._conda.setdefault(text, Spec(text, name.lower(), where))

    def pip(self, text: str, where: str) -> None:
        self._section.read(text, where)

    def own_code(self, groups: Sequence[str], where: str) -> None:
        """Add the project itself with extras: pip's ``.[EXTRA]``."""
        extras = ",".join(group for group in groups if group != MAIN)
        self.pip(f".[{extras}]" if extras else ".", where)

    def index(self, url: Any) -> None:
        """Add a package index without its last slash. PyPI needs no option."""
        text = str(url or "").rstrip("/")
        if text not in ("", PYPI):
            self._section.extra_indexes.append(plain_value(text, f"{self.path}: index"))

    def python(self, specifier: str, where: str) -> None:
        """Add the version of Python: ``requires-python``, and that of ``.python-version``."""
        self.conda(f"python {conda_version(specifier)}".strip(), "python", where)
        version = pinned_python(self.path.parent)
        if version:
            self.conda(f"python={version}", "python", f"{self.path.parent / '.python-version'}:1")

    def environment(self) -> Environment:
        if not any(spec.name == "python" for spec in self._conda.values()):
            self.python("", str(self.path))
        if not any(spec.name == "pip" for spec in self._conda.values()):
            self.conda("pip", "pip", str(self.path))
        named = [channel for channel in self.channels if channel != "nodefaults"]
        channels = [plain_value(channel, f"{self.path}: channels") for channel in named]
        return self._section.environment(channels or [CHANNEL], tuple(self._conda.values()))


def conda_version(specifier: str) -> str:
    """Return a version specifier of PEP 440 as conda writes it; empty accepts any."""
    parts = specifier.replace(" ", "").replace("===", "==").split(",")
    return ",".join(
        part.removeprefix("==") if part.endswith(".*") else part
        for part in parts
        if part.strip("*")
    )


def pinned_python(folder: Path) -> str:
    """Return the version in ``.python-version`` of a folder (``3.11``); empty if there is none."""
    path = folder / ".python-version"
    if not path.is_file():
        return ""
    with path.open(errors="replace") as file:
        line = file.read(_PYTHON_VERSION_CHARS).strip()
    match = _PYTHON_VERSION.fullmatch(line)
    return match[1] + (match[2] or "") if match else ""


class _Project:
    """``[project]`` of a ``pyproject.toml``, with the tables of uv."""

    def __init__(self, file: TomlFile) -> None:
        self._file = file
        self._project = table(file.data, "project")
        self._extras = table(self._project.get("optional-dependencies"))
        self._groups = table(file.data, "dependency-groups")
        uv = table(file.data, "tool", "uv")
        self._sources = {canonicalize_name(k): v for k, v in table(uv.get("sources")).items()}
        self._indexes = [table(entry) for entry in items(uv.get("index"))]
        self._urls = {str(one["name"]): one.get("url") for one in self._indexes if one.get("name")}

    @property
    def groups(self) -> list[str]:
        """The names of extras and dependency groups."""
        return [*self._extras, *self._groups]

    def read(self, reader: _ManifestReader, groups: Sequence[str]) -> None:
        self.read_python(reader)
        extras = self._of_backend(groups)
        for group in groups or (MAIN,):
            if group == MAIN and group not in self.groups:
                self.read_main(reader)
                if builds_package(self._file):  # uv sync installs it too
                    reader.own_code(extras, self._file.where("build-system"))
            elif group not in extras:
                self.read_group(reader, group)
        for entry in self._indexes:
            if not entry.get("explicit"):
                reader.index(entry.get("url"))

    def read_python(self, reader: _ManifestReader) -> None:
        text = str(self._project.get("requires-python", ""))
        reader.python(text, self._file.where(text) if text else str(self._file.path))

    def read_main(self, reader: _ManifestReader) -> None:
        """Add the project's dependencies, unless only its build backend knows them."""
        if self._is_dynamic("dependencies") and not builds_package(self._file):
            raise ConfigError(
                f"{self._file.path}: no [project] with dependencies, "
                "and no package that a build could ask",
                "name a file that lists them: environment: requirements.txt; poetry writes it: "
                "poetry export --without-hashes -o requirements.txt",
            )
        for text in strings(self._project.get("dependencies")):
            self._read(reader, text)

    def _is_dynamic(self, key: str) -> bool:
        """Return whether only the build backend knows a key of ``[project]``."""
        return not self._project or key in strings(self._project.get("dynamic"))

    def _of_backend(self, groups: Sequence[str]) -> list[str]:
        """Return those of the groups that are extras which only the build backend knows."""
        if MAIN not in groups or not self._is_dynamic("optional-dependencies"):
            return []
        return [group for group in groups if group not in (MAIN, *self.groups)]

    def read_group(self, reader: _ManifestReader, group: str) -> None:
        """Add the requirements of an extra or a dependency group."""
        if group not in self.groups:
            problem = f"{self._file.path}: no extra and no dependency group {group!r}"
            raise ConfigError(problem, choices(group, [MAIN, *self.groups]))
        members = group_members(self._groups, group)
        for text in (*strings(self._extras.get(group)), *members):
            self._read(reader, text)

    def _read(self, reader: _ManifestReader, text: str) -> None:
        """Add a requirement, with its source in ``[tool.uv.sources]``."""
        where = self._file.where(text)
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):
            reader.pip(text, where)  # its error names the problem
            return
        own = canonicalize_name(str(self._project.get("name", "")))
        if canonicalize_name(requirement.name) == own:
            for extra in sorted(requirement.extras):  # an extra of the project that names others
                self.read_group(reader, extra)
            return
        sources = self._sources_of(requirement.name, where)
        for source in sources:
            reader.index(self._urls.get(str(source.get("index", ""))))
        lines = [line for source in sources if (line := _source_line(requirement, source))]
        for line in lines or [text]:
            reader.pip(line, where)

    def _sources_of(self, name: str, where: str) -> list[dict[str, Any]]:
        """Return the entries of ``[tool.uv.sources]`` for a package."""
        value = self._sources.get(canonicalize_name(name))
        sources = [table(source) for source in (value if isinstance(value, list) else [value])]
        if any(source.get("workspace") for source in sources):
            return [{"path": self._member(name, where), "editable": True}]
        return sources

    def _member(self, name: str, where: str) -> str:
        """Return the folder of a member of uv's workspace, relative to the file.

        Raises:
            ConfigError: no folder above the file is a workspace with such a member.
        """
        folder = self._file.path.absolute().parent
        for root in (folder, *folder.parents):
            pyproject = root / "pyproject.toml"
            data = load_toml(pyproject).data if pyproject.is_file() else {}
            patterns = strings(table(data, "tool", "uv", "workspace").get("members"))
            for path in (p for glob in patterns for p in root.glob(f"./{glob}/pyproject.toml")):
                project = table(load_toml(path).data, "project")
                if canonicalize_name(str(project.get("name", ""))) == canonicalize_name(name):
                    return os.path.relpath(path.parent, folder)
        hint = "clone the whole repository, and run builder in it"
        raise ConfigError(f"{where}: {name} is of a workspace, and no folder above has it", hint)


def builds_package(file: TomlFile) -> bool:
    """Return whether a ``pyproject.toml`` describes a package that uv, poetry and pip install."""
    tool = table(file.data, "tool")
    settings = (table(tool, "uv").get("package"), table(tool, "poetry").get("package-mode"))
    return bool(file.data.get("build-system")) and False not in settings


def group_members(groups: Mapping[str, Any], name: str) -> list[str]:
    """Return the requirements of a dependency group and of those that it includes (PEP 735).

    Args:
        groups: the table ``[dependency-groups]``.
        name: the group; one that does not exist has no requirements.
    """
    found: list[str] = []
    seen: set[str] = set()

    def read(group: str) -> None:
        if group in seen:
            return
        seen.add(group)
        for item in items(groups.get(group)):
            if isinstance(item, str):
                found.append(item)
            elif include := table(item).get("include-group"):
                read(str(include))

    read(name)
    return found


def _source_line(requirement: Requirement, source: Mapping[str, Any]) -> str:
    """Return the line of a pip section for an entry of ``[tool.uv.sources]``.

    Empty for an entry that names an index only.
    """
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = source.get("marker") or requirement.marker
    tail = f" ; {marker}" if marker else ""
    if url := _git_url(source) if source.get("git") else source.get("url"):
        return f"{requirement.name}{extras} @ {url}{tail}"
    if source.get("path"):
        path = str(source["path"])
        local = path if path.startswith(("/", ".")) else f"./{path}"
        return f"-e {local}{extras}" if source.get("editable") else f"{local}{extras}"
    return ""


def _git_url(source: Mapping[str, Any]) -> str:
    """Return the URL of a repository, with revision and folder, as pip has it."""
    revision = source.get("rev") or source.get("tag") or source.get("branch")
    at = f"@{revision}" if revision else ""
    folder = f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
    return f"git+{source['git']}{at}{folder}"


@dataclass(frozen=True)
class _Pixi:
    """A pixi project: ``pixi.toml``, or ``[tool.pixi]`` of a ``pyproject.toml``."""

    file: TomlFile
    pixi: Mapping[str, Any]
    platform: str
    project: _Project | None

    def read(self, reader: _ManifestReader, name: str | None) -> None:
        workspace = table(self.pixi.get("workspace", self.pixi.get("project")))
        features, has_default = self._environment(name or "default")
        tables = [table(self.pixi, "feature", feature) for feature in features]
        for one in (*tables, workspace):
            reader.channels += map(_channel, items(one.get("channels")))
        if has_default:
            tables.insert(0, dict(self.pixi))
        for part in chain.from_iterable(map(self._parts, tables)):
            self._read_table(reader, part)
        if self.project is not None:
            self.project.read_python(reader)
            if has_default:
                self.project.read_main(reader)
            for group in (name for name in features if name in self.project.groups):
                self.project.read_group(reader, group)

    def _environment(self, name: str) -> tuple[list[str], bool]:
        """Return the features of an environment, and whether it has the default one too."""
        environments = table(self.pixi.get("environments"))
        if name not in environments:
            if name == "default":
                return [], True
            known = ["default", *environments]
            raise ConfigError(f"{self.file.path}: no environment {name!r}", choices(name, known))
        entry = environments[name]
        features = strings(entry if isinstance(entry, list) else table(entry).get("features"))
        return features, not table(entry).get("no-default-feature", False)

    def _parts(self, one: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield a table, and its parts for the platform."""
        yield one
        for target in (*_PIXI_TARGETS, self.platform):
            yield table(one, "target", target)

    def _read_table(self, reader: _ManifestReader, part: Mapping[str, Any]) -> None:
        for name, value in table(part.get("dependencies")).items():
            reader.conda(pixi_spec(str(name), value), str(name), self.file.where(str(name)))
        for name, value in table(part.get("pypi-dependencies")).items():
            entry = value if isinstance(value, dict) else {"version": value}
            reader.pip(_pypi_line(str(name), entry), self.file.where(str(name)))
            reader.index(entry.get("index"))
        for url in strings(table(part.get("pypi-options")).get("extra-index-urls")):
            reader.index(url)


def _channel(value: Any) -> str:
    return str(table(value).get("channel", "")) or str(value)


def pixi_spec(name: str, value: Any) -> str:
    """Return a conda spec from pixi's ``"VERSION"`` or ``{version, build, channel}``."""
    entry = value if isinstance(value, dict) else {"version": value}
    version, build = (str(entry.get(key, "*")) for key in ("version", "build"))
    channel = f"{entry['channel']}::" if entry.get("channel") else ""
    words = [channel + name, *([] if version == build == "*" else [version.replace(" ", "")])]
    return " ".join(words if build == "*" else [*words, build])


def _pypi_line(name: str, entry: Mapping[str, Any]) -> str:
    """Return the line of a pip section for an entry of ``[pypi-dependencies]``."""
    extras = strings(entry.get("extras"))
    bare = name + (f"[{','.join(extras)}]" if extras else "")
    try:
        line = _source_line(Requirement(bare), entry)
    except InvalidRequirement:
        line = ""
    version = str(entry.get("version", "*"))
    return line or bare + ("" if version == "*" else version)
