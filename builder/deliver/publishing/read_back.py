"""Pushes an image and reads it back before any tag moves: the strongest check of all.

A registry may lose or damage what it was sent and report that it has it. So the bytes that a push
sent are read back and hashed, and nothing is stored. Blobs that were there before have their size
checked by the push; they are read only if another publish from this machine sent them and has not
read them back: it was killed, or still runs.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.core.model import Image
from builder.core.store.folders import CacheFolders
from builder.core.store.records import Record
from builder.formats.oci.image import image_blobs
from builder.formats.registry.push import PushReport

from .destination import PublishDestination

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verified:
    """Blobs that were read back and had the right digests."""

    blobs: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Unverified:
    """Records the blobs that a publish has sent and not read back yet; survives a killed process.

    Each publish has its own record, so two that run at once do not remove each other's.
    Repositories of a registry share blobs by mounts, so the records of all of them count.

    Args:
        cache: the cache.
        name: of the destination.
        image: the image.
    """

    def __init__(self, cache: Path, name: str, image: Image) -> None:
        self._folder = CacheFolders(cache).unverified
        if name.startswith("oci:"):
            name = shared = f"oci:{Path(name.removeprefix('oci:')).absolute()}"
        else:
            shared = name.partition("/")[0]
        self._shared = _short_hash(shared)
        self._prefix = f"{self._shared}-{_short_hash(name)}"
        self._own = self._folder / f"{self._prefix}-{secrets.token_hex(8)}.json"
        self._blobs = {blob.digest for blob in image_blobs(image)}

    def begin(self) -> None:
        """Record all blobs of the image: which of them are sent is not known yet."""
        Record(self._own, list[str]).write(sorted(self._blobs))

    def left(self) -> frozenset[str]:
        """Return digests that other publishes have sent and not read back, or are sending now."""
        records = [digests for path, digests in self._records(self._shared) if path != self._own]
        return frozenset(digest for digests in records for digest in digests)

    def end(self, verified: Collection[str]) -> None:
        """Remove this record, and verified digests from other records of this destination."""
        self._own.unlink(missing_ok=True)
        for path, digests in self._records(self._prefix):
            left = digests - set(verified)
            if not left:
                path.unlink(missing_ok=True)
            elif left != digests:
                Record(path, list[str]).write(sorted(left))

    def _records(self, prefix: str) -> Iterator[tuple[Path, set[str]]]:
        """Yield all records with a prefix; a damaged one may be of any blob."""
        for path in sorted(self._folder.glob(f"{prefix}-*.json")):
            found = Record(path, list[str]).read()
            yield path, self._blobs if found is None else set(found)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def push_and_read_back(
    destination: PublishDestination, image: Image, cache: Path
) -> tuple[PushReport, Verified]:
    """Push an image, and read back the blobs that the push sent.

    Where all blobs were there already, and were read back then, nothing is read.

    Args:
        destination: where the image goes.
        image: the image.
        cache: records what was not read back yet.

    Raises:
        RegistryError, ImageError, HashMismatch: the push failed, or the destination does not return
            what was sent.
    """
    unverified = Unverified(cache, destination.name, image)
    unverified.begin()
    pushed = destination.push(image)
    sent, mounted = pushed.blobs_sent, pushed.blobs_mounted
    log.info("pushed to %s: %d blobs sent, %d mounted", destination.name, sent, mounted)
    started = time.monotonic()
    wanted = {blob.digest for blob in pushed.sent} | unverified.left()
    blobs = [blob for blob in image_blobs(image) if blob.digest in wanted]
    if blobs:
        destination.read_back(image, blobs)
    unverified.end([blob.digest for blob in blobs])
    size = sum(blob.size for blob in blobs)
    log.info("read back %d blobs, %d bytes, from %s", len(blobs), size, destination.name)
    return pushed, Verified(len(blobs), size, round(time.monotonic() - started, 3))
