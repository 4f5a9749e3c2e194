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
    """What ``builder cache prune`` removes from a folder. "Old" means: last used before the given time."""

    BLOBS = "each old blob, with its fingerprint"
    RECORDS = "each record that names a missing blob"
    FILES = "each old file, also in folders below"
    ENTRIES = "each old file or folder directly in the folder"
    UNPACKED = "each image that no process uses and that was not used for a day"
    UV = "everything, if uv created its cache before the given time (its files refer to each other)"
    NEVER = "nothing: the folder is small, or another build may use it"


@dataclass(frozen=True)
class CacheFolder:
    """One folder in ``BUILDER_CACHE``."""

    name: str
    purpose: str
    rule: PruneRule


#: Blobs come first: pruning the records that name missing blobs has to follow pruning the blobs.
FOLDERS = (
    CacheFolder("blobs", "packages, layers and base images, by digest", PruneRule.BLOBS),
    CacheFolder("layers", "records: which blobs are the layers of which packages", PruneRule.RECORDS),
    CacheFolder("bytecode", "records: the compiled modules of which packages", PruneRule.RECORDS),
    CacheFolder("wheels", "records: which wheel was built from which source", PruneRule.RECORDS),
    CacheFolder("index", "records: which files are in each package", PruneRule.FILES),
    CacheFolder("seen", "fingerprints of files outside the cache that were hashed", PruneRule.FILES),
    CacheFolder("partial", "incomplete downloads, to be resumed", PruneRule.FILES),
    CacheFolder("names", "records: which PyPI project each conda package is", PruneRule.FILES),
    CacheFolder("smoke", "records of passed smoke tests", PruneRule.FILES),
    CacheFolder("unverified", "records: published blobs that were not read back yet", PruneRule.NEVER),
    CacheFolder("repodata", "indexes of conda channels", PruneRule.FILES),
    CacheFolder("rootfs", "unpacked images, for the runners userns and apptainer", PruneRule.UNPACKED),
    CacheFolder("sif", "SIFs that were built, and the last build of each engine", PruneRule.ENTRIES),
    CacheFolder("tmp", "files that are being written", PruneRule.ENTRIES),
    CacheFolder("uv", "uv's own cache: package indexes and unpacked wheels", PruneRule.UV),
    CacheFolder("git", "git repositories of source packages", PruneRule.ENTRIES),
    CacheFolder("bases", "records: which image a base reference names", PruneRule.RECORDS),
    CacheFolder("channels", "the Debian channel", PruneRule.NEVER),
    CacheFolder("tools", "programs that the engines docker, apptainer and cotainr need", PruneRule.ENTRIES),
    CacheFolder("logs", "the log of each command, for bug reports", PruneRule.FILES),
    CacheFolder("locks", "lock files between builds", PruneRule.NEVER),
)


@dataclass(frozen=True)
class CacheFolders:
    """The paths of the folders of one cache; :data:`FOLDERS` explains each."""

    root: Path

    @property
    def blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

    @property
    def layers(self) -> Path:
        return self.root / "layers"

    @property
    def bytecode(self) -> Path:
        return self.root / "bytecode"

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def seen(self) -> Path:
        return self.root / "seen"

    @property
    def partial(self) -> Path:
        return self.root / "partial"

    @property
    def names(self) -> Path:
        return self.root / "names"

    @property
    def smoke(self) -> Path:
        return self.root / "smoke"

    @property
    def unverified(self) -> Path:
        return self.root / "unverified"

    @property
    def repodata(self) -> Path:
        return self.root / "repodata"

    @property
    def rootfs(self) -> Path:
        return self.root / "rootfs"

    @property
    def sif(self) -> Path:
        return self.root / "sif"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def uv(self) -> Path:
        return self.root / "uv"

    def sif_record(self, path: Path) -> Path:
        """The record of a SIF's digest. Its modification time is when the SIF was last used."""
        return self.seen / f"sif-{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}"

    @property
    def git(self) -> Path:
        return self.root / "git"

    @property
    def bases(self) -> Path:
        return self.root / "bases"

    @property
    def channels(self) -> Path:
        return self.root / "channels"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def locks(self) -> Path:
        return self.root / "locks"
