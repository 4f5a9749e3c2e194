"""conda environment files: channels, specs, ``# [linux]`` selectors, and a ``pip:`` section with pip's own options."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.config.yamlfile import YamlFile, parse_yaml, read_text
from builder.errors import ConfigError

_SELECTOR = re.compile(r"#\s*\[([^\]]+)\]\s*$")
_KNOWN_KEYS = {"name", "channels", "dependencies", "pip-repositories", "platforms", "category", "prefix", "variables"}
_TRUE = {
    "linux-64": {"linux", "linux64", "unix", "x86_64", "x86"},
    "linux-aarch64": {"linux", "unix", "aarch64", "arm64"},
}
_FALSE = {"win", "win32", "win64", "osx", "osx64", "linux", "linux32", "linux64", "unix", "arm64", "aarch64", "x86_64", "x86", "ppc64le"}


@dataclass(frozen=True, slots=True)
class PipOptions:
    """Where pip packages come from, as the environment file says."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment file for one platform."""

    channels: tuple[str, ...]
    conda: tuple[str, ...]
    """conda match specs, without channel ``nodefaults``."""
    pip: tuple[str, ...]
    """PEP 508 requirements."""
    pip_options: PipOptions

    @property
    def requested(self) -> frozenset[str]:
        """The names that the file asks for, conda's and pip's."""
        conda = {_spec_name(s) for s in self.conda}
        return frozenset(conda | {canonicalize_name(Requirement(r).name) for r in self.pip})


def read_environment(path: Path, platform: str) -> Environment:
    """Reads an environment file for a platform.

    Raises:
        ConfigError: what is wrong, with file and line.
    """
    yaml = parse_yaml(path, _selected(path, read_text(path), platform))
    for key in yaml.data:
        if key not in _KNOWN_KEYS:
            raise ConfigError(f"{yaml.where(key)}: unknown key {key!r}", f"known keys: {', '.join(sorted(_KNOWN_KEYS))}")
    if yaml.data.get("platforms") and platform not in _strings(yaml, "platforms"):
        raise ConfigError(f"{yaml.where('platforms')}: {platform} is not among the platforms", "add it, or correct the recipe's platform")
    channels = [c for c in _strings(yaml, "channels") if c != "nodefaults"]
    dependencies = yaml.data.get("dependencies") or []
    if not isinstance(dependencies, list):
        raise ConfigError(f"{yaml.where('dependencies')}: dependencies is not a list", "write one '- NAME' line for each")
    conda: list[str] = []
    lines: list[tuple[int, str]] = []
    for number, item in enumerate(dependencies):
        where = yaml.where("dependencies", number)
        if isinstance(item, str):
            _spec_name(item, where)
            conda.append(item)
        elif isinstance(item, dict) and set(item) == {"pip"}:
            for i, line in enumerate(item["pip"] or []):
                if not isinstance(line, str):
                    raise ConfigError(f"{yaml.where('dependencies', number, 'pip', i)}: not a requirement: {line!r}", "put it in quotes")
                lines.append((yaml.lines.get(("dependencies", number, "pip", i), 0), line))
        elif item is not None:
            raise ConfigError(f"{where}: neither a conda spec nor a pip: section: {item!r}", "write '- NAME=VERSION' or '- pip:'")
    pip, options = _pip(path, lines, tuple(_strings(yaml, "pip-repositories")))
    return Environment(tuple(channels), tuple(conda), pip, options)


def _strings(yaml: YamlFile, key: str) -> list[str]:
    value: Any = yaml.data.get(key) or []
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{yaml.where(key)}: {key} is not a list of names", "write one '- NAME' line for each")
    return value


def _selected(path: Path, text: str, platform: str) -> str:
    """The text with the lines that selectors leave out blanked, so that line numbers stay."""
    return "\n".join(_one(path, number, line, platform) for number, line in enumerate(text.splitlines(), 1)) + "\n"


def _one(path: Path, number: int, line: str, platform: str) -> str:
    match = _SELECTOR.search(line)
    if not match:
        return line
    holds = False
    for alternative in re.split(r"\bor\b", match.group(1)):
        terms = []
        for term in re.split(r"\band\b", alternative):
            words = term.split()
            negated = words[:1] == ["not"]
            name = "".join(words[1:] if negated else words)
            if name not in _FALSE:
                raise ConfigError(f"{path}:{number}: unknown selector [{match.group(1)}]", f"known: {', '.join(sorted(_FALSE))}")
            terms.append((name in _TRUE[platform]) != negated)
        holds |= all(terms)
    return line[: match.start()] if holds else ""


def _spec_name(spec: str, where: str = "") -> str:
    match = re.match(r"\s*(?:[^\s:\[]+::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)", spec)
    if not match:
        raise ConfigError(f"{where}: not a conda spec: {spec!r}", "write NAME, NAME=VERSION or NAME=VERSION=BUILD")
    return match.group(1).lower()


def _pip(path: Path, lines: list[tuple[int, str]], repositories: tuple[str, ...]) -> tuple[tuple[str, ...], PipOptions]:
    requirements: list[str] = []
    index_url: str | None = None
    extra: list[str] = list(repositories)
    links: list[str] = []
    no_index = False
    for number, line in lines:
        where = f"{path}:{number}"
        if not line.strip().startswith("-"):
            try:
                Requirement(line)
            except InvalidRequirement as e:
                raise ConfigError(f"{where}: not a pip requirement: {line!r}: {str(e).splitlines()[0]}", "write NAME or NAME==VERSION") from None
            requirements.append(line)
            continue
        words = shlex.split(line.replace("=", " ", 1) if re.match(r"\s*--?[a-z-]+=", line) else line)
        option, values = words[0], words[1:]
        if option == "--no-index":
            no_index = True
        elif len(values) != 1:
            raise ConfigError(f"{where}: {option} needs one value", f"write '{option} VALUE' on a line of its own")
        elif option in ("--index-url", "-i"):
            index_url = values[0]
        elif option == "--extra-index-url":
            extra.append(values[0])
        elif option in ("--find-links", "-f"):
            links.append(values[0])
        else:
            raise ConfigError(
                f"{where}: pip option {option} is not supported", "use --index-url, --extra-index-url, --find-links, --no-index, or requirements"
            )
    return tuple(requirements), PipOptions(index_url, tuple(extra), tuple(links), no_index)
