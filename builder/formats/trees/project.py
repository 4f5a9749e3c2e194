"""The files of a Python package in the user's project: their names, their hash, and a copy.

They are the files that git tracks, if it tracks the package's modules and its ``pyproject.toml`` or
``setup.py``; else those that a build may read and no ``.gitignore`` names. What
:mod:`builder.formats.trees.ignore` omits from images is omitted here too, and so is what builder
writes next to the package: with it each lock would change the files that it was made from.

The hash covers paths, contents, symlinks and whether a file is executable. It does not depend on
times, on the other permission bits, and on the order in which a folder is listed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.core.datafiles import any_of
from builder.core.errors import ConfigError
from builder.core.model import canonical_json
from builder.core.store.files import sha256_file, space_errors
from builder.core.store.unchanged import look
from builder.core.text import human_bytes

from .ignore import GitIgnore, Ignore, plain_path
from .inside import PROJECT_FILES
from .tracked import tracked_files

#: Files of one local package.
MAX_FILES = 100_000
#: Bytes of all files of one local package, which are read whenever a lock is checked.
MAX_BYTES = 4 << 30
#: Files that tell a build what it reads.
_BUILD_FILES = (*PROJECT_FILES, "setup.cfg", "MANIFEST.in", "CMakeLists.txt", "meson.build")
#: Files that a build may read although no other file names them.
_SOURCE = any_of(__file__, "source_files.txt", re.IGNORECASE)
_WORD = r"(?<![\w-])%s(?![\w-])"
#: Paths that builder or its user writes for builder, relative to the folder of the project or of the package,
#: which may have been a project once.
_BUILDERS = any_of(__file__, "own_files.txt")


@dataclass(frozen=True, slots=True)
class ProjectTree:
    """The files of a local package."""

    folder: Path
    files: tuple[str, ...]
    """Paths of files and symlinks, relative to the folder and sorted."""
    digest: str
    """A SHA-256 over all of them, 64 hex digits."""
    untracked: tuple[str, ...] = ()
    """Files and folders of its packages that git does not track: they are not in ``files``."""

    @property
    def untracked_note(self) -> str:
        """A note with the line that adds :attr:`untracked`; empty if there are none."""
        if not self.untracked:
            return ""
        add = f"git -C {shlex.quote(str(self.folder))} add {shlex.join(self.untracked)}"
        return f"not in the image, because git does not track it; to add it: {add}"

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
    """Yield the files of a package; ``untracked`` receives what git does not track beside them."""
    ignore = Ignore(root)
    tracked = _tracked(folder)
    packages = {name.rpartition("/")[0] for name in tracked if name.endswith("/__init__.py")}
    packages |= {name.rpartition("/")[0] for name in packages} - {""}
    takes = _for_build(folder)

    def is_left_out(name: str, path: Path, is_folder: bool, patterns: GitIgnore) -> bool:
        if _is_builders(path, root, folder) or ignore.leaves_out(path, is_folder=is_folder):
            return True
        if name in tracked or patterns.leaves_out(path, is_folder=is_folder):
            return name not in tracked
        if tracked and (name.rpartition("/")[0] in packages or look(path / "__init__.py").exists()):
            untracked.append(name)
        return bool(tracked) or ("/" not in name and not takes(path))

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


def _tracked(folder: Path) -> frozenset[str]:
    """Return what git tracks of a package; nothing if that is not yet a package with modules."""
    tracked = tracked_files(folder) or frozenset()
    names = {name.rpartition("/")[2] for name in tracked}
    has_modules = any(name.endswith(".py") for name in names - {"setup.py"})
    return tracked if has_modules and not names.isdisjoint(PROJECT_FILES) else frozenset()


def _for_build(folder: Path) -> Callable[[Path], bool]:
    """Return the rule for entries at the top of a package without git: those that a build may read.

    These are sources, folders that hold one, and what a file of the build names. So what a run
    writes (``model.txt``, ``outputs/``) is no part of the package.
    """
    files = [folder / name for name in _BUILD_FILES if (folder / name).is_file()]
    text = "\n".join(file.read_text(errors="replace") for file in files)

    def takes(path: Path) -> bool:
        if _SOURCE.fullmatch(path.name) or re.search(_WORD % re.escape(path.name), text):
            return True
        depths = ("*", "*/*", "*/*/*", "*/*/*/*")
        found = (inner for depth in depths for inner in path.glob(depth))
        return path.is_dir() and any(_SOURCE.fullmatch(inner.name) for inner in found)

    return takes


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
            kind = "program" if _is_executable(path) else "file"
            content = sha256_file(path).removeprefix("sha256:")
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        total.update(canonical_json([shown, kind, content]) + b"\n")
    return total.hexdigest()


def _is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXUSR)


def _changed(folder: Path) -> ConfigError:
    problem = f"{folder}: files were changed while they were copied"
    return ConfigError(problem, "run the command again")
