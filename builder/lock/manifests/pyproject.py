"""``pyproject.toml``: ``[project]`` and ``[dependency-groups]``, with the tables of uv."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.core.errors import ConfigError
from builder.core.model import MAIN
from builder.lock.config.merge import choices
from builder.lock.tomlfile import TomlFile, items, load_toml, strings, table

from .reader import ManifestReader, source_line


class PyProject:
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

    def read(self, reader: ManifestReader, groups: Sequence[str]) -> None:
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

    def read_python(self, reader: ManifestReader) -> None:
        text = str(self._project.get("requires-python", ""))
        reader.python(text, self._file.where(text) if text else str(self._file.path))

    def read_main(self, reader: ManifestReader) -> None:
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

    def read_group(self, reader: ManifestReader, group: str) -> None:
        """Add the requirements of an extra or a dependency group."""
        if group not in self.groups:
            problem = f"{self._file.path}: no extra and no dependency group {group!r}"
            raise ConfigError(problem, choices(group, [MAIN, *self.groups]))
        members = group_members(self._groups, group)
        for text in (*strings(self._extras.get(group)), *members):
            self._read(reader, text)

    def _read(self, reader: ManifestReader, text: str) -> None:
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
        lines = [line for source in sources if (line := source_line(requirement, source))]
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
