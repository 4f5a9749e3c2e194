"""Writes images as SIF files, without apptainer.

A SIF holds a definition, two JSON objects (what ``apptainer inspect`` shows, and the OCI config),
and partitions. A ``flat`` SIF has one partition; a ``layered`` one has overlay partitions above the
primary one. Ids and times come from the content, so the same image produces the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from builder.core.errors import ImageError
from builder.core.model import Compression, Image, SifImage, canonical_json
from builder.core.progress import working
from builder.core.settings import DEFAULT_EPOCH, seconds_of
from builder.core.store.blobs import Store
from builder.core.store.durable import durable_file
from builder.core.store.files import fingerprint, require_space, sha256_file, space_errors
from builder.core.workspace import Workspace
from builder.formats.oci.manifest import parse_config, require_layers
from builder.formats.sif import format as raw

from .format import FileSystem, ObjectType, PartitionRole, SifDescriptor, SifHeader
from .partition import Content, PlannedObject, SquashfsPart
from .partitions import PartitionMaker, prepare_place
from .read import read_sif, remember_digest, remembered_digest
from .singularity import FOLDER, Metadata, container_files

log = logging.getLogger(__name__)

Layout = Literal["flat", "layered"]


def write_sif(
    image: Image,
    path: Path,
    work: Workspace,
    *,
    layout: Layout = "flat",
    compression: Compression = "zstd",
    base: SifImage | None = None,
) -> SifImage:
    """Write an image as a SIF. The same image, options and epoch produce the same bytes.

    An existing SIF with the same content is not written again.

    Args:
        image: the image; its layers are on this machine. With ``base``, the layers are those above
            it.
        path: the file. It is written under another name and renamed when it is complete.
        layout: ``flat``: one partition; ``layered``: the base's partitions, and overlay partitions
            above them.
        compression: of the partitions made here. In a layered SIF, those of a base SIF are
            unchanged.
        base: a SIF below the layers.

    Raises:
        ImageError: a layer or the base is damaged, for another architecture, or not on this
            machine.
        SpaceError: the disk is full.
    """
    require_layers(image, f"write {path}")
    config = parse_config(image.config, image.digest)
    architecture = config.get("architecture") or "amd64"
    if architecture not in raw.ARCHITECTURES:
        hint = f"supported are {', '.join(raw.ARCHITECTURES)}"
        raise ImageError(f"SIF files do not support the architecture {architecture!r}", hint)
    below, base_files = None, None
    if base is not None:
        below = read_sif(base.path, architecture)
        base_files = container_files(below.sources(FOLDER))
    metadata = Metadata(config, image.digest, base_files)
    base_digest = base.digest if base else ""
    maker = PartitionMaker(image, metadata, below, compression, work, base_digest)
    with space_errors(path.parent):
        prepare_place(path, "SIF")
        try:
            digest = _write(maker, path, layout, architecture)
        except _CorruptPartition as e:
            work.reporter.warn(f"{e.message}; making it again")
            digest = _write(maker, path, layout, architecture)
    return SifImage(path, digest, path.stat().st_size, architecture)


def _write(maker: PartitionMaker, path: Path, layout: Layout, architecture: str) -> str:
    """Make the partitions and write the file, unless it exists. Returns its digest.

    Raises:
        _CorruptPartition: a partition was damaged in the cache; it is made again the next time.
    """
    partitions = [maker.flat()] if layout == "flat" else maker.layered()
    contents = _Contents.of(maker, partitions, architecture)
    known = _written_before(path, contents, maker.work.store)
    if known is not None:
        log.info("%s has this content: it is not written again", path)
        return known
    require_space(path.parent, sum(o.content.size for o in contents.objects), f"writing {path}")
    log.info("writing %s: %s, %d partitions", path, layout, len(partitions))
    with working(maker.work.reporter, f"writing {path}"):
        return _write_file(path, contents, maker.work.store, maker.work.settings.jobs)


def _created(config: bytes, epoch: int) -> int:
    """Return the time of the SIF in seconds: SOURCE_DATE_EPOCH, or that of the image."""
    if epoch != DEFAULT_EPOCH:
        return epoch
    seconds = seconds_of(str(json.loads(config).get("created")))
    return epoch if seconds is None else seconds


def _written_before(path: Path, contents: _Contents, store: Store) -> str | None:
    """Return the digest of the file at the path, if it is unchanged and has this content."""
    try:
        uuid = read_sif(path).uuid
    except ImageError:
        return None
    return remembered_digest(path, store) if uuid == contents.uuid else None


def _write_file(path: Path, contents: _Contents, store: Store, jobs: int) -> str:
    """Write the file, and return its digest. Raises _CorruptPartition."""
    with durable_file(path) as temporary:
        with temporary.open("w+b") as out:
            places = contents.write(out)
        # In a thread for each core: the hash of the file, and the hashes of the partitions as they
        # are in it.
        with ThreadPoolExecutor(jobs) as pool:
            whole = pool.submit(sha256_file, temporary)
            checks = [(p, pool.submit(p.is_intact, temporary, start, store)) for p, start in places]
            corrupt = [partition for partition, check in checks if not check.result()]
            digest = whole.result()
        for partition in corrupt:
            if partition.is_base:
                raise ImageError(_corrupt(partition), "copy or pull the base SIF again")
            store.drop(partition.digest)
        if corrupt:
            raise _CorruptPartition(_corrupt(corrupt[0]), "run the command again")
        # before the file gets its name, because another build may replace it there at once
        temporary.chmod(0o755)
        store.remember(temporary, digest)
        remember_digest(path, store, digest, fingerprint(temporary))
    return digest


class _CorruptPartition(ImageError):
    """A partition of the cache does not match its digest. It was removed from the cache."""


def _corrupt(partition: SquashfsPart) -> str:
    return f"{partition.path} is corrupt: the partition {partition.name} does not match its digest"


def _text(name: str, data: bytes) -> PlannedObject:
    return PlannedObject(name, hashlib.sha256(data).hexdigest(), len(data), lambda f: f.write(data))


@dataclass(frozen=True, slots=True)
class _Object:
    """One object to be written."""

    type: ObjectType
    content: Content
    extra: bytes = b""
    """The part of the descriptor that depends on the type."""


@dataclass(frozen=True, slots=True)
class _Contents:
    """Everything that a SIF holds."""

    objects: tuple[_Object, ...]
    architecture: str
    epoch: int
    uuid: bytes

    @classmethod
    def of(
        cls, maker: PartitionMaker, partitions: Sequence[Content], architecture: str
    ) -> _Contents:
        """Return the objects of an image, and an id that depends on all of them.

        Args:
            maker: of the partitions, with the image.
            partitions: from the bottom up.
            architecture: the OCI's name.
        """
        metadata, config = maker.metadata, maker.image.config
        epoch = _created(config, maker.work.settings.epoch)
        objects = [
            _Object(ObjectType.DEFINITION, _text("definition", metadata.definition.encode())),
            _Object(ObjectType.JSON, _text(raw.INSPECT_NAME, canonical_json(metadata.inspect()))),
            _Object(ObjectType.JSON, _text(raw.OCI_CONFIG_NAME, config)),
        ]
        machine = raw.ARCHITECTURES[architecture] + b"\0"
        for number, partition in enumerate(partitions):
            role = PartitionRole.OVERLAY if number else PartitionRole.PRIMARY
            extra = raw.PARTITION.pack(FileSystem.SQUASHFS, role, machine)
            objects.append(_Object(ObjectType.PARTITION, partition, extra))
        described = [[o.type, o.content.digest, o.content.name] for o in objects]
        uuid = _uuid(canonical_json([described, architecture, epoch]))
        return cls(tuple(objects), architecture, epoch, uuid)

    def write(self, out: BinaryIO) -> list[tuple[SquashfsPart, int]]:
        """Write objects, header and descriptors into an empty file.

        Returns:
            The partitions from the cache, and where each begins in the file.
        """
        table, places = bytearray(), []
        end = raw.DATA_AT
        for number, one in enumerate(self.objects, 1):
            is_partition = one.type is ObjectType.PARTITION
            start = end + -end % raw.ALIGNMENT if is_partition else end
            out.seek(start)
            size = one.content.write(out)
            if isinstance(one.content, SquashfsPart):
                places.append((one.content, start))
            table += self._descriptor(number, one, start, size, start + size - end)
            end = start + size
        out.seek(0)
        out.write(self._header(end - raw.DATA_AT))
        out.seek(raw.DESCRIPTORS_AT)
        out.write(table)
        return places

    def _descriptor(
        self, number: int, one: _Object, start: int, size: int, size_with_padding: int
    ) -> bytes:
        descriptor = SifDescriptor(
            type=one.type,
            id=number,
            offset=start,
            size=size,
            size_with_padding=size_with_padding,
            created=self.epoch,
            modified=self.epoch,
            name=one.content.name.encode()[: raw.LONGEST_NAME],
            extra=one.extra,
        )
        return raw.DESCRIPTOR.pack(*descriptor)

    def _header(self, data_size: int) -> bytes:
        header = SifHeader(
            architecture=raw.ARCHITECTURES[self.architecture] + b"\0",
            uuid=self.uuid,
            created=self.epoch,
            modified=self.epoch,
            free_descriptors=raw.DESCRIPTOR_COUNT - len(self.objects),
            data_size=data_size,
        )
        return raw.HEADER.pack(*header)


def _uuid(described: bytes) -> bytes:
    """Return a UUID of version 8, which RFC 9562 leaves to the application: here a hash."""
    uuid = bytearray(hashlib.sha256(described).digest()[:16])
    uuid[6] = uuid[6] & 0x0F | 0x80
    uuid[8] = uuid[8] & 0x3F | 0x80
    return bytes(uuid)
