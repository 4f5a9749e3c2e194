"""``sif:`` bases: SIF files, whose partitions a build copies or reads."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from builder.core.model import Layer, SifImage
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.sif.read import open_sif, read_sif
from builder.formats.trees.member import Kind, Member
from builder.formats.trees.sources import Source, layer_source

from .image import BaseImage
from .pack import pack_tar
from .registry import fetch_layer


def open_sif_base(reference: str, path: Path, architecture: str, store: Store) -> BaseImage:
    """Return a SIF as a base image without layers.

    Args:
        reference: for messages.
        path: the SIF, which exists.
        architecture: the OCI's name.
        store: records the digests of SIFs.

    Raises:
        ImageError: the file is not a SIF, damaged, or for another architecture.
    """
    sif = open_sif(path, store, architecture)
    config = {
        **read_sif(path).config(),
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }
    return BaseImage(reference, sif.digest, config, (), sif)


def base_sources(base: BaseImage, store: Store) -> list[Source]:
    """Return the members of each partition of a SIF, or of each layer, from the bottom up."""
    partitions = read_sif(base.sif.path).sources() if base.sif else []
    return [*partitions, *(layer_source(layer, store) for layer in base.layers)]


def downloading_sources(base: BaseImage, work: Workspace) -> list[Source]:
    """Return the same; a layer that is in a registry is downloaded when it is read first."""

    @cache
    def source(number: int) -> Source:
        return layer_source(fetch_layer(base.layers[number], work), work.store)

    partitions = base_sources(replace(base, layers=()), work.store)
    return [*partitions, *(lambda n=n: source(n)() for n in range(len(base.layers)))]


def sif_layers(image: SifImage, work: Workspace) -> list[Layer]:
    """Return the partitions of a SIF as layers, for the steps that run over it.

    Raises:
        ImageError: the SIF is damaged.
        SpaceError: the disk is full.
    """
    sources = read_sif(image.path).sources()
    layers = []
    for number, source in enumerate(sources, 1):
        task = f"reading partition {number} of {len(sources)} of {image.path}"
        with working(work.reporter, task):
            tar, jobs = _tar(source), work.settings.jobs
            layers.append(pack_tar(tar, work.store, jobs, "partition of a SIF"))
    return layers


def _tar(source: Source) -> Iterator[bytes]:
    """Return a partition as a layer's tar.

    Owners and times are unchanged, whiteouts have the form of image-spec, hard links follow all
    files.
    """
    links = []
    for member, content in source():
        if member.kind is Kind.HARDLINK:
            links.append(member)
            continue
        if member.kind is Kind.WHITEOUT:
            folder, slash, name = member.path.rpartition("/")
            member = replace(member, path=f"{folder}{slash}.wh.{name}", kind=Kind.FILE, mode=0o644)
        yield _header(member, member.size)
        for data in content:
            yield bytes(data)
        yield bytes(-member.size % tarfile.BLOCKSIZE)
    for member in links:
        yield _header(member, 0)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(member: Member, size: int) -> bytes:
    info = tarfile.TarInfo(member.path or ".")
    info.type, info.linkname = member.kind, member.target
    info.mode, info.uid, info.gid = member.mode, member.uid, member.gid
    info.size, info.mtime = size, int(member.mtime)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
