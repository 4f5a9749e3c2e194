"""What is read back after a push, before any tag moves: the strongest check of all.

A registry may lose or damage what it was sent and say that it has it. So the bytes that a push sent are read
back and hashed, and nothing is stored. Blobs that were there before have their size checked by the push; they
are read only if the user wants it, or if an earlier publish from this machine sent them and ended before it
had read them back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.model import Descriptor, Image
from builder.publishing.places import Place
from builder.registry.push import PushReport
from builder.store.folders import CacheFolders
from builder.store.records import read_record, write_record

VerifyMode = Literal["sent", "all", "none"]


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read back and had the right digests."""

    mode: VerifyMode
    blobs: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Unverified:
    """Records which blobs of an image were sent to a place and not read back yet. Survives a killed process.

    Args:
        cache: the cache.
        place: where the image is published.
        image: the image.
    """

    def __init__(self, cache: Path, place: str, image: Image) -> None:
        self._folder = CacheFolders(cache).unverified
        self._prefix = hashlib.sha256(place.encode()).hexdigest()[:16]
        self._own = self._folder / f"{self._prefix}-{image.digest.partition(':')[2][:16]}.json"
        self._image = image

    def begin(self) -> frozenset[str]:
        """Records all blobs of the image; returns the digests that earlier publishes left unverified."""
        left = frozenset(digest for _, digests in self._records() for digest in digests)
        write_record(self._own, sorted(blob.digest for blob in _blobs(self._image)))
        return left

    def done(self, verified: Collection[str]) -> None:
        """The image is verified: removes its record, and these digests from those of other images."""
        self._own.unlink(missing_ok=True)
        for path, digests in self._records():
            rest = digests - set(verified)
            if not rest:
                path.unlink(missing_ok=True)
            elif rest != digests:
                write_record(path, sorted(rest))

    def _records(self) -> Iterator[tuple[Path, set[str]]]:
        """All records of the place; a damaged one may be of any blob."""
        for path in sorted(self._folder.glob(f"{self._prefix}-*.json")):
            found = read_record(path)
            any_blob = {blob.digest for blob in _blobs(self._image)}
            yield path, set(map(str, found)) if isinstance(found, list) else any_blob


def push_and_read_back(
    place: Place, image: Image, cache: Path, mode: VerifyMode
) -> tuple[PushReport, Verified]:
    """Pushes an image, and reads back what ``mode`` asks for.

    Args:
        place: where the image goes.
        image: the image.
        cache: records what was not read back yet.
        mode: ``sent`` reads the blobs that the push sent, ``all`` those of the whole image, ``none`` nothing.

    Raises:
        RegistryError, ImageError, HashMismatch: the push failed, or the place does not return what was sent.
    """
    if mode == "none":
        return place.push(image), Verified(mode)
    unverified = Unverified(cache, place.name, image)
    left = unverified.begin()
    pushed = place.push(image)
    started = time.monotonic()
    wanted = {blob.digest for blob in pushed.sent} | left
    blobs = [blob for blob in _blobs(image) if mode == "all" or blob.digest in wanted]
    if blobs:
        place.read_back(image, blobs)
    unverified.done([blob.digest for blob in blobs])
    size = sum(blob.size for blob in blobs)
    return pushed, Verified(mode, len(blobs), size, round(time.monotonic() - started, 3))


def _blobs(image: Image) -> list[Descriptor]:
    """Layers and config, each once."""
    found = {layer.descriptor.digest: layer.descriptor for layer in image.layers}
    found[image.config_descriptor.digest] = image.config_descriptor
    return list(found.values())
