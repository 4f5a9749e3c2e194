"""The folders of the cache, each with its purpose and its rule for ``builder cache prune``.

Every module takes the path of its folder from :class:`CacheFolders`, and pruning iterates over
:data:`FOLDERS`. A test compares the two, so no folder is forgotten.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class PruneRule(Enum):
    """What ``builder cache prune`` removes from a folder; "old" is last used before its time."""

    RECORDS = "each record that names a missing blob"
    FILES = "each old file, also in folders below"
    ENTRIES = "each old file or folder directly in the folder"
    ITEMS = "blobs, unpacked images and uv's cache, see builder.store.prune"
    NEVER = "nothing: the folder is small, or another build may use it"


@dataclass(frozen=True)
class CacheFolder:
    """One folder in ``BUILDER_CACHE``."""

    name: str
    purpose: str
    rule: PruneRule


FOLDERS = tuple(
    CacheFolder(name, purpose, rule)
    for name, purpose, rule in (
        ("blobs", "packages, layers and base images, by digest", PruneRule.ITEMS),
        ("layers", "records: which blobs are the layers of which packages", PruneRule.RECORDS),
        ("bytecode", "records: the compiled modules of which packages", PruneRule.RECORDS),
        ("wheels", "records: which wheel was built from which source", PruneRule.RECORDS),
        ("index", "records: which files are in each package", PruneRule.FILES),
        ("seen", "fingerprints of files outside the cache that were hashed", PruneRule.FILES),
        ("partial", "incomplete downloads, to be resumed", PruneRule.ENTRIES),
        ("names", "records: which PyPI project each conda package is", PruneRule.FILES),
        ("smoke", "records of passed smoke tests", PruneRule.FILES),
        ("reuse", "records of builds that reused layers of a registry", PruneRule.ENTRIES),
        ("unchanged", "records: what each build and publish has read", PruneRule.FILES),
        ("unverified", "records: published blobs that were not read back yet", PruneRule.NEVER),
        (
            "verified",
            "records: when the newest verified release of a tag was signed",
            PruneRule.NEVER,
        ),
        ("repodata", "indexes of conda channels", PruneRule.FILES),
        ("rootfs", "unpacked images, for the runners userns and apptainer", PruneRule.ITEMS),
        ("sif", "SIFs that were built, and the last build of each engine", PruneRule.ENTRIES),
        ("tmp", "files that are being written; sweep removes leftovers", PruneRule.ENTRIES),
        ("uv", "uv's own cache: package indexes and unpacked wheels", PruneRule.ITEMS),
        ("git", "git repositories of source packages", PruneRule.ENTRIES),
        ("bases", "records: which image a base reference names", PruneRule.RECORDS),
        ("channels", "the Python of base images, as a package (python: base)", PruneRule.NEVER),
        ("tools", "programs that builds of wheels need", PruneRule.ENTRIES),
        ("logs", "the log of each command, for bug reports", PruneRule.FILES),
        ("locks", "lock files between builds", PruneRule.NEVER),
    )
)


class CacheFolders:
    """The paths of the folders of one cache; :data:`FOLDERS` explains each."""

    def __init__(self, root: Path) -> None:
        self.blobs = root / "blobs" / "sha256"
        self.layers = root / "layers"
        self.bytecode = root / "bytecode"
        self.wheels = root / "wheels"
        self.index = root / "index"
        self.seen = root / "seen"
        self.partial = root / "partial"
        self.names = root / "names"
        self.smoke = root / "smoke"
        self.unchanged = root / "unchanged"
        self.unverified = root / "unverified"
        self.reuse = root / "reuse"
        self.verified = root / "verified"
        self.repodata = root / "repodata"
        self.rootfs = root / "rootfs"
        self.sif = root / "sif"
        self.tmp = root / "tmp"
        self.uv = root / "uv"
        self.git = root / "git"
        self.bases = root / "bases"
        self.channels = root / "channels"
        self.tools = root / "tools"
        self.logs = root / "logs"
        self.locks = root / "locks"

    def sif_record(self, path: Path) -> Path:
        """Return the record of a SIF's digest. Its modification time is the SIF's last use."""
        return self.seen / f"sif-{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}"
