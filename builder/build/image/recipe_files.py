"""Copies the recipe's ``files:`` into an image."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.core.errors import ConfigError
from builder.core.store.unchanged import look
from builder.formats.layers.entry import Entry, Range
from builder.formats.trees.inside import is_inside
from builder.lock.config.recipe import Files, Recipe
from builder.lock.config.yamlfile import place_of

if TYPE_CHECKING:
    from .ignore import FilesIgnore

#: Symlinks in Debian, Ubuntu, Fedora, SUSE and their derivatives. A file below one would replace
#: the link by a folder.
_MERGED = re.compile(r"(bin|sbin|lib|lib32|lib64|libx32|var/run|var/lock)(/|$)")
#: Folders whose mode is not 0755.
_SPECIAL_MODES = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
_WHITEOUT = ".wh."


def recipe_entries(recipe: Recipe, secrets: list[Path] | None = None) -> list[Entry]:
    """Return the members for the recipe's ``files:``, in their order.

    Args:
        recipe: the target.
        secrets: receives the files of folders that are left out because they look like secrets.

    Raises:
        ConfigError: a file is outside of the project, does not exist or cannot be read, its target
            would break the base, a ``source`` looks like a secret, or ``.builderignore`` is wrong
            or leaves it out.
    """
    entries: list[Entry] = []
    if not recipe.files:
        return entries
    from .ignore import FilesIgnore

    ignore = FilesIgnore(recipe.root, [] if secrets is None else secrets)
    for number, item in enumerate(recipe.files):
        entries += _copy(recipe, item, ignore, place_of(recipe.source, "files", number))
    return entries


def _copy(recipe: Recipe, item: Files, ignore: FilesIgnore, where: str) -> list[Entry]:
    """Return the members for one item; ``where`` names it in error messages."""
    source = recipe.root / item.source
    _require_inside(source, recipe.root, where)
    source = Path(os.path.normpath(source.absolute()))
    if rule := ignore.rule_for(source, is_folder=source.is_dir()):
        what = f"{where}: source {item.source!r} is left out by {rule}"
        raise ConfigError(what, "remove one of the two lines")
    if ignore.is_secret(source):
        line = f"!/{source.relative_to(ignore.file.parent).as_posix()}"
        raise ConfigError(
            f"{where}: source {item.source!r} looks like a secret, which every user of the image could read",
            f"pass it with --env-file or --bind; if it is none, write the line {line} into {ignore.file}",
        )
    target = _target(item, source, where)
    mode = _mode(item, where)
    try:
        entries = list(_walk(source, target, mode, ignore, where))
    except OSError as e:
        is_missing = isinstance(e, FileNotFoundError)
        problem = "does not exist" if is_missing else f"cannot be read: {e.strerror}"
        hint = f"correct 'source'; it is relative to {recipe.root}"
        raise ConfigError(f"{where}: {e.filename} {problem}", hint) from None
    return [*_special_parents(target), *entries]


def _require_inside(source: Path, root: Path, where: str) -> None:
    """Refuse a source outside of the project folder, also one below a symlink that leads out.

    A symlink itself is copied as a symlink, so it may lead anywhere.
    """
    plain, project = (Path(os.path.normpath(path.absolute())) for path in (source, root))
    is_below = plain.is_relative_to(project) and is_inside(plain.parent, project)
    if plain != project and not is_below:
        hint = f"copy it into a folder of {root}"
        raise ConfigError(f"{where}: {source} is outside of the project folder", hint)


def _mode(item: Files, where: str) -> int | None:
    if item.mode is None:
        return None
    if not re.fullmatch(r"0?o?[0-7]{3,4}", item.mode):
        raise ConfigError(f"{where}: mode {item.mode!r} is not octal", 'write it as "0755"')
    return int(item.mode.replace("o", ""), 8)


def _target(item: Files, source: Path, where: str) -> str:
    """Return the target as an image path without a leading slash."""
    parts = PurePosixPath(item.target).parts
    if not item.target.startswith("/") or ".." in parts:
        raise ConfigError(
            f"{where}: target {item.target!r} is not an absolute path in the image",
            f"write it from the root: target: /app/{parts[-1] if parts else ''}",
        )
    if item.target.endswith("/") and not source.is_dir():
        parts = (*parts, source.name)
    target = "/".join(parts[1:])
    if not target:
        if source.is_dir():
            hint = "copy into a folder below it: /app"
            raise ConfigError(f"{where}: target is the image's root", hint)
        target = source.name
    _check_target(target, where)
    return target


def _check_target(target: str, where: str) -> None:
    """Raise ConfigError if a file at an image path would break the base."""
    if link := _MERGED.match(target):
        better = "run" if link[1].startswith("var/") else f"usr/{link[1]}"
        hint = f"use a target in /{better}"
        raise ConfigError(f"{where}: /{link[1]} is a symlink in most bases", hint)
    if any(part.startswith(_WHITEOUT) for part in target.split("/")):
        what = f"{where}: a name that starts with {_WHITEOUT} deletes files of other layers"
        raise ConfigError(what, "rename it")


def _special_parents(target: str) -> Iterator[Entry]:
    """Yield the parents that are not 0755, so that a file below them does not change them."""
    for parent in reversed(PurePosixPath(target).parents):
        if mode := _SPECIAL_MODES.get(str(parent)):
            yield Entry(str(parent), "dir", mode)


def _walk(
    source: Path, target: str, mode: int | None, ignore: FilesIgnore, where: str
) -> Iterator[Entry]:
    """Yield the members for a file, a symlink, or a folder and its content, sorted by name.

    Args:
        source: what is copied.
        target: its image path.
        mode: mode of the regular files; None: 0755 for a file that its owner may execute, else
            0644.
        ignore: what is left out of folders.
        where: names the item in error messages.
    """
    info = look(source).lstat()
    if stat.S_ISLNK(info.st_mode):
        yield Entry(target, "symlink", 0o777, target=str(source.readlink()))
    elif stat.S_ISDIR(info.st_mode):
        yield Entry(target, "dir", 0o755)
        for name in sorted((p.name for p in source.iterdir()), key=os.fsencode):
            child = source / name
            if ignore.leaves_out(child, is_folder=child.is_dir() and not child.is_symlink()):
                continue
            if name.startswith(_WHITEOUT):
                what = f"{where}: {child} would delete files of other layers"
                raise ConfigError(what, "rename it")
            yield from _walk(child, f"{target}/{name}", mode, ignore, where)
    elif stat.S_ISREG(info.st_mode):
        yield _file(source, target, mode, info)
    else:
        raise ConfigError(f"{where}: {source} is not a file, folder or symlink", "remove it")


def _file(source: Path, target: str, mode: int | None, info: os.stat_result) -> Entry:
    if not os.access(source, os.R_OK):
        raise PermissionError(errno.EACCES, "permission denied", str(source))
    if mode is None:
        mode = 0o755 if info.st_mode & stat.S_IXUSR else 0o644
    return Entry(target, "file", mode, info.st_size, content=Range(source.absolute()))
