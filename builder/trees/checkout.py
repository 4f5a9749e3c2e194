"""What git lists of a folder that others may have made: the files that it tracks, and new ones.

Of the checkout, git reads the index, ``info/exclude`` and the files ``.gitignore``. It works in a repository
of builder's own (:mod:`builder.git`)::

    TOP/.git/config         not read: it can name programs
    TOP/.git/index          <- TMP/git/index           links; the rest of TMP/git is new and empty
    TOP/.git/info/exclude   <- TMP/git/info/exclude

So it does not matter who owns the checkout: git's ``safe.directory`` guards the settings that are not read. A
bare repository among the files is a folder like any other.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builder.errors import UsageError
from builder.git import Git, GitError

#: Bytes of a file that holds the path of a folder: ``.git`` of a worktree or submodule, and ``commondir``.
_MAX_POINTER = 4096


def git_files(folder: Path) -> list[str] | None:
    """Return the names that git tracks below a folder and in its submodules, and those of new files, sorted.

    None if the folder is in no checkout or is ignored there, or if git is missing or cannot read the index.
    """
    real = folder.resolve()
    names: list[str] = []
    pending = [""]
    try:
        while pending:
            prefix = pending.pop()
            for name in _listed(real / prefix):
                path = Path(f"{real}/{prefix}{name}")
                names.append(f"{prefix}{name}")
                if path.is_dir() and path.resolve() == path and _git_folder(path):  # a submodule
                    pending.append(f"{prefix}{name}/")
    except (GitError, UsageError, OSError):
        return None
    return sorted(names) or None


def _listed(folder: Path) -> Iterator[str]:
    top = next((place for place in (folder, *folder.parents) if _git_folder(place)), folder)
    source = _git_folder(top)
    if source is None:
        return
    with tempfile.TemporaryDirectory(prefix="builder-git-") as name:
        place = Path(name) / "git"
        git = Git(place)
        for path in source.glob("*index*"):  # an index may share a part with others: sharedindex.HASH
            (place / path.name).symlink_to(path)
        common = source / "commondir"  # of a worktree
        (place / "info").mkdir()
        excluded = (source / _pointer(common) if common.is_file() else source) / "info/exclude"
        (place / "info/exclude").symlink_to(excluded)
        command = (f"--work-tree={top}", "-C", str(folder), "ls-files", "-z", "--cached", "--others")
        yield from git.records(*command, "--exclude-standard", "--", ".")


def _git_folder(top: Path) -> Path | None:
    """Return the folder with the index of a checkout; None if ``top`` is not the top folder of one.

    The ``.git`` of a third person does not count: in a folder like /tmp it would decide about files below it.
    """
    place = top / ".git"
    if not place.exists() or place.lstat().st_uid not in (os.geteuid(), 0, top.stat().st_uid):
        return None
    if place.is_file():
        place = top / _pointer(place).removeprefix("gitdir: ")
    return place if (place / "HEAD").is_file() else None


def _pointer(path: Path) -> str:
    with path.open("rb") as file:
        return os.fsdecode(file.read(_MAX_POINTER)).strip()
