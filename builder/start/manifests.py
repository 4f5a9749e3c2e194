"""What a project requires, read from ``pyproject.toml`` and ``pixi.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder.errors import ConfigError
from builder.lock.manifests import group_members, other_index, pixi_spec
from builder.lock.tomlfile import items, load_toml, strings, table
from builder.start.requirements import Requirements


def read_pyproject(path: Path, groups: Sequence[str] = ()) -> Requirements:
    """Reads ``[project]`` of a ``pyproject.toml``.

    Args:
        path: the file.
        groups: extras (``[project.optional-dependencies]``) and dependency groups to add.

    Raises:
        ConfigError: the file is not valid, or has no such group.
    """
    data = load_toml(path).data
    project = table(data.get("project"))
    found = Requirements(path, python=str(project.get("requires-python", "")))
    extras = table(project.get("optional-dependencies"))
    dependency_groups = table(data.get("dependency-groups"))
    specs = strings(project.get("dependencies"))
    for group in groups:
        if group not in {**extras, **dependency_groups}:
            known = ", ".join([*extras, *dependency_groups]) or "none"
            raise ConfigError(f"{path}: no extra and no dependency group {group!r}", f"it has: {known}")
        specs += strings(extras.get(group)) + group_members(dependency_groups, group)
    uv = table(table(data.get("tool")).get("uv"))
    sources: dict[str, Any] = {
        canonicalize_name(str(name)): value for name, value in table(uv.get("sources")).items()
    }
    if builds_package(path):
        found.add_source(".")
    for text in specs:
        _add(found, text, sources)
    _add_indexes(found, [table(index).get("url", "") for index in items(uv.get("index"))])
    if not groups and (unused := [*extras, *dependency_groups]):
        found.notes.append(f"{path.name}: not taken: {', '.join(unused)} (--with NAME takes a group)")
    return found


def builds_package(path: Path) -> bool:
    """Whether a ``pyproject.toml`` describes a package that can be installed: uv and pip install it too."""
    data = load_toml(path).data
    uv = table(table(data.get("tool")).get("uv"))
    return bool(data.get("build-system") and data.get("project")) and uv.get("package") is not False


def _add(found: Requirements, text: str, sources: Mapping[str, Any]) -> None:
    """Adds a requirement, unless ``[tool.uv.sources]`` takes it from a folder or from git."""
    name = canonicalize_name(text.split(";")[0].split("[")[0].strip().split(" ")[0])
    source = table(sources.get(name))
    marker = text.partition(";")[2].strip()
    extras = re.match(r"[^;\[]*(\[[^\]]*\])", text)
    if not _add_from(found, name, extras[1] if extras else "", marker, source):
        found.add_pip(text)


def _add_from(found: Requirements, name: str, extras: str, marker: str, source: Mapping[str, Any]) -> bool:
    """Adds a package that uv or pixi takes from a repository, a URL or a folder. False: from none of them."""
    kind = next((key for key in ("git", "url", "path", "workspace") if source.get(key)), "")
    if not kind:
        return False
    after = f" ; {marker}" if marker else ""
    folder = str(source.get("subdirectory") or "")
    fragment = f"#subdirectory={folder}" if folder else ""
    if kind == "git":
        revision = next((str(source[key]) for key in ("rev", "tag", "branch") if source.get(key)), "")
        url = str(source["git"]).removeprefix("git+")
        found.add_pip(f"{name}{extras} @ git+{url}{f'@{revision}' if revision else ''}{fragment}{after}")
    elif kind == "url":
        found.add_pip(f"{name}{extras} @ {source['url']}{fragment}{after}")
    elif kind == "path":
        path = str(source["path"])
        is_plain = not path.startswith((".", "/", "~"))
        found.add_source(
            f"{'./' if is_plain else ''}{path}{extras}{after}", editable=bool(source.get("editable"))
        )
    else:
        found.left_out.append((name, "a member of the workspace: write -e ./FOLDER"))
    return True


def read_pixi(path: Path) -> Requirements:
    """Reads the default environment of a ``pixi.toml``, or of ``[tool.pixi]`` in a ``pyproject.toml``.

    Raises:
        ConfigError: the file is not valid.
    """
    data = load_toml(path).data
    project = table(data.get("project"))
    is_pyproject = path.name == "pyproject.toml"
    pixi = table(table(data.get("tool")).get("pixi")) if is_pyproject else data
    found = Requirements(path, python=str(project.get("requires-python", "")) if is_pyproject else "")
    workspace = table(pixi.get("workspace") or pixi.get("project"))
    for channel in items(workspace.get("channels")):
        found.channels.append(str(table(channel).get("channel", "")) or str(channel))
    linux = [table(table(pixi.get("target")).get(name)) for name in ("unix", "linux", "linux-64")]
    for part in (pixi, *linux):
        for name, value in table(part.get("dependencies")).items():
            found.conda.append(pixi_spec(str(name), value))
        for name, value in table(part.get("pypi-dependencies")).items():
            _add_pypi(found, str(name), value)
    for text in strings(project.get("dependencies")) if is_pyproject else []:
        found.add_pip(text)
    for key, advice in (("feature", "only the default environment is taken"), ("system-requirements", "")):
        if pixi.get(key):
            found.notes.append(f"{path.name}: [{key}] is not taken{': ' + advice if advice else ''}")
    return found


def has_pixi(path: Path) -> bool:
    """Whether a ``pyproject.toml`` has ``[tool.pixi]``."""
    return bool(table(load_toml(path).data.get("tool")).get("pixi"))


def has_project(path: Path) -> bool:
    """Whether a ``pyproject.toml`` describes a project, and not only tools."""
    return bool(load_toml(path).data.get("project"))


def _add_pypi(found: Requirements, name: str, value: Any) -> None:
    entry = value if isinstance(value, dict) else {"version": value}
    extras = ",".join(strings(entry.get("extras")))
    if _add_from(found, name, f"[{extras}]" if extras else "", "", entry):
        return
    version = str(entry.get("version", "*"))
    found.add_pip(name + (f"[{extras}]" if extras else "") + ("" if version == "*" else version))
    _add_indexes(found, [entry.get("index", "")])


def _add_indexes(found: Requirements, urls: Sequence[Any]) -> None:
    """Adds the package indexes other than PyPI; empty URLs are ignored."""
    for text in filter(None, map(other_index, urls)):
        found.add_option(f"--extra-index-url {text}")
