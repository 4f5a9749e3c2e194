"""The folders of the cache, each with its purpose and its rule for ``builder cache prune``.

Every module takes the path of its folder from :class:`CacheFolders`, and pruning iterates over
:data:`FOLDERS`, its attributes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from enum import Enum
from pathlib import Path

from builder.core.errors import BuilderError
from builder.core.settings import is_trusted, user_name


class PruneRule(Enum):
    """What ``builder cache prune`` removes from a folder; "old" is last used before its time."""

    RECORDS = "each record that names a missing blob"
    FILES = "each old file, also in folders below"
    ENTRIES = "each old file or folder directly in the folder"
    ITEMS = "blobs, unpacked images and uv's cache, see builder.core.store.prune"
    NEVER = "nothing: the folder is small, or another build may use it"


class CacheFolder:
    """One folder in ``BUILDER_CACHE``; as an attribute of :class:`CacheFolders`, its path.

    Args:
        rule: what ``builder cache prune`` removes.
        below: the folder in it that holds everything.
    """

    name: str

    def __init__(self, rule: PruneRule, below: str = "") -> None:
        self.rule = rule
        self._below = below

    def __set_name__(self, owner: type[CacheFolders], name: str) -> None:
        self.name = name

    def __get__(self, folders: CacheFolders, owner: type[CacheFolders]) -> Path:
        return folders.root / self.name / self._below


class CacheFolders:
    """The paths of the folders of one cache, which is created for this user alone.

    Whoever writes to the cache decides what a build contains.

    Raises:
        BuilderError: it is another user's, who is not root, or others may write to it.
    """

    blobs = CacheFolder(PruneRule.ITEMS, "sha256")
    """Packages, layers and base images, by digest."""
    layers = CacheFolder(PruneRule.RECORDS)
    """Records: which blobs are the layers of which packages."""
    bytecode = CacheFolder(PruneRule.RECORDS)
    """Records: the compiled modules of which packages."""
    wheels = CacheFolder(PruneRule.RECORDS)
    """Records: which wheel was built from which source."""
    index = CacheFolder(PruneRule.FILES)
    """Records: which files are in each package."""
    seen = CacheFolder(PruneRule.FILES)
    """Fingerprints of files outside the cache that were hashed."""
    partial = CacheFolder(PruneRule.ENTRIES)
    """Incomplete downloads, to be resumed."""
    names = CacheFolder(PruneRule.FILES)
    """Records: which PyPI project each conda package is."""
    smoke = CacheFolder(PruneRule.FILES)
    """Records of passed smoke tests."""
    reuse = CacheFolder(PruneRule.ENTRIES)
    """Records of builds that reused layers of a registry."""
    unchanged = CacheFolder(PruneRule.FILES)
    """Records: what each build and publish has read."""
    unverified = CacheFolder(PruneRule.NEVER)
    """Records: published blobs that were not read back yet."""
    verified = CacheFolder(PruneRule.NEVER)
    """Records: when the newest verified release of a tag was signed."""
    repodata = CacheFolder(PruneRule.FILES)
    """Indexes of conda channels."""
    rootfs = CacheFolder(PruneRule.ITEMS)
    """Unpacked images, for the runners userns and apptainer."""
    sif = CacheFolder(PruneRule.ENTRIES)
    """SIFs that were built, and the last build of each engine."""
    tmp = CacheFolder(PruneRule.ENTRIES)
    """Files that are being written; sweep removes leftovers."""
    uv = CacheFolder(PruneRule.ITEMS)
    """The cache of uv itself: package indexes and unpacked wheels."""
    git = CacheFolder(PruneRule.ENTRIES)
    """Git repositories of source packages."""
    bases = CacheFolder(PruneRule.RECORDS)
    """Records: which image a base reference names."""
    channels = CacheFolder(PruneRule.NEVER)
    """The Python of base images, as a package (python: base)."""
    tools = CacheFolder(PruneRule.ENTRIES)
    """Programs that builds of wheels need."""
    logs = CacheFolder(PruneRule.FILES)
    """The log of each command, for bug reports."""
    locks = CacheFolder(PruneRule.NEVER)
    """Lock files between builds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        _require_own(root)

    def sif_record(self, path: Path) -> Path:
        """Return the record of a SIF's digest. Its modification time is the SIF's last use."""
        return self.seen / f"sif-{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}"


FOLDERS = tuple(one for one in vars(CacheFolders).values() if isinstance(one, CacheFolder))


def _require_own(root: Path) -> None:
    """Create the cache if it does not exist; refuse it as :class:`CacheFolders` says."""
    try:
        if not root.exists():
            for folder in reversed((root, *root.parents)):  # ~/.cache, too
                folder.mkdir(0o700, exist_ok=True)
        info, is_own = root.stat(), is_trusted(root)
        if is_own and _is_closed(root, info.st_mode):
            return
    except OSError:  # reading finds nothing, and writing reports it
        return
    hint = f"chmod 700 {shlex.quote(str(root))}, or set BUILDER_CACHE to another folder"
    if not is_own or info.st_mode & stat.S_ISVTX or os.geteuid() not in (0, info.st_uid):
        own = shlex.quote(str(root / user_name())) if os.access(root, os.W_OK) else "FOLDER"
        hint = f"use one of your own: export BUILDER_CACHE={own}"
    raise BuilderError(f"another user owns the cache {root}, or may write to it", hint)


def _is_closed(root: Path, mode: int) -> bool:
    """Return whether others may not write to a folder, nor to those in it, if they can reach them."""
    below = [root / one.name for one in FOLDERS] if mode & 0o011 else []
    paths = [root, *filter(Path.exists, below)]
    return is_trusted(*paths) and not any(path.stat().st_mode & 0o022 for path in paths)
