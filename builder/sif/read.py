"""Reads SIF files, and checks that they can be used."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import ImageError
from builder.model import SifImage
from builder.oci.config import RuntimeConfigShape
from builder.oci.documents import MAX_DOCUMENT, check_shape, load_json
from builder.sif.digests import sif_digest
from builder.sif.format import (
    ARCHITECTURES,
    DESCRIPTOR,
    FILE_SYSTEM_NAMES,
    HEADER,
    MAGIC,
    NO_ARCHITECTURES,
    OCI_CONFIG_NAME,
    PARTITION,
    Descriptor,
    FileSystem,
    Header,
    ObjectType,
    PartitionRole,
)
from builder.sif.singularity import FOLDER, container_environment, container_files
from builder.store.blobs import Store
from builder.text import human_bytes
from builder.trees.sources import Source, squashfs_source

#: A SIF of Apptainer has room for 48.
_MOST_DESCRIPTORS = 4096
#: In seconds since 1970: the end of the year 9999.
_LATEST_TIME = 253402300799
_ARCHITECTURE_NAMES = {number: name for name, number in ARCHITECTURES.items()}
_UNKNOWN = "unknown"
_DAMAGED = "copy or build it again"


@dataclass(frozen=True, slots=True)
class SifObject:
    """An object of a SIF, as its descriptor describes it."""

    kind: int
    """An :class:`~builder.sif.format.ObjectType`, or another number."""
    group: int
    offset: int
    """Bytes from the beginning of the SIF."""
    size: int
    """Bytes."""
    name: str
    file_system: int = 0
    """Of a partition: a :class:`~builder.sif.format.FileSystem`."""
    role: int = 0
    """Of a partition: a :class:`~builder.sif.format.PartitionRole`, or another number."""


@dataclass(frozen=True, slots=True)
class Sif:
    """A SIF file whose header and descriptors were read."""

    path: Path
    architecture: str
    """The OCI's name, or ``unknown``."""
    uuid: bytes
    created: int
    """Seconds since 1970."""
    objects: tuple[SifObject, ...]

    @property
    def partitions(self) -> tuple[SifObject, ...]:
        """What the runtimes mount: the primary partition, then the overlays of its group."""
        primary = _primary(self.objects)
        assert primary is not None  # read_sif() refuses a SIF without it
        return (primary, *_overlays(self.objects, primary))

    def read(self, name: str) -> bytes | None:
        """The content of the JSON object of a name; None when there is none.

        Raises:
            ImageError: it is larger than such an object may be.
        """
        for found in self.objects:
            if found.kind == ObjectType.JSON and found.name == name:
                if found.size > MAX_DOCUMENT:
                    raise ImageError(
                        f"{self.path}: {name} has {human_bytes(found.size)}, "
                        f"at most {human_bytes(MAX_DOCUMENT)} are allowed",
                        _DAMAGED,
                    )
                with self.path.open("rb") as f:
                    f.seek(found.offset)
                    return f.read(found.size)
        return None

    def sources(self, below: str = "") -> list[Source]:
        """The members of each partition, from the bottom up.

        Args:
            below: only this directory and what is in it.
        """
        return [
            squashfs_source(
                self.path, partition.offset, f"{self.path} (partition {number})", below, partition.size
            )
            for number, partition in enumerate(self.partitions, 1)
        ]

    def config(self) -> dict[str, Any]:
        """An OCI image config: the one that the SIF was made from, if the SIF holds it.

        Otherwise it is composed of the SIF's environment, labels and runscript.

        Raises:
            ImageError: the SIF is damaged.
        """
        return self.stored_config() or self._composed_config()

    def stored_config(self) -> dict[str, Any] | None:
        """The OCI image config that the SIF holds; None when there is none.

        The object of that name in a SIF of Apptainer is not an image config, only the inner part of one.

        Raises:
            ImageError: it is damaged.
        """
        data = self.read(OCI_CONFIG_NAME)
        if data is None:
            return None
        what = f"{self.path}: {OCI_CONFIG_NAME}"
        stored = load_json(data, what)
        check_shape(RuntimeConfigShape, stored, what)
        return dict(stored) if stored.get("config") is not None else None

    def _composed_config(self) -> dict[str, Any]:
        files = container_files(self.sources(FOLDER))
        environment = container_environment(files)
        inner: dict[str, Any] = {"Env": [f"{name}={value}" for name, value in environment.items()]}
        labels = self._labels(files.get(f"{FOLDER}/labels.json", "{}"))
        if labels:
            inner["Labels"] = labels
        if f"{FOLDER}/runscript" in files:
            inner["Entrypoint"] = [f"/{FOLDER}/runscript"]
        seconds = min(max(self.created, 0), _LATEST_TIME)
        created = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return {
            "architecture": self.architecture,
            "os": "linux",
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "config": inner,
        }

    def _labels(self, text: str) -> dict[str, str]:
        """The labels of ``labels.json``; none when it holds something else."""
        try:
            labels = load_json(text.encode(), f"{self.path}: labels.json")
        except ImageError:
            return {}
        if not isinstance(labels, dict):
            return {}
        return {name: str(value) for name, value in labels.items()}


def open_sif(path: Path, store: Store, architecture: str | None = None) -> SifImage:
    """A SIF on this machine, with its digest.

    Args:
        path: the file.
        store: records the digests of SIFs.
        architecture: see :func:`read_sif`.

    Raises:
        ImageError: as for :func:`read_sif`.
    """
    sif = read_sif(path, architecture)
    return SifImage(path, sif_digest(path, store), path.stat().st_size, sif.architecture)


def read_sif(path: Path, architecture: str | None = None) -> Sif:
    """Reads the header and the descriptors of a SIF.

    Args:
        path: the file.
        architecture: the architecture that the SIF must have, by the OCI's name; None accepts any.

    Raises:
        ImageError: the file is missing, not a SIF, cut short, encrypted, or for another architecture; or its
            root file system is not squashfs.
    """
    head, table, size = _read_file(path)
    if not _has_magic(head):
        raise ImageError(f"{path} is not a SIF", "build or pull a SIF with apptainer or builder")
    if len(head) < HEADER.size:
        raise _cut_short(path, size)
    header = Header._make(HEADER.unpack(head))
    number = header.architecture
    objects = []
    is_cut = len(table) < header.descriptors * DESCRIPTOR.size
    for start in range(0, len(table) - DESCRIPTOR.size + 1, DESCRIPTOR.size):
        descriptor = Descriptor._make(DESCRIPTOR.unpack_from(table, start))
        if not descriptor.used:
            continue
        if descriptor.offset < 0 or descriptor.size < 0:
            raise _damaged_header(path)
        is_cut |= descriptor.offset + descriptor.size > size
        found, own_number = _object(descriptor)
        objects.append(found)
        if found.role == PartitionRole.PRIMARY and own_number.strip(b"\0") not in NO_ARCHITECTURES:
            number = own_number
    if is_cut:
        raise _cut_short(path, size)
    _check_objects(path, objects)
    found_architecture = _ARCHITECTURE_NAMES.get(number[:2], _UNKNOWN)
    if architecture is not None and found_architecture not in (architecture, _UNKNOWN):
        raise ImageError(
            f"{path} is for {found_architecture}, not for {architecture}",
            "use a SIF for this architecture, or correct the platform",
        )
    return Sif(path, found_architecture, header.uuid, header.created, tuple(objects))


def _read_file(path: Path) -> tuple[bytes, bytes, int]:
    """The bytes of the header and of the descriptors, and the size of the file.

    There are no descriptors of a file of another kind.
    """
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
            raise ImageError(f"{path} is not an ordinary file", "name a SIF file")
        size = info.st_size
        with path.open("rb") as f:
            head, table = f.read(HEADER.size), b""
            if _has_magic(head) and len(head) == HEADER.size:
                header = Header._make(HEADER.unpack(head))
                _check_header(path, header)
                if header.descriptors_offset > size:
                    return head, table, size
                f.seek(header.descriptors_offset)
                table = f.read(header.descriptors * DESCRIPTOR.size)
    except FileNotFoundError:
        raise ImageError(f"{path}: no such file", "correct the path, or fetch the SIF") from None
    except IsADirectoryError:
        raise ImageError(f"{path} is a folder, not a SIF", "name a SIF file") from None
    except OSError as e:
        raise ImageError(f"{path}: {e.strerror}", "make the file readable for this user") from None
    return head, table, size


def _cut_short(path: Path, size: int) -> ImageError:
    return ImageError(
        f"{path} is cut short: it has {size} bytes and describes more", "copy or download it again"
    )


def _has_magic(head: bytes) -> bool:
    return head[32:41] == MAGIC


def _check_header(path: Path, header: Header) -> None:
    is_possible = (
        0 <= header.descriptors <= _MOST_DESCRIPTORS
        and header.descriptors_offset >= 0
        and header.descriptors_size >= 0
    )
    if not is_possible:
        raise _damaged_header(path)


def _damaged_header(path: Path) -> ImageError:
    return ImageError(f"{path}: the header of the SIF is damaged", _DAMAGED)


def _object(descriptor: Descriptor) -> tuple[SifObject, bytes]:
    """An object, and the architecture of a partition."""
    file_system, role, architecture = 0, 0, b""
    if descriptor.type == ObjectType.PARTITION:
        file_system, role, architecture = PARTITION.unpack_from(descriptor.extra)
    name = descriptor.name.partition(b"\0")[0].decode(errors="replace")
    found = SifObject(
        descriptor.type, descriptor.group, descriptor.offset, descriptor.size, name, file_system, role
    )
    return found, architecture


def _primary(objects: Sequence[SifObject]) -> SifObject | None:
    for found in objects:
        if found.kind == ObjectType.PARTITION and found.role == PartitionRole.PRIMARY:
            return found
    return None


def _overlays(objects: Sequence[SifObject], primary: SifObject) -> list[SifObject]:
    return [
        o
        for o in objects
        if o.kind == ObjectType.PARTITION and o.role == PartitionRole.OVERLAY and o.group == primary.group
    ]


def _check_objects(path: Path, objects: Sequence[SifObject]) -> None:
    if any(o.kind == ObjectType.OCI_ROOT for o in objects):
        raise ImageError(
            f"{path} is an OCI-SIF, which holds OCI layers instead of partitions",
            "make a plain SIF of it: singularity build --no-oci, or convert the OCI image: builder convert",
        )
    if any(o.file_system == FileSystem.ENCRYPTED_SQUASHFS for o in objects):
        raise ImageError(f"{path} is encrypted", "build on the SIF that it was made from, without encryption")
    _check_overlaps(path, objects)
    primary = _primary(objects)
    if primary is None:
        raise ImageError(
            f"{path} has no primary system partition", "it holds no container: build or pull it again"
        )
    for partition in (primary, *_overlays(objects, primary)):
        if partition.file_system != FileSystem.SQUASHFS:
            what = "root file system" if partition is primary else "overlay partition"
            name = FILE_SYSTEM_NAMES.get(partition.file_system, _UNKNOWN)
            raise ImageError(
                f"{path}: its {what} is {name}, not squashfs",
                f"make one with squashfs: apptainer build NEW.sif {path.name}",
            )


def _check_overlaps(path: Path, objects: Sequence[SifObject]) -> None:
    """Objects lie one after the other. Else a small file could hold thousands of large partitions."""
    end = HEADER.size
    for found in sorted((o for o in objects if o.size), key=lambda o: o.offset):
        if found.offset < end:
            raise ImageError(f"{path}: the objects of the SIF overlap each other", _DAMAGED)
        end = found.offset + found.size
