"""pixi projects: ``pixi.toml``, or ``[tool.pixi]`` of a ``pyproject.toml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from builder.core.errors import ConfigError
from builder.lock.config.merge import choices
from builder.lock.tomlfile import TomlFile, items, strings, table

from .pyproject import PyProject
from .reader import ManifestReader, source_line

#: Targets of pixi's tables that are Linux, the general ones first; the last one is the platform.
_PIXI_TARGETS = ("unix", "linux")


@dataclass(frozen=True)
class Pixi:
    """A pixi project: ``pixi.toml``, or ``[tool.pixi]`` of a ``pyproject.toml``."""

    file: TomlFile
    pixi: Mapping[str, Any]
    platform: str
    project: PyProject | None

    def read(self, reader: ManifestReader, name: str | None) -> None:
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

    def _read_table(self, reader: ManifestReader, part: Mapping[str, Any]) -> None:
        for name, value in table(part.get("dependencies")).items():
            reader.conda(pixi_spec(str(name), value), str(name), self.file.where(str(name)))
        for name, value in table(part.get("pypi-dependencies")).items():
            entry = value if isinstance(value, dict) else {"version": value}
            reader.pip(_pypi_line(str(name), entry), self.file.where(str(name)))
            if entry.get("index"):
                reader.pin(str(name), entry["index"], self.file.where(str(name)))
        urls = table(part.get("pypi-options")).get("extra-index-urls")
        reader.option("--extra-index-url", urls, self.file)


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
        line = source_line(Requirement(bare), entry)
    except InvalidRequirement:
        line = ""
    version = str(entry.get("version", "*"))
    return line or bare + ("" if version == "*" else version)
