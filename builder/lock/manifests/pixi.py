"""pixi projects: ``pixi.toml``, or ``[tool.pixi]`` of a ``pyproject.toml``.

As in pixi 0.77 (``features_ext.rs`` and ``target.rs`` of ``pixi_manifest``) an environment is a list
of features: its own tables, those that it names, then the tables at the top. In a feature an entry
of a target replaces that of the same name, in the order of the file. Those of several features all
count::

    [dependencies]                  python = "3.11.*"      replaced
    [target.linux.dependencies]     python = "3.12.*"      counts
    [feature.gpu.dependencies]      python = ">=3.12.4"    counts too
"""

from __future__ import annotations

import re
from collections import ChainMap, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.core.errors import ConfigError
from builder.lock.config.merge import choices
from builder.lock.spec import Spec
from builder.lock.tomlfile import TomlFile, items, strings, table

from .pyproject import PyProject
from .reader import ManifestReader, check_keys, rules_of, source_line

#: Tables that count for all environments.
_OF_ALL = ("workspace", "project", "exclude-newer")
#: Tables of which only parts count: these are checked by themselves.
_NESTED = ("feature", "target", "environments")
#: An entry of a later table replaces that of an earlier one.
_TABLES = "dependencies host-dependencies build-dependencies"
Table = Mapping[str, Any]
Tables = dict[str, dict[str, Any]]
#: The features of an environment in their order, by the keys that lead to them.
Features = dict[tuple[str, ...], Table]


@dataclass(frozen=True)
class Pixi:
    """A pixi project: ``pixi.toml``, or ``[tool.pixi]`` of a ``pyproject.toml``."""

    file: TomlFile
    pixi: Table
    platform: str
    project: PyProject | None

    def read(self, reader: ManifestReader, name: str | None) -> None:
        """Add the packages and settings of an environment.

        Raises:
            ConfigError: there is no such environment, it is not for the platform, or builder does
                not follow a key that counts for it.
        """
        workspace = table(self.pixi.get("workspace", self.pixi.get("project")))
        if not workspace:
            hint = "name the file of the workspace: environment: FOLDER/pixi.toml"
            raise ConfigError(f"{self.file.path}: no table [workspace]", hint)
        shared = {key: value for key, value in self.pixi.items() if key in _OF_ALL}
        check_keys(self.file, shared, "pixi")
        features = self._features(name or "default")
        platform = self._platform(workspace, features)
        channels: list[Any] = []
        for at, feature in features.items():
            channels += items(feature.get("channels", workspace.get("channels")))
            self._read_packages(reader, self._merged(at, feature, platform))
        channels.sort(key=lambda one: -p if isinstance(p := table(one).get("priority"), int) else 0)
        reader.channels += [str(table(one).get("channel", one)) for one in channels]
        reader.exclude_newer = str(workspace.get("exclude-newer", ""))
        self._read_options(reader, [workspace, *features.values()])
        required = (table(one.get("system-requirements")) for one in features.values())
        _read_system(reader, [platform, *required])
        self._read_project(reader, features)

    def _features(self, name: str) -> Features:
        environments = table(self.pixi.get("environments"))
        if name not in environments and name != "default":
            known = ["default", *environments]
            raise ConfigError(f"{self.file.path}: no environment {name!r}", choices(name, known))
        entry = environments.get(name, [])
        own = table(entry)
        has_tables = own.keys() - {"features", "no-default-feature"}
        found: Features = {("environments", name): own} if has_tables else {}
        for feature in strings(own.get("features", entry)):
            groups = self.project.groups if self.project else ()
            tables = table(self.pixi.get("feature"))
            if feature not in tables and canonicalize_name(feature) not in groups:
                problem = f"{self.file.where(feature)}: no feature {feature!r}"
                raise ConfigError(problem, choices(feature, [*tables, *groups]))
            found["feature", feature] = table(tables.get(feature))
        return found if own.get("no-default-feature") else {**found, (): self.pixi}

    def _platform(self, workspace: Table, features: Features) -> Table:
        """Return the entry of ``platforms`` that an environment has for the platform."""
        listed = items(workspace.get("platforms", [self.platform]))
        found = [table(one) or {"platform": one} for one in listed]
        found = [one for one in found if one.get("platform", one.get("name")) == self.platform]
        for names in (strings(one["platforms"]) for one in features.values() if "platforms" in one):
            exact = [one for one in found if one.get("name", self.platform) in names]
            found = exact or (found if self.platform in names else [])
        if len(found) != 1:
            problem = f"platforms: {len(found)} entries are for {self.platform}"
            hint = "list it once, or choose an entry by its name in [feature.NAME] platforms; or "
            where, other = self.file.where("platforms"), rules_of("pixi")["hint"]
            raise ConfigError(f"{where}: {problem}", hint + other)
        return found[0]

    def _merged(self, at: tuple[str, ...], feature: Table, platform: Table) -> Tables:
        """Return the tables of a feature, with the entries of targets that match the platform."""
        parts, own = {at: feature}, platform.get("name", self.platform)
        for name, target in table(feature.get("target")).items():
            if name in ("unix", "linux", self.platform) or fnmatchcase(own, name):
                parts[*at, "target", name] = table(target)
        found: Tables = defaultdict(dict)
        for place, part in parts.items():
            data = {key: value for key, value in part.items() if key not in _NESTED}
            check_keys(self.file, data, "pixi", *place)
            found["env"] |= table(part, "activation", "env")
            for key in sorted(data, key=_TABLES.find):  # as combined_dependencies in target.rs
                found[key.removeprefix("host-").removeprefix("build-")] |= table(data[key])
        return found

    def _read_packages(self, reader: ManifestReader, tables: Tables) -> None:
        where = self.file.where
        for name, value in tables["dependencies"].items():
            reader.add_conda(pixi_spec(name, value), name, where(name))
        for name, value in tables["constraints"].items():
            reader.limits.append(Spec(pixi_spec(name, value), name.lower(), where(name)))
        for name, value in tables["pypi-dependencies"].items():
            reader.read(_pypi_line(name, value), where(name))
            if index := table(value).get("index"):
                reader.pin(name, index, where(name), value.get("env-markers"))
        reader.variables = {**tables["env"], **reader.variables}

    def _read_options(self, reader: ManifestReader, tables: Sequence[Table]) -> None:
        """Add the options of PyPI; those of features replace the workspace's."""
        options, found = [table(one.get("pypi-options")) for one in tables], dict[str, Any]()
        for one in options:
            reader.options("pixi", one, self.file)
            found |= one
        overrides = (table(one.get("dependency-overrides")) for one in [*options[1:], options[0]])
        settings = {
            "index-strategy": found.get("index-strategy"),
            "prerelease": found.get("prerelease-mode"),
            # as conversions.rs of pixi_uv_conversions has it
            "no-index": "find-links" in found and not {"index-url", "extra-index-urls"} & {*found},
            "override-dependencies": [_pypi_line(*item) for item in ChainMap(*overrides).items()],
            "exclude-newer-package": self.pixi.get("pypi-exclude-newer"),
        }
        reader.uv |= {key: value for key, value in settings.items() if value}

    def _read_project(self, reader: ManifestReader, features: Features) -> None:
        """Add Python, and the requirements of ``[project]`` and of groups that are features."""
        default, project = features.get((), {}), table(self.file.data, "project")
        if "python" not in table(default.get("dependencies")):  # pixi reads no .python-version
            text = str(project.get("requires-python", "") if default else "")
            reader.python(text, self.file.where(text))
        if self.project is None:
            return
        if default:
            self.project.read_main()
        for kind, group in filter(None, features):
            if kind == "feature" and canonicalize_name(group) in self.project.groups:
                self.project.read_group(group)


def _read_system(reader: ManifestReader, tables: Sequence[Table]) -> None:
    """Add virtual packages; of several versions the highest."""
    names = rules_of("pixi")["virtual"]
    for one in tables:
        for key, value in {**one, **table(one.get("cuda")), **table(one.get("libc"))}.items():
            if key in names and not isinstance(value, dict):
                versions = reader.virtual_packages.get(names[key], ""), str(value)
                highest = max(versions, key=lambda text: [*map(int, re.findall(r"\d+", text))])
                reader.virtual_packages[names[key]] = highest


def _entry(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"version": value}


def pixi_spec(name: str, value: Any) -> str:
    """Return a conda spec from pixi's ``"VERSION"`` or ``{version, build, channel}``."""
    entry = _entry(value)
    version, build = (str(entry.get(key, "*")) for key in ("version", "build"))
    channel = f"{entry['channel']}::" if entry.get("channel") else ""
    words = [channel + name, *([] if version == build == "*" else [version.replace(" ", "")])]
    return " ".join(words if build == "*" else [*words, build])


def _pypi_line(name: str, value: Any) -> str:
    """Return the line of a pip section for an entry of ``[pypi-dependencies]``."""
    entry = _entry(value)
    extras, marker = strings(entry.get("extras")), entry.get("env-markers")
    version = str(entry.get("version", "*")).strip()
    if version[:1].isdigit():
        version = f" {version}"  # no operator: pip's reader refuses it
    text = name + (f"[{','.join(extras)}]" if extras else "") + ("" if version == "*" else version)
    text += f" ; {marker}" if marker else ""
    try:
        return source_line(Requirement(text), entry) or text
    except InvalidRequirement:
        return text
