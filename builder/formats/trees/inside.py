"""The rule that files and folders of a project are inside of its folder, symlinks followed.

A clone of somebody's repository may have a symlink to any file or folder of the user's. So no file
that a recipe names is read through one that leads out, because its lines are shown in messages, and
builder neither writes into nor removes from a folder behind one. The project folder itself may be
reached by a symlink.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from builder.core.errors import ConfigError

#: A folder with one of these is a Python project.
PROJECT_FILES = ("pyproject.toml", "setup.py")


def is_inside(path: Path, *folders: Path) -> bool:
    """Return whether a path is below one of the folders, symlinks followed."""
    real = path.resolve()
    return any(real.is_relative_to(folder.resolve()) for folder in folders)


def check_inside(path: Path, folders: Sequence[Path], where: str, hint: str = "") -> None:
    """Raise ConfigError for a path that is not below one of the folders.

    Args:
        path: the file or folder.
        folders: the project folder first.
        where: the file and key that name the path, for the message.
        hint: for the user; empty: copy the file into the project.
    """
    if not is_inside(path, *folders):
        raise ConfigError(
            f"{where}: {path} is outside of the project",
            hint or f"copy the file into {folders[0]}, and name it there",
        )


def wider_project(root: Path, outside: Path, file: str) -> str:
    """Return the hint to use a folder that contains the project and a path outside of it.

    Args:
        root: the project folder.
        outside: the path.
        file: the file that names the path, as ``FILE:LINE`` or ``FILE``.

    Returns:
        The hint; empty if the path does not exist in the project's git repository.
    """
    parents = root.absolute().parents
    repository = next((folder for folder in parents if (folder / ".git").exists()), None)
    if repository is None or not outside.is_relative_to(repository) or not outside.exists():
        return ""
    folder = os.path.commonpath([root.absolute(), outside])
    source = os.path.relpath(file.partition(":")[0], folder)
    return f"cd {shlex.quote(folder)} && builder init --from {shlex.quote(source)}"


def own_path(root: Path, name: str, hint: str = "") -> Path:
    """Return a file or folder of a project that builder writes, or whose files it reads.

    Args:
        root: the project folder.
        name: ``dist``, ``recipes``, ``.gitlab-ci.yml``, ...
        hint: another remedy for the user.

    Raises:
        ConfigError: it is outside of the project, or has a symlink that leads out: as an entry, or
            as an entry of ``blobs``.
    """
    path = root / name
    for entry in chain([path], path.glob("*"), path.glob("blobs/*")):
        if entry == path or entry.is_symlink():
            remedy = f"rm {entry}; or move the whole project there, and link to that; {hint}"
            check_inside(entry, (root,), "a symlink", remedy.removesuffix("; "))
    return path
