"""The files of a Python package in the user's project: their names, their hash, and a copy.

They are the files that git tracks, if it tracks the package's ``pyproject.toml`` or ``setup.py``;
else all files that no ``.gitignore`` names. What :mod:`builder.trees.ignore` omits from images is
omitted here too, and so is what builder writes next to the package: with it each lock would change
the files that it was made from.

The hash covers paths, contents, symlinks and whether a file is executable. It does not depend on
times, on the other permission bits, and on the order in which a folder is listed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ConfigError
from builder.model import canonical_json
from builder.store.files import space_errors
from builder.text import human_bytes
from builder.trees.ignore import GitIgnore, Ignore, plain_path
from builder.trees.inside import PROJECT_FILES
from builder.trees.tracked import tracked_files

#: Files of one local package.
MAX_FILES = 100_000
#: Bytes of all files of one local package, which are read whenever a lock is checked.
MAX_BYTES = 4 << 30
#: Paths that builder or its user writes for builder, relative to the folder of the project or of the package,
#: which may have been a project once.
_BUILDERS = re.compile(
    r"wheels/([0-9a-f]{12}/)?[^/]+\.whl|(recipes|sites)/[^/]+\.ya?ml"
    r"|(.*/)?[^/]+\.lock\.yml(\.unfinished)?|.*\.egg-info(/.*)?"
)


@dataclass(frozen=True, slots=True)
class ProjectTree:
    """The files of a local package."""

    folder: Path
    files: tuple[str, ...]
    """Paths of files and symlinks, relative to the folder and sorted."""
    digest: str
    """A SHA-256 over all of them, 64 hex digits."""
    untracked: tuple[str, ...] = ()
    """Modules beside tracked ones that git does not track: they are not in ``files``."""

    def copy_to(self, target: Path) -> None:
        """Copy the files into a new folder.

        Raises:
            SpaceError: the disk is full.
            ConfigError: the files have changed since they were hashed.
        """
        with space_errors(target):
            for name in self.files:
                source, copy = self.folder / name, target / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.copy2(source, copy, follow_symlinks=False)
                except FileNotFoundError:
                    raise _changed(self.folder) from None
                if not copy.is_symlink():
                    copy.chmod(0o755 if _is_executable(copy) else 0o644)
        if _digest(target, self.files) != self.digest:
            raise _changed(self.folder)


def project_tree(folder: Path, root: Path) -> ProjectTree:
    """Return the files of a local package and their hash.

    Args:
        folder: the package.
        root: the project folder, which may hold a ``.builderignore``.

    Raises:
        ConfigError: there are too many files, one cannot be read, or ``.builderignore`` is wrong.
    """
    folder, root = plain_path(folder), plain_path(root)
    try:
        untracked: list[str] = []
        files = _checked(folder, sorted(_files(folder, root, untracked)))
        return ProjectTree(folder, files, _digest(folder, files), tuple(sorted(untracked)))
    except OSError as e:
        hint = "check its permissions, or name it in .builderignore"
        raise ConfigError(f"{e.filename or folder}: cannot be read: {e.strerror}", hint) from None


def _files(folder: Path, root: Path, untracked: list[str]) -> Iterator[str]:
    """Yield the files of a package; ``untracked`` receives modules that git does not track."""
    ignore = Ignore(root)
    tracked = tracked_files(folder)
    if not tracked or not any(name.rpartition("/")[2] in PROJECT_FILES for name in tracked):
        tracked = None

    def is_left_out(name: str, path: Path, is_folder: bool, patterns: GitIgnore) -> bool:
        if _is_builders(path, root, folder) or ignore.leaves_out(path, is_folder=is_folder):
            return True
        is_ignored = patterns.leaves_out(path, is_folder=is_folder)
        if tracked is None:
            return is_ignored
        beside = f"{name.removesuffix(path.name)}__init__.py"
        if name.endswith(".py") and name not in tracked and beside in tracked and not is_ignored:
            untracked.append(name)
        return name not in tracked

    def walk(prefix: str, patterns: GitIgnore) -> Iterator[str]:
        if prefix.count("/") > 100:
            hint = "name the folder in .builderignore"
            raise ConfigError(f"{folder}: more than 100 folders deep", hint)
        for entry in os.scandir(folder / prefix):
            name, path = prefix + entry.name, Path(entry.path)
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_left_out(name, path, is_folder, patterns):
                continue
            if is_folder:
                yield from walk(f"{name}/", patterns.below(path))
            elif entry.is_symlink() or entry.is_file():
                yield name

    return walk("", GitIgnore.of(folder))


def _is_builders(path: Path, *tops: Path) -> bool:
    names = (path.relative_to(top).as_posix() for top in tops if path.is_relative_to(top))
    return any(_BUILDERS.fullmatch(name) for name in names)


def _checked(folder: Path, files: list[str]) -> tuple[str, ...]:
    """Return the files, if there are not too many."""
    size = sum((folder / name).lstat().st_size for name in files)
    if len(files) > MAX_FILES or size > MAX_BYTES:
        raise ConfigError(
            f"{folder}: {len(files)} files with {human_bytes(size)}: "
            f"a package may have {MAX_FILES} files and {human_bytes(MAX_BYTES)}",
            "name the folders with data in .gitignore or .builderignore",
        )
    return tuple(files)


def _digest(folder: Path, files: tuple[str, ...]) -> str:
    total = hashlib.sha256()
    for name in files:
        path = folder / name
        if path.is_symlink():
            kind, content = "link", hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
        else:
            kind, content = "program" if _is_executable(path) else "file", _sha256(path)
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        total.update(canonical_json([shown, kind, content]) + b"\n")
    return total.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXUSR)


def _changed(folder: Path) -> ConfigError:
    problem = f"{folder}: files were changed while they were copied"
    return ConfigError(problem, "run the command again")
