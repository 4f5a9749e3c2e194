"""The folders of the cache, each with its purpose and the rule by which ``builder cache prune`` empties it.

Every module takes its folder from :class:`CacheFolders`, and pruning iterates over :data:`FOLDERS`, so no folder can be
forgotten. Removing any of them costs time, never a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class PruneRule(Enum):
    """What of a folder is removed when it was not used for a while."""

    BLOBS = "each blob by the time of its last use"
    RECORDS = "each record that names a blob which is gone"
    FILES = "each file by its own time"
    ENTRIES = "each file or folder directly below it by its own time"
    UV = "the whole folder, once uv began it too long ago: its parts point at each other"
    NEVER = "nothing: it is small, or another build may hold it"


@dataclass(frozen=True)
class CacheFolder:
    """One folder below ``BUILDER_CACHE``."""

    name: str
    purpose: str
    rule: PruneRule


FOLDERS = (
    CacheFolder("blobs", "packages, layers and base images, by digest", PruneRule.BLOBS),
    CacheFolder("layers", "records: which blobs are the layers of which packages", PruneRule.RECORDS),
    CacheFolder("index", "records: what is in each package", PruneRule.FILES),
    CacheFolder("seen", "fingerprints of files outside the cache that were hashed", PruneRule.FILES),
    CacheFolder("partial", "downloads to be resumed", PruneRule.FILES),
    CacheFolder("smoke", "records of passed smoke tests", PruneRule.FILES),
    CacheFolder("repodata", "what the conda solver knows of its channels", PruneRule.FILES),
    CacheFolder("rootfs", "images unpacked for the user-namespace runner", PruneRule.ENTRIES),
    CacheFolder("sif", "SIFs that were built, and the last build of each engine", PruneRule.ENTRIES),
    CacheFolder("tmp", "files being written", PruneRule.ENTRIES),
    CacheFolder("uv", "what uv knows of its indexes, and its unpacked wheels", PruneRule.UV),
    CacheFolder("bases", "records: which image a base reference holds", PruneRule.RECORDS),
    CacheFolder("channels", "the conda channel made from Debian's python packages", PruneRule.NEVER),
    CacheFolder("tools", "programs that the engines docker, apptainer and cotainr need", PruneRule.ENTRIES),
    CacheFolder("logs", "the log of each command, for reports of bugs", PruneRule.FILES),
    CacheFolder("locks", "file locks", PruneRule.NEVER),
)


@dataclass(frozen=True)
class CacheFolders:
    """The paths of the folders of one cache."""

    root: Path

    @property
    def blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

    @property
    def layers(self) -> Path:
        return self.root / "layers"

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
    def smoke(self) -> Path:
        return self.root / "smoke"

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
