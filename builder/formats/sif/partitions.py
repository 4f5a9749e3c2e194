"""Makes the partitions of a SIF, or finds them in the cache.

A partition of a layered SIF is made once, and stored as a blob. A record names the blob; its key is
a hash of everything that the bytes depend on: layers, metadata, compression, time, and the
partitions below where they matter. The partition of a flat SIF is written into the SIF itself: a
second copy of several gigabytes would take a disk longer than the compression takes two cores.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from builder.core.errors import ImageError
from builder.core.model import Compression, Image, Layer
from builder.core.progress import working
from builder.core.store.durable import start_writing
from builder.core.store.files import sha256_file
from builder.core.store.records import Record
from builder.core.store.temporary import removed_after
from builder.core.workspace import Workspace
from builder.formats.layers.cache import cache_key
from builder.formats.trees.member import Member, counted
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source, Stream, layer_source, listed_source
from builder.formats.trees.squashfs import writer
from builder.formats.trees.squashfs.writer import SquashfsWriter

from .assign import MIN_OVERLAYS, LayerGroup, assign_layers
from .overlay import overlay_members
from .partition import PlannedObject, SquashfsPart
from .read import Sif
from .singularity import Metadata, common_files, guard_files

log = logging.getLogger(__name__)

#: Overlay partitions of a SIF that builder makes. The runtimes pass all partitions in one mount
#: option of 4096 bytes, which is enough for about 75. But each one takes a loop device (a host has
#: 256 by default) or a squashfuse process for every container that runs.
MAX_OVERLAYS = 12
#: Part of the cache keys of partitions. Increase it when a change here results in other bytes for
#: the same image.
FORMAT = 1

#: After this many bytes of files the disk begins to write them: it works while the next ones are
#: compressed.
_WRITE_EARLY = 128 << 20

#: Members that builder adds, with their content.
Files = list[tuple[Member, bytes]]


@dataclass(frozen=True, slots=True)
class _PartitionContents:
    """What a partition is made of."""

    name: str
    """Of the partition in the SIF."""
    sources: Sequence[Source]
    """Its members, from the bottom up."""
    total: int | None
    """About how many bytes its files have; None if that is not known."""
    lower: Sequence[SquashfsPart] = ()
    """The partitions that it has to hide something of, from the bottom up."""


@dataclass(frozen=True, slots=True)
class PartitionMaker:
    """Makes the partitions of one image."""

    image: Image
    """All its layers are on this machine. With a base, the layers are those above it."""
    metadata: Metadata
    base: Sif | None
    """A SIF below the layers."""
    compression: Compression
    work: Workspace
    base_digest: str = ""
    """Of the SIF below."""

    def flat(self) -> PlannedObject:
        """Return one partition that holds everything."""
        epoch = self.work.settings.epoch
        common, own = common_files(epoch), self.metadata.files(epoch)
        sources = [listed_source(common)]
        if self.base is not None:
            hashed = partial(self._hashed, self.base.path, self.base_digest)
            sources += [partial(hashed, source) for source in self.base.sources()]
        sources += [*map(self._layer, self.image.layers), listed_source(own)]
        digests = [layer.descriptor.digest for layer in self.image.layers]
        key = ["flat", self.base_digest, digests, _texts([*common, *own])]
        total = None if self.base else _unpacked(self.image.layers)
        root = _PartitionContents("root", sources, total)
        size = sum(layer.descriptor.size for layer in self.image.layers)
        size += sum(part.size for part in self.base.partitions) if self.base else 0
        write = partial(self._squash, contents=root)
        return PlannedObject("root", f"key:{self._hashed_key(key)}", size, write)

    def write_plain(self, out: BinaryIO, folders: Files, files: Files) -> None:
        """Write a squashfs in which all files belong to root, without what SIF runtimes need.

        Args:
            out: an empty file.
            folders: in it unless the layers have them.
            files: above the layers.
        """
        layers = map(self._layer, self.image.layers)
        sources = [listed_source(folders), *layers, listed_source(files)]
        owned = [partial(_of_root, source) for source in sources]
        self._squash(out, _PartitionContents("root", owned, _unpacked(self.image.layers)))

    def layered(self) -> list[SquashfsPart]:
        """Return the primary partition, or those of the base SIF, and overlays of the layers.

        Raises:
            ImageError: the base SIF has too many overlay partitions.
        """
        base_is_sif = self.base is not None
        most = MAX_OVERLAYS - self._inherited_overlays()
        assigned = assign_layers(self.image, base_is_sif=base_is_sif, most=most)
        partitions = self._base_partitions() if base_is_sif else [self._primary(assigned.base)]
        for group in assigned.overlays:
            is_top = group is assigned.overlays[-1]
            partitions.append(self._overlay(group, partitions, is_top))
        return partitions

    def _inherited_overlays(self) -> int:
        """Return how many overlay partitions the base SIF has."""
        if self.base is None:
            return 0
        count = len(self.base.partitions) - 1
        if count > MAX_OVERLAYS - MIN_OVERLAYS:
            raise ImageError(
                f"{self.base.path} has {count} overlay partitions; "
                "those of the environment would exceed the limit",
                "use 'sif: {layout: flat}' in the recipe, or another base",
            )
        return count

    def _base_partitions(self) -> list[SquashfsPart]:
        """Return the partitions of the base SIF, which are copied unchanged."""
        assert self.base is not None
        found = []
        for number, part in enumerate(self.base.partitions):
            digest, name = f"{self.base_digest}#{number}", part.name or f"base-{number}"
            found.append(SquashfsPart(self.base.path, part.offset, part.size, digest, name))
        return found

    def _primary(self, layers: Sequence[Layer]) -> SquashfsPart:
        """Return the base image's partition, with a script that refuses to run without overlays."""
        epoch = self.work.settings.epoch
        common, guard = common_files(epoch), guard_files(epoch)
        key = ["base", [layer.descriptor.digest for layer in layers], _texts([*common, *guard])]
        sources = [listed_source(common), *map(self._layer, layers), listed_source(guard)]
        return self._partition(key, _PartitionContents("base", sources, _unpacked(layers)))

    def _overlay(
        self, group: LayerGroup, partitions: Sequence[SquashfsPart], is_top: bool
    ) -> SquashfsPart:
        sources = [self._layer(layer) for layer in group.layers]
        key: list[Any] = ["overlay", [layer.descriptor.digest for layer in group.layers]]
        if is_top:
            own = self.metadata.files(self.work.settings.epoch)
            sources.append(listed_source(own))
            key.append(_texts(own))
        # A partition of packages depends on nothing below: it hides nothing, and lists every
        # directory.
        lower = [] if group.packages else list(partitions)
        key.append([p.digest for p in lower])
        contents = _PartitionContents(group.name, sources, _unpacked(group.layers), lower)
        return self._partition(key, contents)

    def _layer(self, layer: Layer) -> Source:
        """Return the members of a layer, which is hashed: no flipped bit goes into a partition.

        zstd layers have no checksums, so reading them would not show it.
        """
        return layer_source(layer, self.work.store, rehash=True)

    def _hashed(self, path: Path, digest: str, source: Source) -> Stream:
        """Yield the members in a squashfs, which is hashed first: it has no checksums."""
        if not self.work.store.rehash(path, digest):
            self.work.store.refuse(path, digest)
        yield from source()

    def _partition(self, key: Sequence[Any], contents: _PartitionContents) -> SquashfsPart:
        """Return a partition, from the cache if possible.

        Args:
            key: everything that its members depend on.
            contents: what it is made of.
        """
        name = contents.name
        value = self._hashed_key(key)
        store = self.work.store
        record = Record(store.folders.layers / f"sif-{value}.json", dict[str, Any])
        with store.lock(f"sif partition {value}"):
            known = record.read()
            if known is not None and store.get(known["digest"], known["size"]) is not None:
                log.info("partition %s is in the cache: %s", name, known["digest"])
            else:
                known = self._write(contents)
                log.info("not in the cache: partition %s; made %s", name, known["digest"])
                record.write(known)
        digest, size = known["digest"], known["size"]
        return SquashfsPart(store.path(digest), 0, size, digest, name)

    def _hashed_key(self, key: Sequence[Any]) -> str:
        """Return a hash of everything that a partition depends on, the format included."""
        level = writer.LEVELS[self.compression]
        described = [key, self.compression, level, writer.FORMAT, FORMAT, self.work.settings.epoch]
        return cache_key(described)

    def _write(self, contents: _PartitionContents) -> dict[str, Any]:
        """Write a partition into the store. Returns its record: name, digest and size."""
        with removed_after(self.work.store.temporary()) as temporary:
            with temporary.open("w+b") as out:
                size = self._squash(out, contents)
            digest = sha256_file(temporary)
            self.work.store.adopt(temporary, digest)
        return {"digest": digest, "size": size, "name": contents.name}

    def _squash(self, out: BinaryIO, contents: _PartitionContents) -> int:
        """Write a partition at the current position of a file. Returns its size in bytes."""
        merge = Merge(contents.sources)
        settings = self.work.settings
        task = f"writing the squashfs partition {contents.name}"
        unwritten = 0

        def advance(amount: int) -> None:
            nonlocal unwritten
            self.work.reporter.advance(task, amount)
            unwritten += amount
            if unwritten >= _WRITE_EARLY:
                unwritten = 0
                start_writing(out.fileno())

        with (
            working(self.work.reporter, task, contents.total),
            SquashfsWriter(out, self.compression, settings.jobs, settings.epoch) as squashfs,
        ):
            for member, content in merge:
                squashfs.add(member, counted(content, advance))
            if contents.lower:
                for member in overlay_members(merge, contents.lower):
                    squashfs.add(member)
            return squashfs.finish()


def prepare_place(path: Path, what: str) -> None:
    """Create the folder of a file that is written; ``what`` is the word for the file in messages.

    Raises:
        ImageError: it is no folder, or the file is one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        hint = f"choose another place for the {what}"
        raise ImageError(f"{path.parent} is not a folder", hint) from None
    if path.is_dir():
        raise ImageError(f"{path} is a folder", f"name a file for the {what}")


def _of_root(source: Source) -> Stream:
    """Yield the same members, all of root; other owners' set-user-ID programs lose the bit."""
    for member, content in source():
        lost = (0o4000 if member.uid else 0) | (0o2000 if member.gid else 0)
        yield replace(member, uid=0, gid=0, mode=member.mode & ~lost), content


def _unpacked(layers: Sequence[Layer]) -> int | None:
    """Return about how many bytes the files of layers have; None if that is not known of all."""
    sizes = [layer.unpacked for layer in layers]
    return sum(sizes) if all(sizes) else None


def _texts(files: Files) -> list[str]:
    return [data.decode() for _, data in files]
