"""``pyproject.toml``: ``[project]`` and ``[dependency-groups]``, with ``[tool.uv]``.

What uv reads by itself is copied into its settings; builder reads what it has to build itself::

    [tool.uv.sources]
    torch = {index = "cpu"}                                uv: torch is from this index alone
    tool = {git = "https://...", marker = "..."}           tool @ git+https://... ; MARKER
    [tool.uv]
    constraint-dependencies = ["numpy<2"]                  uv: the same setting
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

from packaging.dependency_groups import DependencyGroupInclude, DependencyGroupResolver
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.core.errors import ConfigError
from builder.core.markers import answers
from builder.core.model import MAIN
from builder.core.settings import is_trusted
from builder.lock.config.merge import choices
from builder.lock.spec import SourceSpec, Spec
from builder.lock.tomlfile import TomlFile, items, load_toml, strings, table

from .reader import ManifestReader, both, check_keys, refused, rules_of, settings_of_uv, source_line

#: The ``pyproject.toml`` with the settings of a uv workspace, and the folders of its projects by name.
Workspace = tuple[TomlFile, dict[str, Path]]


@dataclass
class PyProject:
    """``[project]`` of a ``pyproject.toml``, with the tables of uv.

    A member of a uv workspace has the settings, and where it has none itself the sources, of the
    workspace's root.
    """

    file: TomlFile
    platform: str
    reader: ManifestReader
    """Receives what the file requires."""
    workspace: InitVar[Workspace | None] = None
    """The one that it is in; None: it is looked for."""

    def __post_init__(self, workspace: Workspace | None) -> None:
        self._project = table(self.file.data, "project")
        self.name = canonicalize_name(str(self._project.get("name", "")))
        extras = table(self._project.get("optional-dependencies"))
        self._extras = {canonicalize_name(name): strings(v) for name, v in extras.items()}
        self._groups = dict(table(self.file.data, "dependency-groups"))
        own = table(self.file.data, "tool", "uv")
        if legacy := strings(own.get("dev-dependencies")):
            self._groups["dev"] = [*items(self._groups.get("dev")), *legacy]
        self._workspace = workspace or workspace_of(self.file)
        self._root, self._folders = self._workspace
        self._uv = table(self._root.data, "tool", "uv")
        named = {**table(self._uv.get("sources")), **table(own.get("sources"))}
        self._sources = {canonicalize_name(name): value for name, value in named.items()}
        self._indexes = [table(entry) for entry in items(self._uv.get("index"))]
        indexes = [*self._indexes, *map(table, items(own.get("index")))]
        self._urls = {str(one["name"]): one.get("url") for one in indexes if one.get("name")}

    @property
    def groups(self) -> list[str]:
        """The normalised names of extras and dependency groups."""
        return [*self._extras, *map(canonicalize_name, self._groups)]

    def check(self) -> None:
        """Refuse keys of other tools that builder would drop.

        Raises:
            ConfigError: see :func:`builder.lock.manifests.reader.check_keys`.
        """
        for file in {self._root.path: self._root, self.file.path: self.file}.values():
            check_keys(file, table(file.data, "tool", "uv"), "uv")
        poetry = "poetry" if self.is_dynamic("dependencies") else "poetry beside project"
        for rules, name in ((poetry, "poetry"), ("pdm", "pdm")):
            check_keys(self.file, table(self.file.data, "tool", name), rules)
        self._check_uv()

    def _check_uv(self) -> None:
        """Refuse what uv does with several keys together, and settings that are in another file."""
        if (self._root.path.parent / "uv.toml").is_file():
            problem = f"{self._root.path.parent / 'uv.toml'}: uv reads it in place of [tool.uv]"
            raise ConfigError(problem, f"move it into [tool.uv]; or {rules_of('uv')['hint']}")
        if any(entry.get("explicit") and entry.get("default") for entry in self._indexes):
            raise refused(self._root, "tool.uv.index.explicit", "remove explicit, or default")
        self._refuse_sources_of("override-dependencies")
        environments = [self._marker(text) for text in strings(self._uv.get("environments"))]
        if environments and all(False in answers(m, self.platform) for m in environments):
            hint = "add the environment: sys_platform == 'linux'"
            raise refused(self._root, "tool.uv.environments", hint)

    def _refuse_sources_of(self, key: str, others: Iterable[object] = ()) -> None:
        """Refuse a list of requirements one of which has a source, but for some names."""
        names = (re.split(r"[^\w.-]", text.strip())[0] for text in strings(self._uv.get(key)))
        if set(map(canonicalize_name, names)).difference(others).intersection(self._sources):
            raise refused(self._root, f"tool.uv.{key}", rules_of("uv")["hint"])

    def read(self, groups: Sequence[str]) -> None:
        """Add the requirements of some groups and extras, with Python and the settings of uv."""
        self.check()
        self._check_conflicts(set(map(canonicalize_name, groups)))
        self.read_python()
        is_open = MAIN in groups and self.is_dynamic("optional-dependencies")
        extras = [one for one in groups if is_open and one not in (MAIN, *self.groups)]
        if MAIN in (groups or (MAIN,)):
            self._read_project(extras)
        for group in groups:
            if group in self.groups or group not in (MAIN, *extras):
                self.read_group(group)
        self._read_settings()
        # a source is for requirements of the project, and for those that uv limits
        direct: list[Spec | SourceSpec] = [*self.reader.pip, *self.reader.sources]
        self._refuse_sources_of("constraint-dependencies", [spec.name for spec in direct])

    def _read_project(self, extras: Sequence[str] = (), marker: Marker | None = None) -> None:
        """Add the project: its dependencies, and its package, which uv sync installs too."""
        self.read_main(marker)
        if builds_package(self.file) and self.file.path == self.reader.path:
            self.reader.own_code(extras, self.file.where("build-system"), marker)

    def _check_conflicts(self, groups: set[str]) -> None:
        """Refuse groups and extras that uv never installs together."""
        for members in map(items, items(self._uv.get("conflicts"))):
            names = {str(one.get("extra", one.get("group"))) for one in map(table, members)}
            if len(groups.intersection(map(canonicalize_name, names))) > 1:
                hint = f"choose one of {', '.join(sorted(names))} in the recipe's groups:"
                raise refused(self._root, "tool.uv.conflicts", hint)

    def _read_settings(self) -> None:
        """Add the indexes and settings of uv."""
        for entry in self._indexes:
            if not entry.get("explicit"):
                option = "--index-url" if entry.get("default") else "--extra-index-url"
                self.reader.option(option, entry.get("url"), self._root)
        has_default = any(entry.get("default") for entry in self._indexes)
        replaced = {"index-url": None} if has_default else {}
        self.reader.options("uv", {**self._uv, **replaced}, self._root)
        self.reader.uv |= settings_of_uv(self._uv)

    def read_python(self) -> None:
        """Add the version of Python."""
        text = str(self._project.get("requires-python", ""))
        where = self.file.where(text) if text else str(self.file.path)
        self.reader.python(text, where, self.file.path.parent, self._root.path.parent)

    def read_main(self, marker: Marker | None = None) -> None:
        """Add the project's dependencies, unless only its build backend knows them."""
        if not self.names_packages:
            raise ConfigError(
                f"{self.file.path}: no [project] with dependencies, "
                "and no package that a build could ask",
                f"name a file that lists them: environment: FILE; or {rules_of('poetry')['hint']}",
            )
        if self.is_dynamic("dependencies") and self._sources:
            hint = f"list the dependencies in [project]; or {rules_of('uv')['hint']}"
            raise refused(self.file, "tool.uv.sources", hint)
        for text in strings(self._project.get("dependencies")):
            self._read(text, marker)

    @property
    def names_packages(self) -> bool:
        """Whether the file, or a build of its package, names the dependencies."""
        return builds_package(self.file) or not self.is_dynamic("dependencies")

    def is_dynamic(self, key: str) -> bool:
        """Return whether only the build backend knows a key of ``[project]``."""
        return not self._project or key in strings(self._project.get("dynamic"))

    def read_group(self, group: str, marker: Marker | None = None) -> None:
        """Add the requirements of an extra or a dependency group (PEP 735)."""
        name = canonicalize_name(group)
        if name not in self.groups:
            problem = f"{self.file.path}: no extra and no dependency group {group!r}"
            raise ConfigError(problem, choices(group, [MAIN, *self.groups]))
        if not self.reader.enter(self.file.path, name, marker):
            return
        for text in self._extras.get(name, ()):
            self._read(text, marker, extra=name)
        if name in map(canonicalize_name, self._groups):
            try:
                resolver = DependencyGroupResolver(self._groups)
                resolver.resolve(name)
            except ExceptionGroup as e:
                problem = f"{self.file.where('dependency-groups')}: {e.message}: {e.exceptions[0]}"
                raise ConfigError(problem, "correct the table [dependency-groups]") from None
            self._read_members(resolver, name, marker)

    def _read_members(
        self, resolver: DependencyGroupResolver, group: str, marker: Marker | None
    ) -> None:
        """Add the requirements of a group, and of those that it includes, each with its sources."""
        for member in resolver.lookup(group):
            if isinstance(member, DependencyGroupInclude):
                included = canonicalize_name(member.include_group)
                self._read_members(resolver, included, marker)
            else:
                self._read(str(member), marker, group=group)
        for name, value in table(self._uv.get("dependency-groups")).items():
            if canonicalize_name(name) == group and (text := table(value).get("requires-python")):
                self.reader.python(str(text), self._root.where(str(text)))

    def _read(self, text: str, marker: Marker | None, extra: str = "", group: str = "") -> None:
        """Add a requirement of an extra, a group or the project, with its sources."""
        where = self.file.where(text)
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):
            self.reader.read(text, where)  # its error names the problem
            return
        requirement.marker = both(marker, requirement.marker)
        if canonicalize_name(requirement.name) == self.name:
            if group:
                self._read_project(marker=requirement.marker)
            # an extra of the project that names others
            for other in sorted(requirement.extras):
                self.read_group(other, requirement.marker)
            return
        is_placed = False
        for source, condition in self._chosen(requirement, extra, group):
            if "index" in source:
                url = self._urls.get(str(source["index"]))
                self.reader.pin(requirement.name, url, where, condition)
                continue
            placed = copy(requirement)
            placed.marker = both(requirement.marker, condition)
            if True in answers(placed.marker, self.platform):
                self._read_place(placed, source, where)
                is_placed |= False not in answers(condition, self.platform)
        if not is_placed:
            self.reader.read(str(requirement) if marker else text, where)

    def _marker(self, text: Any) -> Marker | None:
        try:
            return Marker(str(text)) if text else None
        except InvalidMarker as e:
            problem = f"{self.file.where(str(text))}: wrong marker: {str(e).splitlines()[0]}"
            raise ConfigError(problem, "write it as sys_platform == 'linux'") from None

    def _chosen(
        self, requirement: Requirement, extra: str, group: str
    ) -> Iterator[tuple[Mapping[str, Any], Marker | None]]:
        """Yield the entries of ``[tool.uv.sources]`` that may count for a requirement."""
        value = self._sources.get(canonicalize_name(requirement.name), [])
        for source in map(table, value if isinstance(value, list) else [value]):
            condition = self._marker(source.get("marker"))
            named = [str(source.get("extra") or extra), str(source.get("group") or group)]
            applies = True in answers(condition, self.platform)
            if [*map(canonicalize_name, named)] == [extra, group] and applies:
                yield source, condition

    def _read_place(self, requirement: Requirement, source: Mapping[str, Any], where: str) -> None:
        """Add a source that is no index, with the requirements of a folder that it names.

        The folder's wheel names these requirements without their sources.
        """
        if not (path := self._path(requirement, source, where)):
            self.reader.read(source_line(requirement, source), where)
            return
        path = os.path.relpath(self.file.path.parent / path, self.reader.path.parent)
        is_editable = source.get("editable", bool(source.get("workspace")))
        source = {**source, "path": path, "editable": is_editable}
        self.reader.read(source_line(requirement, source), where)
        project = Path(
            os.path.normpath(self.reader.path.absolute().parent / path), "pyproject.toml"
        )
        if not project.is_file():
            return
        workspace = self._workspace if project.parent in self._folders.values() else None
        other = PyProject(load_toml(project), self.platform, self.reader, workspace)
        if other.names_packages and self.reader.enter(project, MAIN, requirement.marker):
            other.check()
            other.read_main(requirement.marker)
        for extra in sorted(requirement.extras):
            other.read_group(extra, requirement.marker)

    def _path(
        self, requirement: Requirement, source: Mapping[str, Any], where: str
    ) -> str | Path | None:
        """Return the folder or file that a source names; None for a URL."""
        if source.get("path") and "git" in source:
            key = f"tool.uv.sources.{requirement.name}.path"
            raise refused(self.file, key, rules_of("uv")["hint"])
        name = canonicalize_name(requirement.name)
        if source.get("workspace") and name not in self._folders:
            problem = f"{requirement.name} is of a workspace, and no folder above has it"
            hint = "clone the whole repository, and run builder in it"
            raise ConfigError(f"{where}: {problem}", hint)
        return self._folders[name] if source.get("workspace") else source.get("path")


def workspace_of(file: TomlFile) -> Workspace:
    """Return the workspace that a project is in; one that is in none is the root of its own.

    That of another user, in a folder above, does not count.
    """
    folder = file.path.absolute().parent
    for path in (one / "pyproject.toml" for one in (folder, *folder.parents)):
        is_own = path.is_file() and (path == file.path.absolute() or is_trusted(path))
        root = load_toml(path) if is_own else None
        if root is None or "workspace" not in table(root.data, "tool", "uv"):
            continue
        folders = _folders(root)
        if path.parent == folder:
            return file, folders
        if folder in folders.values():
            return root, folders
        break
    return file, {}


def _folders(root: TomlFile) -> dict[str, Path]:
    """Return the folders of a workspace's root and members, by the normalised name of each."""
    folder, workspace = root.path.absolute().parent, table(root.data, "tool", "uv", "workspace")

    def found(key: str) -> set[Path]:
        patterns = strings(workspace.get(key))
        return {p for glob in patterns for p in folder.glob(f"./{glob}/pyproject.toml")}

    paths = [root.path, *sorted(found("members") - found("exclude"))]
    projects = {path.parent: table(load_toml(path).data, "project") for path in paths}
    return {canonicalize_name(str(one.get("name", ""))): place for place, one in projects.items()}


def builds_package(file: TomlFile) -> bool:
    """Return whether a ``pyproject.toml`` describes a package that uv, poetry and pip install."""
    tool = table(file.data, "tool")
    settings = (table(tool, "uv").get("package"), table(tool, "poetry").get("package-mode"))
    return bool(file.data.get("build-system")) and False not in settings
