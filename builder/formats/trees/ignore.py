"""Files that are omitted when a folder of the project is copied.

Three things are always omitted: what tools write into a project (:data:`TOOLS`), what builder
itself writes (:data:`OWN`), and folders that a tool has marked as its own (:data:`MARKS`). The
project's ``.builderignore`` adds patterns in gitignore's syntax. A folder that is named itself is
copied, whatever its name.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from builder.core.errors import ConfigError
from builder.core.settings import is_trusted
from builder.core.store.reading import Reader
from builder.core.store.unchanged import look

from .inside import check_inside

#: The file of patterns, in the project folder. It is not copied itself.
IGNORE_FILE = ".builderignore"
#: Names that are omitted in every folder.
TOOLS = frozenset({"__pycache__", ".git", ".venv", ".cache", ".builder", ".DS_Store", IGNORE_FILE})
#: What builder writes into the project: an image would contain its predecessor, and the editor's schema of
#: recipes changes with builder's version.
OWN = frozenset({"dist", "reports", "recipes/.schema.json"})
#: Files and folders inside an OCI image layout, builder's cache, a virtual environment, or another cache.
MARKS = ("oci-layout", "blobs/sha256", "pyvenv.cfg", "CACHEDIR.TAG")
#: A list of patterns has at most this many bytes.
_MAX_BYTES = 1 << 20
#: In an expression of pathspec: ``*`` with what is between it and the next one in the same name.
_STAR = re.compile(r"\[\^/\]\*((?:[^/\[]|\[(?!\^/)|\[\^/\](?!\*))*+)(?=\[\^/\]\*)")
#: In an expression of pathspec: ``/**``, and ``**/`` at the beginning.
_FOLDERS, _ANY_FOLDER = "(?:/.+)?", "^(?:.+/)?"
#: The beginning of ``[!0-9]``, which is no ``/`` for git, and may be one for pathspec 1.1.
_NEGATED = re.compile(r"\[\^(?!/\])")
_READER = Reader(ConfigError, "write one pattern a line, as in .gitignore", most=_MAX_BYTES)


class Ignore:
    """The rules that omit files from copies of a project's folders.

    Args:
        root: the project folder.

    Raises:
        ConfigError: ``.builderignore`` cannot be read, or a line is not a pattern.
    """

    def __init__(self, root: Path) -> None:
        self._root = plain_path(root)
        self.file = self._root / IGNORE_FILE
        check_inside(self.file, (self._root,), "a symlink")
        self._lines = _read_lines(self.file)
        patterns = list(map(_pattern, self._lines))
        if None in patterns:
            line = patterns.index(None)
            problem = f"{self.file}:{line + 1}: {self._lines[line]!r} is not a pattern"
            raise ConfigError(problem, "write it as in .gitignore: /data/ or *.csv")
        self._spec = GitIgnoreSpec(filter(None, patterns))

    def leaves_out(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether a file or folder that was found in a copied folder is omitted."""
        if path.name in TOOLS or path in {self._root / name for name in OWN}:
            return True
        if is_folder and any(look(path / mark).exists() for mark in MARKS):
            return True
        return bool(self._check(path, is_folder)[0])

    def rule_for(self, path: Path, *, is_folder: bool) -> str:
        """Return the line of ``.builderignore`` that omits a path, as ``FILE:LINE: PATTERN``."""
        included, index = self._check(path, is_folder)
        if not included or index is None:
            return ""
        return f"{self.file}:{index + 1}: {self._lines[index]}"

    def allows(self, path: Path) -> bool:
        """Return whether a line ``!PATTERN`` includes a path."""
        return self._check(path, False)[0] is False

    def _check(self, path: Path, is_folder: bool) -> tuple[bool | None, int | None]:
        """Return whether a path is omitted (None: no pattern), and the deciding line's index."""
        if path == self._root or not path.is_relative_to(self._root):
            return None, None
        text = path.relative_to(self._root).as_posix() + ("/" if is_folder else "")
        found = self._spec.check_file(text)
        return found.include, found.index


@dataclass(frozen=True, slots=True)
class GitIgnore:
    """The files ``.gitignore`` from the top of a checkout down to a folder."""

    specs: tuple[tuple[Path, GitIgnoreSpec], ...] = ()
    """Each folder with its patterns, from the top down."""

    @classmethod
    def of(cls, folder: Path) -> GitIgnore:
        """Return the patterns for a folder's files; those above it only if they do not name it."""
        found, top = cls(), checkout_of(folder) or folder
        for parent in reversed([p for p in (folder, *folder.parents) if p.is_relative_to(top)]):
            if found.leaves_out(parent, is_folder=True):
                return cls().below(folder)
            found = found.below(parent)
        return found

    def below(self, folder: Path) -> GitIgnore:
        """Return the patterns for the files in a folder, given those for the folder itself."""
        path = folder / ".gitignore"
        if not look(path).is_file():
            return self
        spec = GitIgnoreSpec(filter(None, map(_pattern, _read_lines(path))))
        return GitIgnore((*self.specs, (folder, spec)))

    def leaves_out(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether a pattern names a path; the one in the lowest folder decides."""
        for folder, spec in reversed(self.specs):
            text = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
            include = spec.check_file(text).include
            if include is not None:
                return include
        return False


def checkout_of(folder: Path) -> Path | None:
    """Return the top of the checkout that a folder is in; None if it is in none.

    The ``.git`` of a third person does not count: in a folder like /tmp it would decide about files
    below it.
    """
    for parent in (folder, *folder.parents):
        git = look(parent / ".git")
        if git.exists() and (is_trusted(git) or git.lstat().st_uid == parent.stat().st_uid):
            return parent
    return None


def plain_path(path: Path) -> Path:
    """Return the absolute path without ``..``; symlinks are not followed."""
    return Path(os.path.normpath(path.absolute()))


def _read_lines(path: Path) -> list[str]:
    try:
        return _READER.text(path).splitlines()
    except FileNotFoundError:
        return []


def _pattern(line: str) -> GitIgnoreSpecPattern | None:
    """Return a pattern that takes linear time: for ``*a*a*b``, pathspec tries each pair of ``a``.

    What follows ``*`` or ``/**/`` is taken where it occurs first, if another one comes after it.
    None: the line is not a pattern.
    """
    try:
        regex, include = GitIgnoreSpecPattern.pattern_to_regex(line)
        first, *parts = _STAR.sub(r"(?>[^/]*?\1)", regex or "").split(_FOLDERS)
        if parts and first.startswith(_ANY_FOLDER):
            first = f"^(?>(?:[^/]++/)*?{first.removeprefix(_ANY_FOLDER)}(?=/))"
        inner = [f"(?>(?:/[^/]++)*?{part}(?=/))" for part in parts[:-1]]
        linear = _FOLDERS.join(["".join([first, *inner]), *parts[-1:]])
        linear = _NEGATED.sub("(?!/)[^", linear)
        return GitIgnoreSpecPattern(re.compile(linear) if regex else None, include)
    except (ValueError, re.error):
        return None
