"""Opens images of any kind by name, reads their file trees, and converts between OCI images and SIFs."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from builder.bases.pack import pack_tar
from builder.bases.reference import path_and_tag
from builder.bases.resolve import open_base, resolve_base
from builder.config.recipe import Compression
from builder.errors import UsageError
from builder.image.archive import write_docker_archive, write_oci_archive
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, SifImage, canonical_json
from builder.oci.layout import read_layout, write_layout
from builder.oci.manifest import parse_manifest, require_layers
from builder.progress import QUIET, Reporter, working
from builder.settings import Settings
from builder.sif.plain import write_plain
from builder.sif.read import Sif, open_sif, read_sif
from builder.sif.write import write_sif
from builder.store.blobs import Store
from builder.trees.compare import Tree, is_metadata, read_tree
from builder.trees.member import Kind, Member
from builder.trees.sources import Source, layer_source

KINDS = ("oci", "oci-archive", "docker-archive", "docker", "sif", "squashfs")
#: How the names of plain squashfs images end.
SQUASHFS_SUFFIXES = (".sqsh", ".squashfs")
_NAMES = (
    "write it as FILE.sif, oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE or docker://host/repository:tag"
)


def split_image(reference: str) -> tuple[str, str]:
    """Returns the kind of an image's name, and the rest of it. ``.sif`` and ``.sqsh`` files need no kind.

    Raises:
        UsageError: the name is of none of the kinds.
    """
    kind, sep, rest = reference.partition(":")
    if sep and rest and kind in KINDS:
        return kind, rest
    if reference.endswith(".sif"):
        return "sif", reference
    if reference.endswith(SQUASHFS_SUFFIXES):
        return "squashfs", reference
    raise UsageError(f"{reference!r} does not name an image", _NAMES)


def open_image(
    reference: str,
    settings: Settings,
    store: Store,
    *,
    architecture: str | None = None,
    reporter: Reporter = QUIET,
) -> Image | SifImage:
    """Opens an image by its name.

    Args:
        reference: ``FILE.sif``, ``sif:FILE``, ``oci:DIR[:TAG]``, ``oci-archive:FILE``,
            ``docker-archive:FILE`` or ``docker://NAME``.
        settings: whether the network may be used.
        store: receives what is downloaded or unpacked.
        architecture: which image to take if there are several. None: the only one; ``amd64`` for archives and
            registries.
        reporter: receives the progress.

    Raises:
        UsageError: the name is of none of these kinds.
        ImageError, RegistryError: there is no such image, or it is damaged.
    """
    kind, rest = split_image(reference)
    if kind == "sif":
        return open_sif(Path(rest), store, architecture)
    if kind == "squashfs":
        raise UsageError(f"{rest}: a plain squashfs is not an image that builder reads", _NAMES)
    if kind == "oci":
        return read_layout(*path_and_tag(rest, Path()), architecture)
    wanted = architecture or "amd64"
    locked = resolve_base(reference, wanted, settings, store, reporter=reporter)
    base = open_base(locked, wanted, settings, store, reporter=reporter)
    manifest = store.path(base.digest).read_bytes()
    data = parse_manifest(manifest, Descriptor("", base.digest, len(manifest)), reference)
    config = Descriptor.from_json(data["config"])
    descriptor = Descriptor(data.get("mediaType") or OCI_MANIFEST, base.digest, len(manifest))
    return Image(base.layers, store.path(config.digest).read_bytes(), config, manifest, descriptor)


def image_sources(image: Image | SifImage, store: Store) -> list[Source]:
    """Returns the layers or partitions of an image, from the bottom up.

    Raises:
        ImageError: a layer is not on this machine, or the SIF is damaged.
    """
    if isinstance(image, SifImage):
        return read_sif(image.path).sources()
    require_layers(image, "read the image's files")
    return [layer_source(layer, store) for layer in image.layers]


def image_tree(image: Image | SifImage, store: Store) -> Tree:
    """Returns all files of an image, for :func:`builder.trees.compare.compare_trees`.

    Raises:
        ImageError: a layer or partition is damaged or not on this machine.
    """
    return read_tree(image_sources(image, store))


# conversion -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of a conversion."""

    source_digest: str
    digest: str
    """Of the new image: the bytes of a SIF or squashfs, or an OCI image's manifest."""
    size: int
    """Bytes of the new image."""


def convert_image(
    source: str,
    dest: str,
    settings: Settings,
    store: Store,
    *,
    layout: Literal["flat", "layered"] = "flat",
    compression: Compression | None = None,
    architecture: str | None = None,
    reporter: Reporter = QUIET,
) -> Converted:
    """Converts an OCI image to a SIF or a plain squashfs, or a SIF to an OCI image or a plain squashfs.

    Args:
        source: the image's name, see :func:`open_image`.
        dest: the name of the new image; not ``docker://``.
        settings: temporary folder and number of threads.
        store: receives what is downloaded or written on the way.
        layout: of a SIF: one squashfs, or a partition for the base and overlay partitions.
        compression: of a squashfs. None: zstd in a SIF, gzip in a plain one.
        architecture: which image of the source to take if there are several.
        reporter: receives the progress.

    Raises:
        UsageError: a name is of no known kind, ``dest`` is in a registry, or no conversion is needed.
        ImageError, RegistryError: there is no such image, or it is damaged.
        SpaceError: the disk is full.
    """
    kind, rest = split_image(dest)
    if kind == "docker":
        raise UsageError(
            f"convert does not write to a registry: {dest}",
            "convert to oci:DIR:TAG, and push that: skopeo copy oci:DIR:TAG docker://...",
        )
    image = open_image(source, settings, store, architecture=architecture, reporter=reporter)
    if kind == "squashfs":
        flat = sif_to_oci(image, settings, store, reporter) if isinstance(image, SifImage) else image
        plain = write_plain(
            flat, Path(rest), settings, store, compression=compression or "gzip", reporter=reporter
        )
        return Converted(image.digest, plain.digest, plain.size)
    if isinstance(image, SifImage) == (kind == "sif"):
        both = "SIFs" if kind == "sif" else "OCI images"
        raise UsageError(
            f"{source} and {dest} are both {both}", "copy the file, or use skopeo copy for OCI images"
        )
    if isinstance(image, SifImage):
        made = sif_to_oci(image, settings, store, reporter)
        with working(reporter, f"writing {dest}"):
            _write_oci(made, kind, rest, store)
        return Converted(image.digest, made.digest, made.size)
    used = compression or "zstd"
    sif = write_sif(image, Path(rest), settings, store, layout=layout, compression=used, reporter=reporter)
    return Converted(image.digest, sif.digest, sif.size)


def _write_oci(image: Image, kind: str, place: str, store: Store) -> None:
    """Writes an OCI image to ``PATH[:TAG]``. Without a tag, an archive for Docker is named after its file."""
    path, _, tag = place.partition(":")
    if kind == "oci":
        write_layout(image, Path(path), tag or "latest", store)
    elif kind == "oci-archive":
        write_oci_archive(image, Path(path), tag or "latest")
    else:
        name = tag or Path(path).name.split(".")[0].lower()
        write_docker_archive(image, Path(path), name if ":" in name else f"{name}:latest")


def sif_to_oci(image: SifImage, settings: Settings, store: Store, reporter: Reporter = QUIET) -> Image:
    """Returns a SIF as an OCI image: a config, and a deterministic gzip layer for each partition.

    If the SIF holds the config of the OCI image that it was made from, that config is used, and
    ``/.singularity.d`` is left out, because a conversion back generates it. Otherwise the config has the
    SIF's environment, labels and runscript, and ``/.singularity.d`` stays.

    Args:
        image: the SIF.
        settings: the number of threads to compress with.
        store: receives the config, the manifest and the layers.
        reporter: receives the progress.

    Raises:
        ImageError: the SIF is damaged.
        SpaceError: the disk is full.
    """
    sif = read_sif(image.path)
    has_config = sif.stored_config() is not None
    layers = []
    for number, (part, source) in enumerate(zip(sif.partitions, sif.sources(), strict=True), 1):
        title = f"{part.name or 'partition'} of a SIF"
        with working(reporter, f"converting partition {number} of {len(sif.partitions)}"):
            layers.append(pack_tar(_tar(source, without_metadata=has_config), store, settings.jobs, title))

    config = canonical_json(
        _config(sif, [layer.diff_id for layer in layers], [layer.title for layer in layers])
    )
    config_descriptor = Descriptor(OCI_CONFIG, store.add(config), len(config))
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config_descriptor.to_json(),
            "layers": [layer.descriptor.to_json() for layer in layers],
        }
    )
    manifest_descriptor = Descriptor(OCI_MANIFEST, store.add(manifest), len(manifest))
    return Image(tuple(layers), config, config_descriptor, manifest, manifest_descriptor)


def _config(sif: Sif, diff_ids: list[str], titles: list[str]) -> dict[str, Any]:
    config = sif.config()
    created = config.get("created", "")
    history = [{"created": created, "created_by": f"builder convert: {title}"} for title in titles]
    return {**config, "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": history}


def _tar(source: Source, *, without_metadata: bool) -> Iterator[bytes]:
    """Returns a partition as a layer's tar.

    Owners and times are unchanged, whiteouts have the form of image-spec, hard links follow all files.
    """
    links = []
    for member, content in source():
        if without_metadata and is_metadata(member.path, member.target):
            continue
        if member.kind is Kind.HARDLINK:
            links.append(member)
            continue
        if member.kind is Kind.WHITEOUT:
            member = _oci_whiteout(member)
        yield _header(member, member.size)
        for data in content:
            yield bytes(data)
        yield bytes(-member.size % tarfile.BLOCKSIZE)
    for member in links:
        yield _header(member, 0)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _oci_whiteout(member: Member) -> Member:
    """Returns a whiteout as a file ``.wh.NAME`` (image-spec, layer.md)."""
    folder, _, name = member.path.rpartition("/")
    path = f"{folder}/.wh.{name}" if folder else f".wh.{name}"
    return replace(member, path=path, kind=Kind.FILE, mode=0o644)


def _header(member: Member, size: int) -> bytes:
    info = tarfile.TarInfo(member.path or ".")
    info.type, info.linkname = member.kind, member.target
    info.mode, info.uid, info.gid = member.mode, member.uid, member.gid
    info.size, info.mtime = size, int(member.mtime)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
