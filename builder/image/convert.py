"""Images of any kind by their name, their file trees, and SIFs as OCI images."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.bases.pack import pack_tar
from builder.errors import UsageError
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, SifImage, canonical_json
from builder.oci.layout import read_layout
from builder.oci.manifest import parse_json, require_layers
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.sif.format import OCI_CONFIG_NAME
from builder.sif.read import Sif, open_sif, read_sif
from builder.store.blobs import Store
from builder.trees.compare import Tree, is_metadata, read_tree
from builder.trees.member import Kind
from builder.trees.sources import Source, layer_source

KINDS = ("oci", "oci-archive", "docker-archive", "docker", "sif")
_CURE = (
    "write it as FILE.sif, oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE or docker://host/repository:tag"
)


def split_image(reference: str) -> tuple[str, str]:
    """Kind and the rest of an image's name; a file that ends in ``.sif`` needs no kind.

    Raises:
        UsageError: it is of none of the kinds.
    """
    kind, sep, rest = reference.partition(":")
    if sep and rest and kind in KINDS:
        return kind, rest
    if reference.endswith(".sif"):
        return "sif", reference
    raise UsageError(f"{reference!r} does not name an image", _CURE)


def open_image(
    reference: str,
    settings: Settings,
    store: Store,
    *,
    architecture: str | None = None,
    reporter: Reporter = QUIET,
) -> Image | SifImage:
    """An image by its name: ``FILE.sif``, ``sif:FILE``, ``oci:DIR[:TAG]``, ``oci-archive:``, ``docker-archive:``, ``docker://``.

    Args:
        architecture: which one to take of an image for several; archives and registries are asked for ``amd64`` unless told.

    Raises:
        UsageError: the name is of none of these kinds.
        ImageError, RegistryError: there is no such image, or it is damaged.
    """
    from builder.bases.reference import path_and_tag
    from builder.bases.resolve import open_base, resolve_base

    kind, rest = split_image(reference)
    if kind == "sif":
        return open_sif(Path(rest), store, architecture)
    if kind == "oci":
        return read_layout(*path_and_tag(rest, Path()), architecture)
    wanted = architecture or "amd64"
    base = open_base(
        resolve_base(reference, wanted, settings, store, reporter=reporter),
        wanted,
        settings,
        store,
        reporter=reporter,
    )
    manifest = store.path(base.digest).read_bytes()
    data = parse_json(manifest, f"the manifest of {reference}")
    config = Descriptor.from_json(data["config"])
    described = Descriptor(data.get("mediaType") or OCI_MANIFEST, base.digest, len(manifest))
    return Image(base.layers, store.path(config.digest).read_bytes(), config, manifest, described)


def image_sources(image: Image | SifImage, store: Store) -> list[Source]:
    """What an image's tree is made of, from the bottom up."""
    if isinstance(image, SifImage):
        return read_sif(image.path).sources()
    require_layers(image, "read the image's files")
    return [layer_source(layer, store) for layer in image.layers]


def image_tree(image: Image | SifImage, store: Store) -> Tree:
    """All files of an image, for :func:`builder.trees.compare.compare_trees`.

    Raises:
        ImageError: a layer or partition is damaged or not on this machine.
    """
    return read_tree(image_sources(image, store))


# SIF to OCI -----------------------------------------------------------------------------------------------------------


def sif_to_oci(image: SifImage, settings: Settings, store: Store, reporter: Reporter = QUIET) -> Image:
    """A SIF as an OCI image: a gzip layer for each partition, always the same bytes, and a config.

    The config is the one that the SIF was made from, when it holds one, and ``/.singularity.d`` is left out: a conversion makes
    it again. Otherwise it is put together from the SIF's environment, labels and runscript, which stay where they are.

    Raises:
        ImageError: the SIF is damaged.
        SpaceError: the disk is full.
    """
    sif = read_sif(image.path)
    own = sif.read(OCI_CONFIG_NAME) is not None
    layers = []
    for number, (part, source) in enumerate(zip(sif.partitions, sif.sources(), strict=True), 1):
        title = f"{part.name or 'partition'} of a SIF"
        reporter.note(f"partition {number} of {len(sif.partitions)}")
        layers.append(pack_tar(_tar(source, without_metadata=own), store, settings.jobs, title))
    config = _config(sif, [layer.diff_id for layer in layers], [layer.title for layer in layers])
    config_bytes = canonical_json(config)
    described = Descriptor(OCI_CONFIG, store.add(config_bytes), len(config_bytes))
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": described.to_json(),
            "layers": [layer.descriptor.to_json() for layer in layers],
        }
    )
    return Image(
        tuple(layers),
        config_bytes,
        described,
        manifest,
        Descriptor(OCI_MANIFEST, store.add(manifest), len(manifest)),
    )


def _config(sif: Sif, diff_ids: list[str], titles: list[str]) -> dict[str, Any]:
    config = sif.config()
    history = [
        {"created": config.get("created", ""), "created_by": f"builder convert: {title}"} for title in titles
    ]
    return {**config, "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": history}


def _tar(source: Source, *, without_metadata: bool) -> Iterator[bytes]:
    """A partition as a layer's tar: owners and times as they are, whiteouts as image-spec writes them, links after files."""
    links = []
    for member, content in source():
        if without_metadata and is_metadata(member.path, member.target):
            continue
        if member.kind is Kind.HARDLINK:
            links.append(member)
            continue
        folder, _, name = member.path.rpartition("/")
        if member.kind is Kind.WHITEOUT:
            hidden = f".wh.{name}"
            member = replace(member, path=f"{folder}/{hidden}" if folder else hidden, kind=Kind.FILE, mode=0o644)
        info = tarfile.TarInfo(member.path or ".")
        info.type, info.mode, info.uid, info.gid = member.kind, member.mode, member.uid, member.gid
        info.size, info.mtime, info.linkname = member.size, int(member.mtime), member.target
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        for data in content:
            yield bytes(data)
        yield bytes(-member.size % 512)
    for member in links:
        info = tarfile.TarInfo(member.path)
        info.type, info.linkname, info.mode, info.uid, info.gid = (
            Kind.HARDLINK,
            member.target,
            member.mode,
            member.uid,
            member.gid,
        )
        info.mtime = int(member.mtime)
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    yield bytes(1024)
