"""Reads conda environment files: channels, conda specs with ``# [linux]`` selectors, and the pip section.

The selectors are those of conda-lock, and as in conda-lock a pip section implies the conda package ``pip``.
conda-lock's own parser takes half a second to import and reports no line numbers, so builder has its own; the
tests compare the two.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from builder.config.recipe import Recipe
from builder.config.safeyaml import compose
from builder.config.yamlfile import not_yaml, read_text
from builder.errors import ConfigError
from builder.lock.condaspec import conda_spec_hint, read_conda_spec
from builder.lock.manifests import is_manifest, read_manifest
from builder.lock.othertools import other_file
from builder.lock.pipsection import PipSection, plain_value
from builder.lock.spec import Environment, Spec
from builder.net.urlvariables import UrlVariables
from builder.redact import redact
from builder.settings import expand_home

#: Characters of a line with a comment. conda-lock's pattern of selectors needs quadratic time.
MAX_LINE = 2000
#: The folder of a project in which builder leaves the wheels that it built, for other machines.
WHEELS_FOLDER = "wheels"
_SELECTOR = re.compile(r"(.+?)\s*(#.*)\[([^\[\]]+)\](?(2)[^\(\)]*)$")
_SELECTORS = {
    "linux-64": {"linux64", "unix", "linux"},
    "linux-aarch64": {"aarch64", "unix", "linux"},
}
_KNOWN_SELECTORS = {"linux64", "unix", "linux", "aarch64", "ppc64le", "osx64", "osx", "arm64", "win", "win64"}
#: Keys of an environment file that conda, mamba and conda-lock read.
_KEYS = (
    "name",
    "channels",
    "dependencies",
    "prefix",
    "variables",
    "platforms",
    "pip-repositories",
    "category",
    "channel_priority",
)


def read_environment(path: Path, platform: str, root: Path | None = None) -> Environment:
    """Reads an environment file for one platform (``linux-64``).

    Args:
        path: the file.
        platform: with conda's name.
        root: the project folder, in which requirements files may be; None: the folder of the file.

    Raises:
        ConfigError: the file is missing, is not YAML, or contains something that cannot be locked. The
            message names file and line.
    """
    text = read_text(path, "environment file", "check 'environment:' in the recipe")
    try:
        document = compose("\n".join(_selected(path, text, platform)))
    except yaml.YAMLError as e:
        raise _of_other_tool(path, text) or not_yaml(path, e, text) from None
    if not isinstance(document, yaml.MappingNode):
        raise _of_other_tool(path, text) or ConfigError(
            f"{path}: not a conda environment file",
            "write 'channels:' and 'dependencies:' with lists below them",
        )
    if not any(key.value == "dependencies" for key, _ in document.value):
        refused = _of_other_tool(path, text)
        if refused:
            raise refused
    return _Reader(path, root or path.parent).read(document, platform)


def recipe_environment(recipe: Recipe) -> Environment:
    """What the environment file of a recipe asks for; nothing if a recipe with a lock has no such file.

    Raises:
        ConfigError: see :func:`read_environment`.
    """
    path = recipe.environment_path
    if not path.exists():
        return Environment(path, "", (), (), ())
    groups = () if recipe.lock else recipe.groups
    return read_any_environment(path, recipe.platform, recipe.root, groups, recipe.lock_environment)


def read_any_environment(
    path: Path, platform: str, root: Path, groups: Sequence[str] = (), environment: str | None = None
) -> Environment:
    """Return what an environment file of any kind asks for: conda's, or that of another tool.

    Raises:
        ConfigError: see :func:`read_environment` and :func:`builder.lock.manifests.read_manifest`.
    """
    if is_manifest(path):
        return read_manifest(path, platform, root, groups=groups, environment=environment)
    return read_environment(path, platform, root)


def _of_other_tool(path: Path, text: str) -> ConfigError | None:
    """The error for a file that another tool reads or writes; None if it is not known to be one."""
    found = other_file(path, text)
    if found is None or found.what == "an environment file":
        return None
    return ConfigError(
        f"{path}: this is {found.what}, and 'environment:' names a conda environment file", found.hint
    )


def find_links(recipe: Recipe) -> tuple[str, ...]:
    """The folders (absolute) and URLs with wheels that the environment file and the recipe name, and the
    project's folder with wheels that builder built.
    """
    environment = recipe_environment(recipe)
    places = [(link, environment.path.parent) for link in environment.find_links]
    places += [(link, recipe.root) for link in recipe.pip.find_links]
    own = recipe.root / WHEELS_FOLDER
    if own.is_dir():  # a wheel of another target with the same name is in a folder below
        places += [(str(folder), own) for folder in (own, *sorted(own.iterdir())) if folder.is_dir()]
    return tuple(_absolute(link, folder) for link, folder in places)


def _absolute(link: str, folder: Path) -> str:
    place = os.path.expandvars(link)
    if "://" in place:  # a variable may contain the whole URL
        return UrlVariables((link,)).expanded(link)
    return str((folder / expand_home(place)).absolute())


def _selected(path: Path, text: str, platform: str) -> Iterator[str]:
    """The lines for a platform. The others become empty lines, so that line numbers stay the same."""
    for number, line in enumerate(text.splitlines(), 1):
        if "#" not in line:
            yield line
            continue
        if len(line) > MAX_LINE:
            raise ConfigError(
                f"{path}:{number}: the line has {len(line)} characters, at most {MAX_LINE} are allowed",
                "write one package or channel per line",
            )
        match = None if line.lstrip().startswith("#") else _SELECTOR.match(line)
        if match is None:
            yield line
            continue
        selector = match[3].strip()
        if selector not in _KNOWN_SELECTORS:
            raise ConfigError(
                f"{path}:{number}: unknown selector [{selector}]",
                f"known selectors: {', '.join(sorted(_KNOWN_SELECTORS))}; "
                "write other comments without brackets",
            )
        yield line if selector in _SELECTORS[platform] else ""


class _Reader:
    """Reads the YAML nodes of one file, which know their lines."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._conda: list[Spec] = []
        self._notes: list[str] = []
        self._pip = PipSection(path, root)

    def read(self, root: yaml.MappingNode, platform: str) -> Environment:
        keys = self._keys(root)
        self._check_platforms(keys.get("platforms"), platform)
        if "dependencies" not in keys:
            raise ConfigError(
                f"{self._path}: no dependencies:", "write 'dependencies:' and '- PACKAGE' lines below it"
            )
        channels = self._strings(keys.get("channels"), "channels")
        self._read_dependencies(keys["dependencies"])
        self._pip.extra_indexes += self._strings(keys.get("pip-repositories"), "pip-repositories")
        name = keys.get("name")
        return Environment(
            self._path,
            str(name.value) if name else "",
            tuple(channel for channel in channels if channel != "nodefaults"),
            tuple(_unique(self._conda)),
            tuple(self._pip.specs),
            self._pip.index,
            tuple(dict.fromkeys(self._pip.extra_indexes)),
            tuple(dict.fromkeys(self._pip.links)),
            tuple(self._pip.sources),
            tuple(self._pip.constraints),
            tuple(dict.fromkeys(self._pip.no_binary)),
            tuple(dict.fromkeys(self._pip.only_binary)),
            tuple(dict.fromkeys(self._notes)),
        )

    # parts of the file

    def _keys(self, root: yaml.MappingNode) -> dict[str, yaml.Node]:
        keys: dict[str, yaml.Node] = {}
        for key, value in self._pairs(root):
            self._check_key(key, value)
            keys[key.value] = value
        variables = keys.get("variables")
        if variables is not None and variables.value:
            raise self._error(
                variables, "variables: is not supported", "set them in the recipe: env: {NAME: VALUE}"
            )
        return keys

    def _pairs(self, root: yaml.MappingNode) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        """The keys of a mapping with their values."""
        found: set[str] = set()
        for key, _ in root.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                raise self._error(key, "a key is a list, a mapping or <<", "write it as KEY: VALUE lines")
            if key.value in found:
                raise self._error(key, f"key {key.value!r} appears twice", "remove one of the two")
            found.add(key.value)
        pairs: list[tuple[yaml.ScalarNode, yaml.Node]] = root.value
        return pairs

    def _check_key(self, key: yaml.ScalarNode, value: yaml.Node) -> None:
        """Refuses an unknown key if it is a known one with an error in it; conda ignores the others."""
        if key.value == "pip":
            raise self._error(
                key,
                "pip: is not a key of an environment file",
                "move it below dependencies: as the item '- pip:', with its packages indented below it",
            )
        near = difflib.get_close_matches(str(key.value).lower(), _KEYS, n=1, cutoff=0.7)
        if key.value not in _KEYS and near:
            raise self._error(key, f"unknown key {key.value!r}", f"did you mean '{near[0]}:'?")

    def _check_platforms(self, node: yaml.Node | None, platform: str) -> None:
        platforms = self._strings(node, "platforms")
        if node is not None and platforms and platform not in platforms:
            raise self._error(
                node, f"platforms: does not list {platform}", f"add '- {platform}', or remove platforms:"
            )

    def _read_dependencies(self, node: yaml.Node) -> None:
        if not isinstance(node, yaml.SequenceNode):
            hint = "write '- PACKAGE' or '- PACKAGE=VERSION' lines below it"
            raise self._error(node, "dependencies: must be a list", hint)
        for item in node.value:
            if isinstance(item, yaml.MappingNode):
                for key, value in self._pairs(item):
                    self._read_section(key, value)
            else:
                self._read_conda_spec(item)

    def _read_section(self, key: yaml.ScalarNode, value: yaml.Node) -> None:
        if key.value != "pip":
            hint = "dependencies: may contain the section 'pip:' only"
            if isinstance(value, yaml.ScalarNode):
                hint = f"write a package with its version as '- {key.value}={value.value}'"
            raise self._error(key, f"unknown section {key.value!r}", hint)
        if not value.value:
            return
        self._conda.append(Spec("pip", "pip", self._where(key)))
        for text, item in self._items(value, "pip"):
            self._pip.read(text, self._where(item))

    def _read_conda_spec(self, node: yaml.Node) -> None:
        text = self._string(node, "dependencies")
        spec = read_conda_spec(text)
        if spec is None:
            raise self._error(node, f"{redact(text)!r} is not a conda spec", conda_spec_hint(text))
        self._conda.append(Spec(spec.text, spec.name, self._where(node)))
        self._notes += [f"{self._where(node)}: {note}" for note in spec.notes]

    # nodes

    def _strings(self, node: yaml.Node | None, key: str) -> list[str]:
        return [text for text, _ in self._items(node, key)]

    def _items(self, node: yaml.Node | None, key: str) -> list[tuple[str, yaml.Node]]:
        """The texts of a list with their nodes; nothing for a missing or empty key."""
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            return []
        if not isinstance(node, yaml.SequenceNode):
            hint = f"write {key}: and '- ITEM' lines below it"
            if isinstance(node, yaml.ScalarNode):
                hint = f"write {key}: [{redact(node.value)}]"
            raise self._error(node, f"{key}: must be a list", hint)
        return [(self._string(item, key), item) for item in node.value]

    def _string(self, item: yaml.Node, key: str) -> str:
        if not isinstance(item, yaml.ScalarNode) or not item.value.strip():
            raise self._error(
                item, f"{key}: an item is not text", "write '- ITEM', with quotation marks where needed"
            )
        return plain_value(str(item.value), f"{self._where(item)}: {key}")

    def _where(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _error(self, node: yaml.Node, message: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._where(node)}: {message}", hint)


def _unique(specs: Sequence[Spec]) -> list[Spec]:
    """The specs without repetitions, each at the position of its last occurrence.

    A ``pip`` with a version replaces the plain ``pip`` that a pip section implies.
    """
    if any(spec.name == "pip" and spec.text != "pip" for spec in specs):
        specs = [spec for spec in specs if spec.text != "pip"]
    first: dict[str, Spec] = {}
    for spec in specs:
        first.setdefault(spec.text, spec)
    texts = list(dict.fromkeys(spec.text for spec in reversed(specs)))
    return [first[text] for text in reversed(texts)]
