"""SIF, the Singularity Image Format, version 01: read, checked, and put together from squashfs pieces without apptainer.

A SIF is a header, 48 descriptors, and what they describe: here a definition, two JSON objects (what ``inspect`` shows, and the
OCI config), and partitions. ``flat`` images have one, the primary system partition; ``layered`` ones have overlays above
it, which the runtime mounts over each other. Each piece is made once, kept in the cache by what it is made of, and copied. The
format is that of github.com/sylabs/sif (v2); ids and times come from the content, so the same image gives the same bytes.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from builder.config.recipe import Compression
from builder.errors import ImageError
from builder.layers.build import PACKAGES
from builder.model import Image, Layer, SifImage, canonical_json
from builder.oci.manifest import require_layers
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.sif.singularity import (
    FOLDER,
    Metadata,
    common_files,
    container_environment,
    container_files,
    guard_files,
)
from builder.store.blobs import Store
from builder.store.files import CHUNK, fingerprint, require_space, sha256_file, space_errors, write_atomic
from builder.trees import squashfs
from builder.trees.merge import Merge, Source, layer_source, listed_source, squashfs_source
from builder.trees.rootfs import Member
from builder.trees.squashfs import DIRECTORY, WHITEOUT, Squashfs, SquashfsWriter

Layout = Literal["flat", "layered"]

#: Overlay partitions of a SIF that builder makes. The runtimes' own limit is a mount option of 4096 bytes, about 75 partitions;
#: but each costs a loop device (of 256 by default) or a squashfuse process for every container on a host.
MAX_OVERLAYS = 8
#: Of compressed layer: from here on a package counts as large, and does not share a piece with small ones.
LARGE = 32 << 20
#: Raised when the same image gives other bytes.
FORMAT = 1

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?III7q128s384s")
_PARTITION = struct.Struct("<ii3s")
_LAUNCH = b"#!/usr/bin/env run-singularity\n"
_SLOTS = 48
_DESCRIPTORS_AT = 4096
_DATA_AT = _DESCRIPTORS_AT + _SLOTS * _DESCRIPTOR.size
_GROUP = 0xF0000001
_ARCHITECTURES = {
    "386": b"01",
    "amd64": b"02",
    "arm": b"03",
    "arm64": b"04",
    "ppc64": b"05",
    "ppc64le": b"06",
    "s390x": b"11",
    "riscv64": b"12",
}
_DEFINITION, _PARTITION_TYPE, _JSON, _OCI_ROOT = 0x4001, 0x4004, 0x4006, 0x400A
_SQUASHFS, _ENCRYPTED = 1, 5
_FILE_SYSTEMS = {1: "squashfs", 2: "ext3", 3: "an archive", 4: "raw data", 5: "encrypted squashfs"}
_PRIMARY, _OVERLAY = 2, 4
INSPECT, OCI_CONFIG_NAME = "inspect-metadata.json", "oci-config.json"


# reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SifObject:
    """One descriptor. ``offset`` and ``size`` in bytes; of a partition ``file_system`` and ``part`` as SIF numbers them."""

    kind: int
    group: int
    offset: int
    size: int
    name: str
    file_system: int = 0
    part: int = 0


@dataclass(frozen=True, slots=True)
class Sif:
    """A SIF file as its header and descriptors tell."""

    path: Path
    architecture: str
    uuid: bytes
    created: int
    objects: tuple[SifObject, ...]

    @property
    def partitions(self) -> tuple[SifObject, ...]:
        """The primary partition and the overlays of its group above it, from the bottom up: what the runtimes mount."""
        primary = next(o for o in self.objects if o.kind == _PARTITION_TYPE and o.part == _PRIMARY)
        overlays = (
            o
            for o in self.objects
            if o.kind == _PARTITION_TYPE and o.part == _OVERLAY and o.group == primary.group
        )
        return (primary, *overlays)

    def read(self, name: str) -> bytes | None:
        """An object's content, by name; None when there is none."""
        found = next((o for o in self.objects if o.name == name and o.kind == _JSON), None)
        if found is None:
            return None
        with self.path.open("rb") as f:
            f.seek(found.offset)
            return f.read(found.size)

    def sources(self, below: str = "") -> list[Source]:
        """The trees of the partitions, from the bottom up."""
        return [
            squashfs_source(self.path, o.offset, f"{self.path} (partition {i + 1})", below)
            for i, o in enumerate(self.partitions)
        ]

    def config(self) -> dict[str, Any]:
        """An OCI image config: the one it was made from, or one put together from its environment, labels and runscript."""
        if (data := self.read(OCI_CONFIG_NAME)) is not None:
            with contextlib.suppress(ValueError):
                stored = json.loads(data)
                if isinstance(stored, dict) and isinstance(stored.get("config"), dict):
                    return stored
        files = container_files(self.sources(FOLDER))
        env = container_environment(files)
        inner: dict[str, Any] = {"Env": [f"{k}={v}" for k, v in env.items()]}
        with contextlib.suppress(ValueError, AttributeError):
            labels = json.loads(files.get(f"{FOLDER}/labels.json", "{}"))
            if labels:
                inner["Labels"] = {str(k): str(v) for k, v in labels.items()}
        if f"{FOLDER}/runscript" in files:
            inner["Entrypoint"] = [f"/{FOLDER}/runscript"]
        created = datetime.datetime.fromtimestamp(max(self.created, 0), datetime.UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        return {"architecture": self.architecture, "os": "linux", "created": created, "config": inner}


def read_sif(path: Path, architecture: str | None = None) -> Sif:
    """Reads a SIF's header and descriptors, and checks that it is one that can be used.

    Args:
        path: the file.
        architecture: refuse others (the OCI's name).

    Raises:
        ImageError: missing, not a SIF, cut short, encrypted, for another architecture, or without a squashfs root file system.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            head, table = f.read(_HEADER.size), b""
            if len(head) == _HEADER.size and head[32:41] == b"SIF_MAGIC":
                _, _, _, arch, uuid, created, _, _, slots, at, length, *_ = _HEADER.unpack(head)
                if not (0 <= slots <= 4096 and at >= 0 and length >= 0):
                    raise ImageError(f"{path}: the SIF's header is damaged", "copy or build it again")
                f.seek(at)
                table = f.read(slots * _DESCRIPTOR.size)
    except FileNotFoundError:
        raise ImageError(f"{path}: no such file", "correct the path, or fetch the SIF") from None
    except IsADirectoryError:
        raise ImageError(f"{path} is a folder, not a SIF", "name a SIF file") from None
    except OSError as e:
        raise ImageError(f"{path}: {e.strerror}", "let this user read it") from None
    if head[32:41] != b"SIF_MAGIC":
        raise ImageError(
            f"{path} is not a SIF", f"{_looks_like(head)}; build or pull a SIF with apptainer or builder"
        )
    objects = []
    cut = len(table) < slots * _DESCRIPTOR.size
    for start in range(0, len(table) - _DESCRIPTOR.size + 1, _DESCRIPTOR.size):
        kind, used, _, group, _, offset, length, *_, name, extra = _DESCRIPTOR.unpack_from(table, start)
        if not used:
            continue
        cut |= offset < 0 or length < 0 or offset + length > size
        file_system, part, own = _PARTITION.unpack_from(extra) if kind == _PARTITION_TYPE else (0, 0, arch)
        if part == _PRIMARY and own.strip(b"\0") not in (b"", b"00"):
            arch = own
        objects.append(
            SifObject(
                kind,
                group,
                offset,
                length,
                name.partition(b"\0")[0].decode(errors="replace"),
                file_system,
                part,
            )
        )
    if cut:
        raise ImageError(
            f"{path} is cut short: it has {size} bytes and describes more", "copy or download it again"
        )
    found = {v: k for k, v in _ARCHITECTURES.items()}.get(arch[:2], "unknown")
    _check_objects(path, objects)
    if architecture is not None and found not in (architecture, "unknown"):
        raise ImageError(
            f"{path} is for {found}, not for {architecture}",
            "take a SIF for this architecture, or correct the platform",
        )
    return Sif(path, found, uuid, created, tuple(objects))


def _check_objects(path: Path, objects: Sequence[SifObject]) -> None:
    if any(o.kind == _OCI_ROOT for o in objects):
        raise ImageError(
            f"{path} is an OCI-SIF, which holds OCI layers instead of partitions",
            "make a plain SIF of it: singularity build --no-oci, or convert the OCI image: builder convert",
        )
    parts = [o for o in objects if o.kind == _PARTITION_TYPE]
    if any(o.file_system == _ENCRYPTED for o in parts):
        raise ImageError(f"{path} is encrypted", "build on the SIF that it was made from, without encryption")
    primary = next((o for o in parts if o.part == _PRIMARY), None)
    if primary is None:
        raise ImageError(
            f"{path} has no primary system partition", "it holds no container: build or pull it again"
        )
    above = (o for o in parts if o.part == _OVERLAY and o.group == primary.group)
    for o in (primary, *above):
        if o.file_system != _SQUASHFS:
            what = "root file system" if o is primary else "overlay partition"
            raise ImageError(
                f"{path}: its {what} is {_FILE_SYSTEMS.get(o.file_system, 'unknown')}, not squashfs",
                f"make one with squashfs: apptainer build NEW.sif {path.name}",
            )


def _looks_like(head: bytes) -> str:
    known = {
        b"hsqs": "it is a bare squashfs",
        b"\x1f\x8b": "it is gzip data",
        b"<!DO": "it is a web page",
        b"<htm": "it is a web page",
    }
    return next(
        (text for magic, text in known.items() if head.startswith(magic)),
        "its first bytes are not those of one",
    )


def open_sif(path: Path, store: Store, architecture: str | None = None) -> SifImage:
    """A SIF on this machine, checked; its digest is computed once and remembered while the file stays as it is.

    Raises:
        ImageError: as :func:`read_sif`.
    """
    sif = read_sif(path, architecture)
    digest = _remembered(path, store)
    if digest is None:
        digest = sha256_file(path)
        _remember(path, store, digest)
    return SifImage(path, digest, path.stat().st_size, sif.architecture)


def _record(path: Path, store: Store) -> Path:
    return store.folders.seen / f"sif-{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}"


def _remembered(path: Path, store: Store) -> str | None:
    """The digest of a file that is as it was when it was hashed."""
    with contextlib.suppress(OSError, ValueError):
        known, digest = _record(path, store).read_text().rsplit(" ", 1)
        if known == fingerprint(path):
            return digest
    return None


def _remember(path: Path, store: Store, digest: str) -> None:
    write_atomic(_record(path, store), f"{fingerprint(path)} {digest}".encode())


# writing --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A squashfs that will be a partition: a range of a file, and what identifies it."""

    path: Path
    offset: int
    size: int
    digest: str
    name: str

    def source(self, below: str = "") -> Source:
        return squashfs_source(self.path, self.offset, self.name, below)


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
    """Writes an image as a SIF; the same image, options and time give the same bytes.

    Args:
        image: the image; its layers are on this machine. With ``base``, the layers are those above it.
        path: the file; it is renamed into place when it is whole.
        layout: ``flat``: one partition; ``layered``: the base's and overlay partitions above it.
        compression: of the pieces made here. A base SIF's partitions stay as they are in a layered SIF.
        base: a SIF that lies below the layers.

    Raises:
        ImageError: a layer or the base is damaged, for another architecture, or not on this machine.
        SpaceError: the disk is full.
    """
    require_layers(image, f"write {path}")
    config = json.loads(image.config)
    architecture = config.get("architecture", "amd64")
    if architecture not in _ARCHITECTURES:
        raise ImageError(
            f"SIF knows no architecture {architecture!r}", f"it knows {', '.join(_ARCHITECTURES)}"
        )
    below = read_sif(base.path, architecture) if base else None
    metadata = Metadata(config, image.digest, container_files(below.sources(FOLDER)) if below else None)
    maker = _Maker(
        image, metadata, settings, store, compression, below, base.digest if base else "", reporter
    )
    with space_errors(path.parent):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ImageError(f"{path.parent} is not a folder", "choose another place for the SIF") from None
        if path.is_dir():
            raise ImageError(f"{path} is a folder", "name a file for the SIF")
        pieces = maker.flat() if layout == "flat" else maker.layered()
        contents = _Contents.of(pieces, metadata, image.config, architecture, settings.epoch)
        with contextlib.suppress(ImageError):
            if read_sif(path).uuid == contents.uuid and (known := _remembered(path, store)):
                return SifImage(path, known, path.stat().st_size, architecture)
        require_space(path.parent, sum(p.size for p in pieces), f"writing {path}")
        temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
        try:
            with temporary.open("w+b") as out:
                contents.write(out, architecture, settings.epoch)
            digest, size = sha256_file(temporary), temporary.stat().st_size
            temporary.chmod(0o755)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    _remember(path, store, digest)
    return SifImage(path, digest, size, architecture)


class _Maker:
    """Makes the pieces of one image, or finds them in the cache."""

    def __init__(
        self,
        image: Image,
        metadata: Metadata,
        settings: Settings,
        store: Store,
        compression: Compression,
        below: Sif | None,
        below_digest: str,
        reporter: Reporter,
    ) -> None:
        self._image = image
        self._metadata = metadata
        self._settings = settings
        self._store = store
        self._compression: Compression = compression
        self._below = below
        self._below_digest = below_digest
        self._reporter = reporter
        self._common = common_files(settings.epoch)

    def flat(self) -> list[_Piece]:
        """One piece of everything."""
        sources = [listed_source(self._common)]
        if self._below:
            sources += self._below.sources()
        sources += [layer_source(x, self._store) for x in self._image.layers]
        top = self._metadata.files(self._settings.epoch)
        key = [
            self._below_digest,
            [x.diff_id for x in self._image.layers],
            [t.decode() for _, t in (*self._common, *top)],
        ]
        return [self._piece("root", ["flat", *key], [*sources, listed_source(top)])]

    def layered(self) -> list[_Piece]:
        """The base's piece or partitions, and overlays of the layers above it."""
        base, groups = _deal(self._image, self._below is not None, MAX_OVERLAYS - self._inherited())
        common = listed_source(self._common)
        if self._below:
            pieces = [
                _Piece(self._below.path, o.offset, o.size, f"{self._below_digest}#{i}", o.name or f"base-{i}")
                for i, o in enumerate(self._below.partitions)
            ]
        else:
            guard = guard_files(self._settings.epoch)
            key = ["base", [x.diff_id for x in base], [t.decode() for _, t in (*self._common, *guard)]]
            sources = [common, *(layer_source(x, self._store) for x in base), listed_source(guard)]
            pieces = [self._piece("base", key, sources)]
        for group in groups:
            sources = [layer_source(x, self._store) for x in group.layers]
            key = ["overlay", [x.diff_id for x in group.layers]]
            if group is groups[-1]:
                top = self._metadata.files(self._settings.epoch)
                sources.append(listed_source(top))
                key.append([t.decode() for _, t in top])
            # A piece of packages alone hides nothing and lists every directory; any other depends on what it lies on.
            lower = () if group.packages else tuple(pieces)
            pieces.append(self._piece(group.name, [*key, [p.digest for p in lower]], sources, lower))
        return pieces

    def _inherited(self) -> int:
        """Overlay partitions that the base has already."""
        count = len(self._below.partitions) - 1 if self._below else 0
        if count > MAX_OVERLAYS - 4:
            assert self._below is not None
            raise ImageError(
                f"{self._below.path} has {count} overlay partitions of its own; with builder's they would be too many",
                "use 'sif: {layout: flat}' in the recipe, or another base",
            )
        return count

    def _piece(
        self, name: str, key: Sequence[Any], sources: Sequence[Source], lower: Sequence[_Piece] = ()
    ) -> _Piece:
        described = [
            key,
            self._compression,
            squashfs.LEVELS[self._compression],
            squashfs.FORMAT,
            FORMAT,
            self._settings.epoch,
        ]
        value = hashlib.sha256(canonical_json(described)).hexdigest()
        record = self._store.folders.layers / f"sif-{value}.json"
        with self._store.lock(f"sif piece {value}"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                known = json.loads(record.read_bytes())
                if (path := self._store.get(known["digest"], known["size"])) is not None:
                    os.utime(record)
                    return _Piece(path, 0, known["size"], known["digest"], name)
            self._reporter.note(f"squashing {name}")
            digest, size = self._squash(sources, lower)
            write_atomic(record, canonical_json({"digest": digest, "size": size, "name": name}))
        return _Piece(self._store.path(digest), 0, size, digest, name)

    def _squash(self, sources: Sequence[Source], lower: Sequence[_Piece]) -> tuple[str, int]:
        temporary = self._store.temporary()
        merge = Merge(sources)
        try:
            with (
                temporary.open("w+b") as out,
                SquashfsWriter(out, self._compression, self._settings.jobs, self._settings.epoch) as writer,
            ):
                for member, content in merge:
                    writer.add(member, content)
                if lower:
                    for member in _beneath(merge, lower):
                        writer.add(member)
                size = writer.finish()
            digest = sha256_file(temporary)
            self._store.adopt(temporary, digest)
        finally:
            temporary.unlink(missing_ok=True)
        return digest, size


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that become one piece. ``packages``: nothing but packages, which never hide each other's files."""

    name: str
    layers: tuple[Layer, ...]
    packages: bool


def _deal(image: Image, has_base: bool, most: int) -> tuple[list[Layer], list[_Group]]:
    """The base's layers, and at most ``most`` groups of those above it; a new version of a package changes one group.

    Packages lie in groups by the hash of their names, large ones apart from small ones, since their order does not matter.
    """
    titles = _titles(image)
    ours = [i for i, title in enumerate(titles) if title]
    first = 0 if has_base else (ours[0] if ours else 1)
    packages = [
        i
        for i, x in enumerate(image.layers)
        if i >= first and (x.descriptor.annotations.get(PACKAGES) or _of_package(titles[i]))
    ]
    low, high = (packages[0], packages[-1] + 1) if packages else (first, first)
    if (
        len(packages) != high - low
    ):  # something lies between them: not an image of ours, and the order may matter
        packages, low, high = [], first, first
    buckets: dict[str, list[Layer]] = {}
    for i in packages:
        layer = image.layers[i]
        name = _stable_name(titles[i])
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % ((most - 2) // 2)
        buckets.setdefault(
            f"{'large' if layer.descriptor.size >= LARGE else 'small'}-{number + 1}", []
        ).append(layer)
    groups = [_Group("bottom", image.layers[first:low], False)] if low > first else []
    groups += [_Group(f"packages-{name}", tuple(layers), True) for name, layers in sorted(buckets.items())]
    return list(image.layers[:first]), [*groups, _Group("top", image.layers[high:], False)]


def _titles(image: Image) -> list[str]:
    """What builder's layers are called, in the config's history; empty for those of a base."""
    history = [
        h.get("created_by", "")
        for h in json.loads(image.config).get("history") or ()
        if not h.get("empty_layer")
    ]
    if len(history) != len(image.layers):
        history = [f"builder: {x.title}" if x.packages else "" for x in image.layers]
    return [text.removeprefix("builder: ") if text.startswith("builder: ") else "" for text in history]


def _of_package(title: str) -> bool:
    return title.startswith(("conda ", "pip "))


def _stable_name(title: str) -> str:
    """A layer's title without versions: ``pip torch``, ``conda group 3``."""
    match = re.match(r"\w+ group \d+|\w+ \S+", title)
    return match[0] if match else title


def _beneath(merge: Merge, lower: Sequence[_Piece]) -> Iterator[Member]:
    """What a piece needs because of those below it: whiteouts, and the attributes of directories that it does not list itself."""
    known: dict[str, dict[str, Member]] = {}

    def entries(folder: str) -> dict[str, Member]:
        """What the pieces below show in a folder."""
        if folder not in known:
            known[folder] = {}
            for member, _ in Merge([p.source(folder) for p in lower]):
                if member.path != folder:
                    parent, _, name = member.path.rpartition("/")
                    known.setdefault(parent, {})[name] = member
                    if member.kind == DIRECTORY:
                        known.setdefault(member.path, {})
        return known[folder]

    def hide(folder: str) -> Iterator[Member]:
        for name, member in entries(folder).items():
            path = f"{folder}/{name}" if folder else name
            above = merge.kinds.get(path)
            if above is None:
                yield Member(path, WHITEOUT, 0, 0, 0, 0, 0, "")
            elif above == DIRECTORY == member.kind:
                yield from hide(path)

    def find(path: str) -> Member | None:
        for piece in reversed(lower) if path else lower[:1]:
            with Squashfs(piece.path, piece.offset, piece.name) as tree:
                for member, _ in tree.members(path):
                    return member
        return None

    done: set[str] = set()
    for folder in sorted(merge.opaque | {p for p in merge.whiteouts if merge.kinds.get(p) == DIRECTORY}):
        for member in hide(folder):
            if member.path not in done:
                done.add(member.path)
                yield member
    for path in sorted(merge.whiteouts):
        parent, _, name = path.rpartition("/")
        if path not in merge.kinds and path not in done and name in entries(parent):
            yield Member(path, WHITEOUT, 0, 0, 0, 0, 0, "")
    for path in sorted(merge.implied):
        if (attributes := find(path)) is not None:
            yield attributes


@dataclass(frozen=True, slots=True)
class _Contents:
    """What goes into a SIF: type, bytes or piece, name and the descriptor's extra part of each object."""

    objects: tuple[tuple[int, bytes | _Piece, str, bytes], ...]
    uuid: bytes

    @classmethod
    def of(
        cls, pieces: Sequence[_Piece], metadata: Metadata, config: bytes, architecture: str, epoch: int
    ) -> _Contents:
        arch = _ARCHITECTURES[architecture] + b"\0"
        objects: list[tuple[int, bytes | _Piece, str, bytes]] = [
            (_DEFINITION, metadata.definition.encode(), "definition", b""),
            (_JSON, canonical_json(metadata.inspect()), INSPECT, b""),
            (_JSON, config, OCI_CONFIG_NAME, b""),
        ]
        for i, piece in enumerate(pieces):
            extra = _PARTITION.pack(_SQUASHFS, _OVERLAY if i else _PRIMARY, arch)
            objects.append((_PARTITION_TYPE, piece, piece.name, extra))
        described = [
            [k, x.digest if isinstance(x, _Piece) else hashlib.sha256(x).hexdigest(), n]
            for k, x, n, _ in objects
        ]
        # RFC 9562: version 8 is for ids made in one's own way
        uuid = bytearray(hashlib.sha256(canonical_json([described, architecture, epoch])).digest()[:16])
        uuid[6], uuid[8] = uuid[6] & 0x0F | 0x80, uuid[8] & 0x3F | 0x80
        return cls(tuple(objects), bytes(uuid))

    def write(self, out: BinaryIO, architecture: str, epoch: int) -> None:
        """Writes header, descriptors, objects and pieces."""
        table = bytearray()
        at = _DATA_AT
        for number, (kind, content, name, extra) in enumerate(self.objects, 1):
            start = at + (-at % 4096 if isinstance(content, _Piece) else 0)
            size = content.size if isinstance(content, _Piece) else len(content)
            out.seek(start)
            if isinstance(content, _Piece):
                _copy(content, out, start)
            else:
                out.write(content)
            head = (kind, True, number, _GROUP, 0, start, size, start + size - at, epoch, epoch, 0, 0)
            table += _DESCRIPTOR.pack(*head, name.encode()[:127], extra)
            at = start + size
        out.seek(0)
        first = (
            _LAUNCH,
            b"SIF_MAGIC\0",
            b"01\0",
            _ARCHITECTURES[architecture] + b"\0",
            self.uuid,
            epoch,
            epoch,
        )
        places = (
            _SLOTS - len(self.objects),
            _SLOTS,
            _DESCRIPTORS_AT,
            _SLOTS * _DESCRIPTOR.size,
            _DATA_AT,
            at - _DATA_AT,
        )
        out.write(_HEADER.pack(*first, *places))
        out.seek(_DESCRIPTORS_AT)
        out.write(table)


def _copy(piece: _Piece, out: BinaryIO, at: int) -> None:
    """Copies a piece, in the kernel where it can (some file systems then share the blocks)."""
    out.flush()
    left, source_at = piece.size, piece.offset
    with piece.path.open("rb") as source:
        copy = partial(os.copy_file_range, source.fileno(), out.fileno())
        with contextlib.suppress(
            OSError
        ):  # other file systems, or a kernel that cannot: by hand, from where it stopped
            while left and (n := copy(left, source_at, at)):
                left, source_at, at = left - n, source_at + n, at + n
        source.seek(source_at)
        out.seek(at)
        while left and (data := source.read(min(left, CHUNK))):
            out.write(data)
            left -= len(data)
    if left:
        raise ImageError(f"{piece.path} ended early: it was changed while it was copied", "build again")
    out.seek(0, os.SEEK_END)
