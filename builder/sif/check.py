"""Compares the partitions in a new SIF with their digests.

A SIF's own digest is made from the bytes that were written, so it cannot show that a bit had flipped in a
cached partition before. The partitions are therefore hashed as they are in the new file, except those that
this process has just made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ImageError
from builder.sif.partition import Partition
from builder.store.blobs import Store
from builder.store.files import CHUNK


class CorruptPartition(ImageError):
    """A partition does not match its digest. It was removed from the cache, if it was there."""

    def __init__(self, partition: Partition) -> None:
        self.is_base = partition.is_base
        """Whether it is of a base SIF, so that it cannot be made again."""
        hint = "copy or pull the base SIF again" if self.is_base else "run the command again"
        super().__init__(
            f"{partition.path} is corrupt: the partition {partition.name} does not match its digest", hint
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A partition in a new SIF."""

    partition: Partition
    start: int
    """Where it begins in the SIF, in bytes."""


def check_partitions(sif: Path, places: Sequence[Placed], store: Store, pool: ThreadPoolExecutor) -> None:
    """Compares the partitions in a SIF with their digests, and removes corrupt ones from the store.

    Partitions of a base SIF have no digests of their own: the base SIF is hashed instead.

    Raises:
        CorruptPartition: there is one.
    """
    checks = [(placed.partition, pool.submit(_matches, sif, placed, store)) for placed in places]
    corrupt = [partition for partition, check in checks if not check.result()]
    for partition in corrupt:
        if not partition.is_base:
            store.drop(partition.digest)
    if corrupt:
        raise CorruptPartition(corrupt[0])


def _matches(sif: Path, placed: Placed, store: Store) -> bool:
    partition = placed.partition
    if partition.is_base:
        return store.rehash(partition.path, partition.file_digest)
    if store.was_hashed(partition.path, partition.digest):
        return True
    return _digest_of_range(sif, placed.start, partition.size) == partition.digest


def _digest_of_range(file: Path, start: int, size: int) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as f:
        f.seek(start)
        while size and (data := f.read(min(size, CHUNK))):
            digest.update(data)
            size -= len(data)
    return f"sha256:{digest.hexdigest()}"
