"""Writes images as SIF files, without apptainer.

A SIF holds a definition, two JSON objects (what ``apptainer inspect`` shows, and the OCI config), and
partitions. A ``flat`` SIF has one partition; a ``layered`` one has overlay partitions above the primary one.
Ids and times come from the content, so the same image produces the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from builder.config.recipe import Compression
from builder.errors import ImageError
from builder.model import Image, SifImage, canonical_json
from builder.oci.manifest import require_layers
from builder.progress import QUIET, Reporter, working
from builder.settings import DEFAULT_EPOCH, MAX_EPOCH, Settings
from builder.sif.check import CorruptPartition, Placed, check_partitions
from builder.sif.digests import remember_digest, remembered_digest
from builder.sif.format import (
    ALIGNMENT,
    ARCHITECTURES,
    DATA_AT,
    DESCRIPTOR,
    DESCRIPTOR_COUNT,
    DESCRIPTORS_AT,
    GROUP,
    HEADER,
    INSPECT_NAME,
    LAUNCH,
    LONGEST_NAME,
    MAGIC,
    OCI_CONFIG_NAME,
    PARTITION,
    VERSION,
    Descriptor,
    FileSystem,
    Header,
    ObjectType,
    PartitionRole,
)
from builder.sif.partition import Partition, PlannedPartition
from builder.sif.partitions import BaseSif, PartitionMaker
from builder.sif.read import read_sif
from builder.sif.singularity import FOLDER, Metadata, container_files
from builder.store.blobs import Store
from builder.store.durable import durable_file
from builder.store.files import CHUNK, fingerprint, require_space, sha256_file, space_errors

Layout = Literal["flat", "layered"]


def write_sif(
    image: Image,
    path: Path,
    settings: Settings,
    store: Store,
    *,
    layout: Layout = "flat",
    compression: Compression = "zstd",
    base: SifImage | None = None,
    reporter: Reporter = QUIET,
) -> SifImage:
    """Writes an image as a SIF. The same image, options and epoch produce the same bytes.

    An existing SIF with the same content is not written again.

    Args:
        image: the image; its layers are on this machine. With ``base``, the layers are those above it.
        path: the file. It is written under another name and renamed when it is complete.
        settings: the epoch, and the threads to compress with.
        store: the cache of partitions.
        layout: ``flat``: one partition; ``layered``: the base's partitions, and overlay partitions above
            them.
        compression: of the partitions made here. In a layered SIF, those of a base SIF are unchanged.
        base: a SIF below the layers.
        reporter: receives a note for each partition that is made.

    Raises:
        ImageError: a layer or the base is damaged, for another architecture, or not on this machine.
        SpaceError: the disk is full.
    """
    require_layers(image, f"write {path}")
    config = json.loads(image.config)
    architecture = config.get("architecture", "amd64")
    if architecture not in ARCHITECTURES:
        raise ImageError(
            f"SIF files do not support the architecture {architecture!r}",
            f"supported are {', '.join(ARCHITECTURES)}",
        )
    below, base_files = None, None
    if base is not None:
        below = BaseSif(read_sif(base.path, architecture), base.digest)
        base_files = container_files(below.sif.sources(FOLDER))
    metadata = Metadata(config, image.digest, base_files)
    maker = PartitionMaker(image, metadata, below, compression, settings, store, reporter)
    with space_errors(path.parent):
        _prepare_place(path)
        try:
            digest = _write(maker, path, layout, architecture)
        except CorruptPartition as e:
            if e.is_base:
                raise
            reporter.warn(f"{e.message}; making it again")
            digest = _write(maker, path, layout, architecture)
    return SifImage(path, digest, path.stat().st_size, architecture)


def _write(maker: PartitionMaker, path: Path, layout: Layout, architecture: str) -> str:
    """Makes the partitions and writes the file, unless it is there. Returns its digest.

    Raises:
        CorruptPartition: a partition was damaged in the cache; it is made again the next time.
    """
    partitions = [maker.flat()] if layout == "flat" else maker.layered()
    created = _created(maker.image.config, maker.settings.epoch)
    contents = _Contents.of(partitions, maker.metadata, maker.image.config, architecture, created)
    known = _written_before(path, contents, maker.store)
    if known is not None:
        return known
    require_space(path.parent, contents.expected_size, f"writing {path}")
    with working(maker.reporter, f"writing {path}"):
        return _write_file(path, contents, maker.store, maker.settings.jobs)


def _created(config: bytes, epoch: int) -> int:
    """The time of the SIF, in seconds since 1970: SOURCE_DATE_EPOCH if it is set, else that of the image."""
    if epoch != DEFAULT_EPOCH:
        return epoch
    try:
        time = datetime.fromisoformat(json.loads(config)["created"])
        seconds = int((time.replace(tzinfo=UTC) if time.tzinfo is None else time).timestamp())
    except (ValueError, LookupError, TypeError, OverflowError):
        return epoch
    return seconds if 0 <= seconds <= MAX_EPOCH else epoch


def _prepare_place(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ImageError(f"{path.parent} is not a folder", "choose another place for the SIF") from None
    if path.is_dir():
        raise ImageError(f"{path} is a folder", "name a file for the SIF")


def _written_before(path: Path, contents: _Contents, store: Store) -> str | None:
    """The digest of the file at the path, if it has this content and has not changed since."""
    try:
        uuid = read_sif(path).uuid
    except ImageError:
        return None
    return remembered_digest(path, store) if uuid == contents.uuid else None


def _write_file(path: Path, contents: _Contents, store: Store, jobs: int) -> str:
    """Writes the file, and returns its digest. Raises CorruptPartition."""
    with durable_file(path) as temporary:
        with temporary.open("w+b") as out:
            places = contents.write(out)
        # In a thread for each core: the hash of the file, and the hashes of the partitions as they are in it.
        with ThreadPoolExecutor(jobs) as pool:
            whole = pool.submit(sha256_file, temporary)
            check_partitions(temporary, places, store, pool)
            digest = whole.result()
        _finish(temporary, path, digest, store)
    return digest


def _finish(temporary: Path, path: Path, digest: str, store: Store) -> None:
    """Makes a SIF executable, and records its digest.

    That is done before the file gets its name: another build may replace it there at once.
    """
    temporary.chmod(0o755)
    store.remember(temporary, digest)
    remember_digest(path, store, digest, fingerprint(temporary))


@dataclass(frozen=True, slots=True)
class _Object:
    """One object to be written."""

    type: ObjectType
    name: str
    content: bytes | Partition | PlannedPartition
    extra: bytes = b""
    """The part of the descriptor that depends on the type."""

    @property
    def expected_size(self) -> int:
        if isinstance(self.content, PlannedPartition):
            return self.content.expected_size
        return self.content.size if isinstance(self.content, Partition) else len(self.content)

    @property
    def alignment(self) -> int:
        return 1 if isinstance(self.content, bytes) else ALIGNMENT

    @property
    def digest(self) -> str:
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        return self.content.digest

    def write(self, out: BinaryIO, start: int) -> int:
        """Writes the content at a position of a file. Returns its size in bytes."""
        out.seek(start)
        if isinstance(self.content, PlannedPartition):
            return self.content.write(out)
        if isinstance(self.content, Partition):
            _copy_partition(self.content, out, start)
            return self.content.size
        return out.write(self.content)


@dataclass(frozen=True, slots=True)
class _Contents:
    """Everything that a SIF holds."""

    objects: tuple[_Object, ...]
    architecture: str
    epoch: int
    uuid: bytes

    @classmethod
    def of(
        cls,
        partitions: Sequence[Partition | PlannedPartition],
        metadata: Metadata,
        config: bytes,
        architecture: str,
        epoch: int,
    ) -> _Contents:
        """The objects of an image, and an id that depends on all of them.

        Args:
            partitions: from the bottom up.
            metadata: of the image.
            config: the OCI config of the image.
            architecture: the OCI's name.
            epoch: the time of the SIF, in seconds since 1970.
        """
        objects = [
            _Object(ObjectType.DEFINITION, "definition", metadata.definition.encode()),
            _Object(ObjectType.JSON, INSPECT_NAME, canonical_json(metadata.inspect())),
            _Object(ObjectType.JSON, OCI_CONFIG_NAME, config),
        ]
        for number, partition in enumerate(partitions):
            role = PartitionRole.OVERLAY if number else PartitionRole.PRIMARY
            extra = PARTITION.pack(FileSystem.SQUASHFS, role, ARCHITECTURES[architecture] + b"\0")
            objects.append(_Object(ObjectType.PARTITION, partition.name, partition, extra))
        described = [[o.type, o.digest, o.name] for o in objects]
        uuid = _uuid(canonical_json([described, architecture, epoch]))
        return cls(tuple(objects), architecture, epoch, uuid)

    @property
    def expected_size(self) -> int:
        """About how many bytes the SIF will have."""
        return sum(one.expected_size for one in self.objects)

    def write(self, out: BinaryIO) -> list[Placed]:
        """Writes objects, header and descriptors into an empty file.

        Returns:
            Where the partitions from the cache are.
        """
        table, places = bytearray(), []
        end = DATA_AT
        for number, one in enumerate(self.objects, 1):
            start = end + -end % one.alignment
            size = one.write(out, start)
            if isinstance(one.content, Partition):
                places.append(Placed(one.content, start))
            table += self._descriptor(number, one, start, size, start + size - end)
            end = start + size
        out.seek(0)
        out.write(self._header(end - DATA_AT))
        out.seek(DESCRIPTORS_AT)
        out.write(table)
        return places

    def _descriptor(self, number: int, one: _Object, start: int, size: int, size_with_padding: int) -> bytes:
        descriptor = Descriptor(
            type=one.type,
            used=True,
            id=number,
            group=GROUP,
            link=0,
            offset=start,
            size=size,
            size_with_padding=size_with_padding,
            created=self.epoch,
            modified=self.epoch,
            uid=0,
            gid=0,
            name=one.name.encode()[:LONGEST_NAME],
            extra=one.extra,
        )
        return DESCRIPTOR.pack(*descriptor)

    def _header(self, data_size: int) -> bytes:
        header = Header(
            launch=LAUNCH,
            magic=MAGIC + b"\0",
            version=VERSION,
            architecture=ARCHITECTURES[self.architecture] + b"\0",
            uuid=self.uuid,
            created=self.epoch,
            modified=self.epoch,
            free_descriptors=DESCRIPTOR_COUNT - len(self.objects),
            descriptors=DESCRIPTOR_COUNT,
            descriptors_offset=DESCRIPTORS_AT,
            descriptors_size=DESCRIPTOR_COUNT * DESCRIPTOR.size,
            data_offset=DATA_AT,
            data_size=data_size,
        )
        return HEADER.pack(*header)


def _uuid(described: bytes) -> bytes:
    """A UUID of version 8, which RFC 9562 leaves to the application: here a hash."""
    uuid = bytearray(hashlib.sha256(described).digest()[:16])
    uuid[6] = uuid[6] & 0x0F | 0x80
    uuid[8] = uuid[8] & 0x3F | 0x80
    return bytes(uuid)


def _copy_partition(partition: Partition, out: BinaryIO, position: int) -> None:
    """Copies a partition to a position of a file.

    The kernel copies if it can: some file systems then share the blocks.
    """
    out.flush()
    left, source_at = partition.size, partition.offset
    with partition.path.open("rb") as source:
        with contextlib.suppress(
            OSError
        ):  # another file system, or a kernel before 4.5: copied below from here on
            while left:
                copied = os.copy_file_range(source.fileno(), out.fileno(), left, source_at, position)
                if not copied:
                    break
                left, source_at, position = left - copied, source_at + copied, position + copied
        source.seek(source_at)
        out.seek(position)
        while left and (data := source.read(min(left, CHUNK))):
            out.write(data)
            left -= len(data)
    if left:
        raise ImageError(f"{partition.path} ended early: it was changed while it was copied", "build again")
    out.seek(0, os.SEEK_END)
