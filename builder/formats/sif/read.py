"""Reads SIF files, and checks that they can be used.

They are hashed again only when they change. The digest of a file is not known before, so there is a
record for each path.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.core.errors import ImageError
from builder.core.model import SifImage
from builder.core.store.blobs import Store
from builder.core.store.files import fingerprint, sha256_file
from builder.core.store.reading import Reader
from builder.core.store.records import Record
from builder.formats.oci.documents import check_size, load_json
from builder.formats.oci.shapes import RuntimeConfigShape, check_shape
from builder.formats.trees.sources import Source, squashfs_source

from . import format as raw
from .format import FileSystem, ObjectType, PartitionRole, SifDescriptor, SifHeader
from .singularity import FOLDER, container_environment, container_files


def sif_digest(path: Path, store: Store) -> str:
    """Return the ``sha256:...`` digest of a SIF, computed if it is not recorded."""
    digest = remembered_digest(path, store)
    if digest is None:
        looks = fingerprint(path)
        digest = sha256_file(path)
        if fingerprint(path) == looks:  # else another process replaced it meanwhile
            store.remember(path, digest)
            remember_digest(path, store, digest, looks)
    return digest


def remembered_digest(path: Path, store: Store) -> str | None:
    """Return the digest of a file that has not changed since it was hashed; otherwise None."""
    known = _record(path, store).read()
    if known is None or known["fingerprint"] != fingerprint(path):
        return None
    return known["digest"]


def remember_digest(path: Path, store: Store, digest: str, looks: str) -> None:
    """Record that a file was just hashed.

    Args:
        path: the file. It need not have this name yet: another process may replace it there at any
            time.
        store: of this machine.
        digest: of its content.
        looks: its fingerprint, from before it was hashed.
    """
    _record(path, store).write({"fingerprint": looks, "digest": digest})


def _record(path: Path, store: Store) -> Record[dict[str, str]]:
    return Record(store.folders.sif_record(path), dict[str, str])


#: A SIF of Apptainer has room for 48.
_MOST_DESCRIPTORS = 4096
#: In seconds since 1970: the end of the year 9999.
_LATEST_TIME = 253402300799
_ARCHITECTURE_NAMES = {number: name for name, number in raw.ARCHITECTURES.items()}
_UNKNOWN = "unknown"
_DAMAGED = "copy or build it again"


@dataclass(frozen=True, slots=True)
class SifObject:
    """An object of a SIF, as its descriptor describes it."""

    kind: int
    """An :class:`~builder.formats.sif.format.ObjectType`, or another number."""
    group: int
    offset: int
    """Bytes from the beginning of the SIF."""
    size: int
    """Bytes."""
    name: str
    file_system: int = 0
    """Of a partition: a :class:`~builder.formats.sif.format.FileSystem`, or another number."""
    role: int = 0
    """Of a partition: a :class:`~builder.formats.sif.format.PartitionRole`, or another number."""
    architecture: bytes = b""
    """Of a partition: SIF's number."""


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
    partitions: tuple[SifObject, ...]
    """What the runtimes mount: the primary partition, then the overlays of its group."""

    def read(self, name: str) -> bytes | None:
        """Return the content of the JSON object of a name; None when there is none.

        Raises:
            ImageError: it is larger than such an object may be.
        """
        for found in self.objects:
            if found.kind == ObjectType.JSON and found.name == name:
                check_size(found.size, f"{self.path}: {name}")
                with self.path.open("rb") as f:
                    f.seek(found.offset)
                    return f.read(found.size)
        return None

    def sources(self, below: str = "") -> list[Source]:
        """Return the members of each partition, from the bottom up.

        Args:
            below: only this directory and what is in it.
        """
        return [
            squashfs_source(self.path, p.offset, f"{self.path} (partition {n})", below, p.size)
            for n, p in enumerate(self.partitions, 1)
        ]

    def config(self) -> dict[str, Any]:
        """Return an OCI image config: the one that the SIF was made from, if the SIF holds it.

        Otherwise it is composed of the SIF's environment, labels and runscript. The object of that
        name in a SIF of Apptainer is not an image config, only the inner part of one.

        Raises:
            ImageError: the SIF is damaged.
        """
        what = f"{self.path}: {raw.OCI_CONFIG_NAME}"
        data = self.read(raw.OCI_CONFIG_NAME)
        stored = {} if data is None else load_json(data, what)
        config: dict[str, Any] = check_shape(RuntimeConfigShape, stored, what)
        return self._composed_config() if config.get("config") is None else config

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
        """Return the labels of ``labels.json``; none when it holds something else."""
        labels: object = {}
        with contextlib.suppress(ImageError):
            labels = load_json(text.encode(), f"{self.path}: labels.json")
        found = labels if isinstance(labels, dict) else {}
        return {name: str(value) for name, value in found.items()}


def open_sif(path: Path, store: Store, architecture: str | None = None) -> SifImage:
    """Return a SIF on this machine, with its digest.

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
    """Read the header and the descriptors of a SIF.

    Args:
        path: the file.
        architecture: the architecture that the SIF must have, by the OCI's name; None accepts any.

    Raises:
        ImageError: the file is missing, not a SIF, cut short, encrypted, or for another
            architecture; or its root file system is not squashfs.
    """
    hint = "name a SIF file that this user can read"
    with Reader(ImageError, hint).open(path, "correct the path, or fetch the SIF") as (file, _):
        header, objects = _read(path, file)
    partitions = _partitions(path, objects)
    number = partitions[0].architecture
    if number.strip(b"\0") in raw.NO_ARCHITECTURES:
        number = header.architecture
    found = _ARCHITECTURE_NAMES.get(number[:2], _UNKNOWN)
    if architecture is not None and found not in (architecture, _UNKNOWN):
        hint = "use a SIF for this architecture, or correct the platform"
        raise ImageError(f"{path} is for {found}, not for {architecture}", hint)
    return Sif(path, found, header.uuid, header.created, tuple(objects), tuple(partitions))


def _read(path: Path, file: IO[bytes]) -> tuple[SifHeader, list[SifObject]]:
    """Return the header, and the objects that lie inside the file."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(raw.HEADER.size)
    if head[32:41] != raw.MAGIC:
        raise ImageError(f"{path} is not a SIF", "pull one, or: apptainer build NEW.sif OLD_IMAGE")
    if len(head) < raw.HEADER.size:
        raise _cut_short(path, size)
    header = SifHeader._make(raw.HEADER.unpack(head))
    if not 0 <= header.descriptors <= _MOST_DESCRIPTORS or header.descriptors_offset < 0:
        raise _damaged_header(path)
    file.seek(min(header.descriptors_offset, size))
    table = file.read(header.descriptors * raw.DESCRIPTOR.size)
    if len(table) < header.descriptors * raw.DESCRIPTOR.size:
        raise _cut_short(path, size)
    described = [SifDescriptor._make(fields) for fields in raw.DESCRIPTOR.iter_unpack(table)]
    objects = [_object(one) for one in described if one.used]
    _check_places(path, objects, size)
    return header, objects


def _check_places(path: Path, objects: Sequence[SifObject], size: int) -> None:
    """Raise ImageError if an object does not lie inside a file of a size."""
    if any(one.offset < 0 or one.size < 0 for one in objects):
        raise _damaged_header(path)
    if any(one.offset + one.size > size for one in objects):
        raise _cut_short(path, size)


def _cut_short(path: Path, size: int) -> ImageError:
    what = f"{path} is cut short: it has {size} bytes and describes more"
    return ImageError(what, "copy or download it again")


def _damaged_header(path: Path) -> ImageError:
    return ImageError(f"{path}: the header of the SIF is damaged", _DAMAGED)


def _object(one: SifDescriptor) -> SifObject:
    name = one.name.partition(b"\0")[0].decode(errors="replace")
    extra = raw.PARTITION.unpack_from(one.extra) if one.type == ObjectType.PARTITION else ()
    return SifObject(one.type, one.group, one.offset, one.size, name, *extra)


def _partitions(path: Path, objects: Sequence[SifObject]) -> list[SifObject]:
    """Return the partitions that runtimes mount. Raises ImageError if one is not squashfs."""
    _check_kinds(path, objects)
    _check_overlaps(path, objects)
    primary = next((o for o in objects if o.role == PartitionRole.PRIMARY), None)
    if primary is None:
        hint = "it holds no container: build or pull it again"
        raise ImageError(f"{path} has no primary system partition", hint)
    overlays = [o for o in objects if o.role == PartitionRole.OVERLAY and o.group == primary.group]
    if any(o.file_system != FileSystem.SQUASHFS for o in (primary, *overlays)):
        raise ImageError(
            f"{path}: a partition of its root file system is not squashfs",
            f"make a SIF with squashfs: apptainer build NEW.sif {path.name} (it leaves out overlays)",
        )
    return [primary, *overlays]


def _check_kinds(path: Path, objects: Sequence[SifObject]) -> None:
    if any(o.kind == ObjectType.OCI_ROOT for o in objects):
        raise ImageError(
            f"{path} is an OCI-SIF, which holds OCI layers instead of partitions",
            "make a plain SIF of it: singularity build --no-oci, or convert the OCI image: builder convert",
        )
    if any(o.file_system == FileSystem.ENCRYPTED_SQUASHFS for o in objects):
        hint = "build on the SIF that it was made from, without encryption"
        raise ImageError(f"{path} is encrypted", hint)


def _check_overlaps(path: Path, objects: Sequence[SifObject]) -> None:
    """Raise ImageError if objects overlap: a small file could hold thousands of large ones."""
    end = raw.HEADER.size
    for found in sorted((o for o in objects if o.size), key=lambda o: o.offset):
        if found.offset < end:
            raise ImageError(f"{path}: the objects of the SIF overlap each other", _DAMAGED)
        end = found.offset + found.size
