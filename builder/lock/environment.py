"""Reads conda environment files: channels, conda specs with ``# [linux]`` selectors, the pip section.

The selectors are those of conda-lock, and so is the ``pip`` that a pip section brings along. conda-lock's own parser takes half a
second to import and knows no lines, so it serves as the oracle in the tests instead.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.config.recipe import Recipe
from builder.config.yamlfile import not_yaml, read_text
from builder.errors import ConfigError
from builder.redact import redact

_SELECTOR = re.compile(r"(.+?)\s*(#.*)\[([^\[\]]+)\](?(2)[^\(\)]*)$")
_SELECTORS = {
    "linux-64": {"linux64", "unix", "linux"},
    "linux-aarch64": {"aarch64", "unix", "linux"},
}
_KNOWN_SELECTORS = {"linux64", "unix", "linux", "aarch64", "ppc64le", "osx64", "osx", "arm64", "win", "win64"}
_CONDA_NAME = re.compile(
    r"^(?:[^\s:=<>!~]+(?:/[^\s:]+)?::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?=$|[\s=<>!~\[;])"
)
_OPTIONS = {
    "-i": "index",
    "--index-url": "index",
    "--extra-index-url": "extra",
    "-f": "links",
    "--find-links": "links",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One requirement: its text as written, the package's name (normalised), and ``file:line``."""

    text: str
    name: str
    where: str


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment file for one platform.

    ``find_links`` are URLs, or folders as written, relative to the environment file's folder.
    """

    path: Path
    name: str
    channels: tuple[str, ...]
    conda: tuple[Spec, ...]
    pip: tuple[Spec, ...]
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()

    @property
    def requested(self) -> frozenset[str]:
        """The names that the file asks for: conda's in lower case, pip's normalised as PEP 503 says."""
        return frozenset(s.name for s in (*self.conda, *self.pip))


def read_environment(path: Path, platform: str) -> Environment:
    """Reads an environment file for one platform (``linux-64``).

    Raises:
        ConfigError: the file is missing, no YAML, or holds what cannot be locked; file and line are named.
    """
    text = read_text(path, "environment file", "check 'environment:' in the recipe")
    try:
        root = yaml.compose("\n".join(_selected(path, text, platform)), Loader=yaml.SafeLoader)
    except yaml.YAMLError as e:
        raise not_yaml(path, e) from None
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: not a conda environment file", "it needs 'channels:' and 'dependencies:'")
    return _Reader(path).read(root, platform)


def find_links(recipe: Recipe) -> tuple[str, ...]:
    """Where a build looks for wheels by name: the folders and pages of environment file and recipe, none of them relative."""
    places = [(link, recipe.root) for link in recipe.pip.find_links]
    if recipe.environment_path.exists():  # a lock made elsewhere needs no environment file
        environment = read_environment(recipe.environment_path, recipe.platform)
        places = [*((link, environment.path.parent) for link in environment.find_links), *places]
    known = ((os.path.expandvars(link), folder) for link, folder in places)
    return tuple(
        link if "://" in link else str((folder / Path(link).expanduser()).absolute())
        for link, folder in known
    )


def _selected(path: Path, text: str, platform: str) -> Iterator[str]:
    """The lines for the platform; others are left blank so that line numbers stay."""
    for number, line in enumerate(text.splitlines(), 1):
        match = None if line.lstrip().startswith("#") else _SELECTOR.match(line)
        if match is None:
            yield line
        elif (selector := match[3].strip()) not in _KNOWN_SELECTORS:
            raise ConfigError(
                f"{path}:{number}: unknown selector [{selector}]",
                f"known are {', '.join(sorted(_KNOWN_SELECTORS))}; write other remarks without brackets",
            )
        else:
            yield line if selector in _SELECTORS[platform] else ""


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.index: str | None = None
        self.extra: list[str] = []
        self.links: list[str] = []

    def where(self, node: yaml.Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}"

    def read(self, root: yaml.MappingNode, platform: str) -> Environment:
        keys: dict[str, yaml.Node] = {}
        for key, value in root.value:
            if key.value in keys:
                raise ConfigError(f"{self.where(key)}: key {key.value!r} stands twice", "keep one of them")
            keys[key.value] = value
        if (variables := keys.get("variables")) is not None and variables.value:
            raise ConfigError(
                f"{self.where(variables)}: variables: are not taken from here",
                "put them into the recipe's 'env:'",
            )
        platforms = [text for text, _ in self.strings(keys.get("platforms"), "platforms")]
        if platforms and platform not in platforms:
            raise ConfigError(
                f"{self.where(keys['platforms'])}: platforms: does not list {platform}", "add it there"
            )
        channels = tuple(
            text for text, _ in self.strings(keys.get("channels"), "channels") if text != "nodefaults"
        )
        if "dependencies" not in keys:
            raise ConfigError(f"{self.path}: no dependencies:", "list the packages there")
        conda, pip = self.dependencies(keys["dependencies"])
        self.extra += [text for text, _ in self.strings(keys.get("pip-repositories"), "pip-repositories")]
        name = keys.get("name")
        return Environment(
            self.path,
            str(name.value) if name else "",
            channels,
            tuple(conda),
            tuple(pip),
            self.index,
            tuple(dict.fromkeys(self.extra)),
            tuple(dict.fromkeys(self.links)),
        )

    def strings(self, node: yaml.Node | None, key: str) -> Iterator[tuple[str, yaml.Node]]:
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            return
        if not isinstance(node, yaml.SequenceNode):
            raise ConfigError(
                f"{self.where(node)}: {key}: must be a list", f"write {key}: and '- ITEM' lines below it"
            )
        for item in node.value:
            if not isinstance(item, yaml.ScalarNode) or not item.value.strip():
                raise ConfigError(
                    f"{self.where(item)}: {key}: an item that is no text",
                    "write '- ITEM', in quotes where needed",
                )
            yield item.value.strip(), item

    def dependencies(self, node: yaml.Node) -> tuple[list[Spec], list[Spec]]:
        conda: list[Spec] = []
        pip: list[Spec] = []
        if not isinstance(node, yaml.SequenceNode):
            raise ConfigError(
                f"{self.where(node)}: dependencies: must be a list", "write '- PACKAGE' lines below it"
            )
        for item in node.value:
            if not isinstance(item, yaml.MappingNode):
                conda += [
                    self.conda(text, at)
                    for text, at in self.strings(yaml.SequenceNode("", [item]), "dependencies")
                ]
                continue
            for key, value in item.value:
                if key.value != "pip":
                    raise ConfigError(
                        f"{self.where(key)}: unknown section {key.value!r}",
                        "dependencies: may hold 'pip:' and nothing else",
                    )
                if not value.value:
                    continue
                conda.append(Spec("pip", "pip", self.where(key)))
                for text, at in self.strings(value, "pip"):
                    if text.startswith("-"):
                        self.option(text, at)
                    else:
                        pip.append(self.pip(text, at))
        own_pip = any(s.name == "pip" and s.text != "pip" for s in conda)
        seen = dict.fromkeys(s for s in conda if not (own_pip and s.text == "pip"))
        return list({s.text: s for s in reversed(seen)}.values())[::-1], pip

    def conda(self, text: str, node: yaml.Node) -> Spec:
        match = _CONDA_NAME.match(text)
        if match is None:
            raise ConfigError(
                f"{self.where(node)}: {redact(text)!r} is not a conda spec",
                "write NAME, NAME>=VERSION or NAME=VERSION=BUILD",
            )
        return Spec(" ".join(text.split()), match[1].lower(), self.where(node))

    def pip(self, text: str, node: yaml.Node) -> Spec:
        text = re.split(r"\s#", text)[0].strip()
        try:
            requirement = Requirement(text)
        except InvalidRequirement as e:
            raise ConfigError(
                f"{self.where(node)}: {redact(text)!r} is not a pip requirement: {redact(str(e).splitlines()[0])}",
                "write NAME, NAME==VERSION or NAME @ URL-OF-A-WHEEL; local folders have no place in a lock",
            ) from None
        url = requirement.url
        if url and not (url.startswith(("http://", "https://")) and url.partition("#")[0].endswith(".whl")):
            raise ConfigError(
                f"{self.where(node)}: {redact(text)!r} is no wheel on the web, and nothing else can be locked by its hash",
                "build the wheel, put it into a folder, and name that by --find-links",
            )
        return Spec(" ".join(text.split()), canonicalize_name(requirement.name), self.where(node))

    def option(self, text: str, node: yaml.Node) -> None:
        try:
            words = shlex.split(text.replace("=", " ", 1) if text.startswith("--") else text, comments=True)
        except ValueError as e:
            raise ConfigError(f"{self.where(node)}: {redact(text)!r}: {e}", "check the quotes") from None
        kind = _OPTIONS.get(words[0])
        if kind is None or len(words) != 2:
            what = (
                "an editable package cannot be locked"
                if words[0] in ("-e", "--editable")
                else f"{words[0]}: not understood here"
            )
            raise ConfigError(
                f"{self.where(node)}: {what}", f"known, with one value each: {', '.join(_OPTIONS)}"
            )
        if kind == "index":
            self.index = words[1]
        else:
            (self.extra if kind == "extra" else self.links).append(words[1])
