"""Opens a source of any kind as an unpacked tree in a temporary folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from builder.core.errors import ConfigError, FetchError, HashMismatch
from builder.core.model import LockedSource
from builder.core.progress import working
from builder.core.redact import redact, userinfo, without_userinfo
from builder.core.store.files import space_errors
from builder.core.store.temporary import temporary_folder
from builder.core.workspace import Workspace
from builder.formats.net.urlvariables import expanded
from builder.formats.trees.inside import PROJECT_FILES
from builder.formats.trees.project import project_tree
from builder.lock.sourcerecords import locked_url
from builder.lock.sourcespec import is_project
from builder.lock.spec import SourceSpec
from builder.lock.urls import filename_of

from .archive import check_hash, fetch_archive, unpack_archive
from .objects import Unpacker
from .repository import open_repository
from .target import Target, only_folder

log = logging.getLogger(__name__)

_LOCK_AGAIN = "lock again: builder lock"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """An unpacked source, which the caller may change."""

    path: Path
    """The folder of the package: the one with pyproject.toml or setup.py."""
    locked: LockedSource
    """The pinned source; ``build`` is empty."""
    root: Path
    """The whole tree: ``path``, or a folder above it where the source names a subdirectory."""


@dataclass(frozen=True, slots=True)
class _Opening:
    """One call of :func:`open_source`."""

    spec: SourceSpec
    url: str
    """With the values of its variables: may contain credentials."""
    root: Path
    work: Workspace
    pinned: LockedSource | None
    target: Path
    """The folder into which the source is unpacked; it does not exist yet."""

    @property
    def shown(self) -> str:
        """The source for messages."""
        name = self.spec.name or self.spec.shown
        return f"{self.spec.where}: {name}" if self.spec.where else name


@contextmanager
def open_source(
    spec: SourceSpec, root: Path, work: Workspace, pinned: LockedSource | None = None
) -> Iterator[SourceTree]:
    """Unpack a source into a temporary folder, which is removed at the end.

    Args:
        spec: the source.
        root: the project folder, to which the paths of local sources are relative.
        pinned: the source of a lock, which has to be opened exactly, but for a folder, which has
            its files of today; None: what ``spec`` names today.

    Raises:
        FetchError: the source is not available, or is damaged, hostile or too large.
        HashMismatch: it is not the pinned one, or has not the hash that the requirement names.
        ConfigError: a local source does not exist, or the source holds no package.
        UsageError: the program git is needed, and is not installed.
        SpaceError: the disk is full.
    """
    if spec.editable and pinned is None:
        problem = "is installed as a normal package: an image has no checkout"
        work.reporter.note(f"{spec.where}: -e {spec.shown} {problem}")
    with (
        space_errors(work.settings.tmpdir),
        temporary_folder(work.settings.tmpdir, 0o700) as folder,
    ):
        target = folder / "source"
        opening = _Opening(spec, url_of(spec), root, work, pinned, target)
        with working(work.reporter, f"opening {spec.name or spec.shown}"):
            tree, locked = _OPENERS[spec.kind](opening)
        if pinned is not None:
            locked = replace(locked, describe=pinned.describe)
        yield SourceTree(_package(opening, tree), locked, tree)


def url_of(spec: SourceSpec) -> str:
    """Return the URL to fetch. Only the user's own files have variables: a lock cannot name one."""
    if "$" not in spec.url or "://" not in spec.url:
        return spec.url
    if spec.where:
        return expanded(spec.url, spec.where)
    return without_userinfo(spec.url.replace(userinfo(spec.url), "", 1))


def _git(opening: _Opening) -> tuple[Path, LockedSource]:
    spec, pinned = opening.spec, opening.pinned
    shown = redact(spec.url)
    opener = partial(open_repository, work=opening.work)
    unpacker = Unpacker(Target(opening.target, shown), opener)
    with opener(opening.url) as repository:
        if pinned is None:
            commit = repository.commit_of(spec.revision)
        else:
            commit = pinned.commit
            repository.require(commit)
        tree = repository.git.text("rev-parse", "--verify", f"{commit}^{{tree}}")
        if pinned is not None and tree != pinned.tree:
            raise HashMismatch(
                f"{opening.shown}: commit {commit} has the tree {tree}, the lock has {pinned.tree}",
                _LOCK_AGAIN,
            )
    unpacker.unpack(opening.url, commit)
    unpacker.target.finish()
    log.info("%s: %s is commit %s", opening.shown, redact(opening.url), commit)
    url = locked_url(spec.url)
    locked = LockedSource("git", url, commit=commit, tree=tree, subdirectory=spec.subdirectory)
    return opening.target, locked


def _archive(opening: _Opening) -> tuple[Path, LockedSource]:
    spec, pinned = opening.spec, opening.pinned
    sha256 = pinned.sha256 if pinned else spec.sha256
    if "://" in opening.url:
        name = spec.name or filename_of(opening.url)
        path, found = fetch_archive(opening.url, sha256, name, opening.work)
    else:
        path = opening.root / spec.url
        if not path.is_file():
            hint = "restore it, or correct the path"
            raise ConfigError(f"{opening.shown}: {path} does not exist", hint)
        found = check_hash(path, sha256, f"{opening.shown}: {path}")
    unpack_archive(path, filename_of(opening.url), opening.target)
    locked = LockedSource(spec.kind, redact(spec.url), sha256=found, subdirectory=spec.subdirectory)
    return only_folder(opening.target), locked


def _local(opening: _Opening) -> tuple[Path, LockedSource]:
    spec, folder = opening.spec, opening.root / opening.spec.url
    if not folder.is_dir():
        hint = "restore it, or correct the path"
        raise ConfigError(f"{opening.shown}: {folder} does not exist", hint)
    tree = project_tree(folder, opening.root)
    if opening.pinned is None and tree.untracked_note:
        opening.work.reporter.note(f"{opening.shown}: {tree.untracked_note}")
    tree.copy_to(opening.target)
    locked = LockedSource("local", spec.url, tree=tree.digest, subdirectory=spec.subdirectory)
    return opening.target, locked


_OPENERS = {"git": _git, "archive": _archive, "sdist": _archive, "local": _local}


def _package(opening: _Opening, folder: Path) -> Path:
    """Return the folder of the package in the unpacked source."""
    spec = opening.spec
    path = folder / spec.subdirectory
    if path.is_dir() and not path.resolve().is_relative_to(folder.resolve()):
        raise FetchError(
            f"{opening.shown}: subdirectory {spec.subdirectory} leads out of the source",
            "remove it",
        )
    if is_project(path):
        return path
    files = sorted(file for name in PROJECT_FILES for file in folder.glob(f"*/{name}"))
    where = f" in {spec.subdirectory}" if spec.subdirectory else ""
    hint = "name a repository or an archive of a Python package"
    if files:
        hint = f"name the package's folder: #subdirectory={files[0].parent.name}"
    raise ConfigError(f"{opening.shown}: neither pyproject.toml nor setup.py{where}", hint)
