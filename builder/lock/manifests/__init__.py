"""Files of other tools as environment files: ``pyproject.toml``, ``pixi.toml``, requirements files.

Their content is translated into that of an environment file, so that all formats have the same
rules and messages: conda specs, and lines of a pip section::

    pyproject.toml                             conda                 pip
    requires-python = ">=3.11"                 python >=3.11         .
    dependencies = ["flask>=3"]                pip                   flask>=3
    [tool.uv.sources]
    torch = {index = "pytorch"}                                      torch, from that index alone

A project whose dependencies only its build backend knows (``setup.py``, ``[tool.poetry]``,
``dynamic``) is the line ``.``: its wheel is built in the image, and names them.

``keys.yaml`` lists the keys of these files: a key that builder neither reads nor may ignore is an
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.core.errors import ConfigError
from builder.core.model import MAIN
from builder.lock.spec import Environment
from builder.lock.tomlfile import load_toml, table

from .pixi import Pixi
from .pyproject import PyProject
from .reader import ManifestReader

_REQUIREMENTS = (".txt", ".in")
_SETUP = "setup.py"


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
    reader = ManifestReader(path, root or path.parent)
    if path.name == _SETUP:
        reader.own_code(groups, str(path))
    elif path.suffix in _REQUIREMENTS:
        _refuse_groups(path, groups)
        reader.read(f"-r {path.name}", str(path))
    else:
        file = load_toml(path)
        project = PyProject(file, platform, reader) if path.name == "pyproject.toml" else None
        pixi = table(file.data, "tool", "pixi") if project else file.data
        if project and not pixi:
            project.read(groups)
        else:
            _refuse_groups(path, groups)
            Pixi(file, pixi, platform, project).read(reader, environment)
    return reader.environment()


def _refuse_groups(path: Path, groups: Sequence[str]) -> None:
    if named := [group for group in groups if group != MAIN]:
        raise ConfigError(
            f"{path}: the file has no groups, and the recipe names {', '.join(named)}",
            "remove 'groups:' from the recipe; "
            "lock_environment: NAME chooses an environment of pixi",
        )
