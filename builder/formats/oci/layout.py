"""OCI image layouts (image-spec): a folder with ``oci-layout``, ``index.json`` and ``blobs/``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.core.errors import ImageError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Descriptor, Image, Layer, canonical_json
from builder.core.parallel import in_parallel
from builder.core.store.blobs import Store
from builder.core.store.durable import sync_files, sync_folder
from builder.core.store.files import OUTPUT_HINT, space_errors, write_atomic
from builder.core.store.locks import writer_lock
from builder.core.store.temporary import remove_left_behind, removed_after, temporary_beside
from builder.core.store.unchanged import look

from .digest import hex_of, sha256
from .documents import MAX_DOCUMENT, check_size, file_size, read_document, shown
from .image import image_blobs
from .manifest import (
    INDEXES,
    MANIFESTS,
    REF_NAME,
    choose,
    parse_index,
    parse_json,
    parse_manifest,
    read_image,
    require_layers,
    tag_of,
    through_indexes,
)
from .reference import is_digest

log = logging.getLogger(__name__)

OCI_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
#: Layers that are hashed at the same time.
_THREADS = 8
_DAMAGED = "the layout is damaged: write it again"
EMPTY_INDEX: Mapping[str, Any] = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}


def blob_path(folder: Path, digest: str) -> Path:
    """Return the path of a blob in a layout, whether it exists or not.

    Raises:
        ImageError: it is not a sha256 digest.
    """
    return folder / "blobs" / "sha256" / hex_of(digest)


# writing ----------------------------------------------------------------------------------------------------


def write_layout(
    image: Image, folder: Path, tag: str | None, store: Store, *, durable: bool = True
) -> bool:
    """Add an image to an OCI layout, which is created if necessary; its other images stay.

    Blobs are hard links to the store's files where the file system allows it, else copies; their
    content is compared with their digests. ``index.json`` is replaced last, when the blobs are on
    the disk: a reader never finds an image without its blobs, and a killed writer or a power loss
    leaves the old index.

    Args:
        image: the image, with all its layers on this machine.
        folder: the layout.
        tag: its ``org.opencontainers.image.ref.name``; an image that has the tag now loses it.
            None: the image can be found by its digest only.
        store: records which blobs of the layout were verified.
        durable: whether the image has to survive a power loss; False for a layout that is removed
            soon.

    Returns:
        Whether ``index.json`` had another image, or none, by this tag.

    Raises:
        ImageError: a base layer is not on this machine, a layer is corrupt, or the folder is
            something else.
        SpaceError: the disk is full.
        BuilderError: the folder cannot be written to.
    """
    require_layers(image, f"write {folder}")
    with space_errors(folder, OUTPUT_HINT):
        if folder.exists() and not folder.is_dir():
            hint = "choose another folder for the OCI layout"
            raise ImageError(f"{folder} is not a folder", hint)
        (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            index_file = folder / "index.json"
            index = read_index(folder) if index_file.exists() else EMPTY_INDEX
            missing = [layer for layer in image.layers if not _holds(folder, layer, store)]
            reused = len(image.layers) - len(missing)
            log.info("%s: %d layers added, %d reused", folder, len(missing), reused)
            in_parallel(lambda layer: _place(layer, folder, store), missing, _THREADS)
            config_file = blob_path(folder, image.config_descriptor.digest)
            changed = write_if_changed(config_file, image.config)
            changed |= write_if_changed(blob_path(folder, image.digest), image.manifest)
            if not (folder / "oci-layout").exists():
                write_atomic(folder / "oci-layout", OCI_LAYOUT, durable=durable)
            new = index_with(index, image.manifest_descriptor, tag)
            if durable and (missing or changed or new != index):
                _sync_blobs(image, folder)
            changed = write_if_changed(index_file, canonical_json(new), durable=durable)
            # the writer before may have been killed before it synced the index
            if durable and not changed:
                sync_files([index_file])
            return changed


def _sync_blobs(image: Image, folder: Path) -> None:
    """Wait until the blobs of an image are on the disk."""
    blobs = [*image_blobs(image), image.manifest_descriptor]
    sync_files({blob_path(folder, blob.digest) for blob in blobs})
    for parent in (folder / "blobs", folder, folder.absolute().parent):  # they may be new
        sync_folder(parent)


def index_with(index: Mapping[str, Any], descriptor: Descriptor, tag: str | None) -> dict[str, Any]:
    """Return an index with one more image; a digest is listed once per tag.

    Args:
        index: the index.
        descriptor: the image's manifest.
        tag: is removed from another image. None: without a tag; an image that is listed with one
            already is not listed again.
    """

    def is_replaced(entry: Mapping[str, Any]) -> bool:
        name = tag_of(entry)
        has_the_tag = tag is not None and name == tag
        return has_the_tag or (entry.get("digest") == descriptor.digest and name in (None, tag))

    others = [entry for entry in index.get("manifests", []) if not is_replaced(entry)]
    if tag is None and any(entry.get("digest") == descriptor.digest for entry in others):
        return {**index, "manifests": others}
    new = descriptor.to_json()
    if tag is not None:
        new["annotations"] = {**new.get("annotations", {}), REF_NAME: tag}
    if [entry for entry in index.get("manifests", []) if is_replaced(entry)] == [new]:
        return dict(index)
    return {**index, "manifests": [*others, new]}


def move_layout_tag(
    folder: Path, tag: str, descriptor: Descriptor, may_move: Callable[[str | None], bool]
) -> tuple[str | None, str | None]:
    """Point a tag at an image that the layout holds, under the layout's lock.

    Args:
        folder: the layout.
        tag: the tag.
        descriptor: the image's manifest.
        may_move: receives the digest that the tag names (None: no such tag); False leaves the tag
            as it is.

    Returns:
        The digests that the tag named before, and names now.

    Raises:
        ImageError: it is not an OCI layout.
        SpaceError: the disk is full or the folder cannot be written.
    """
    with space_errors(folder, OUTPUT_HINT), _locked(folder):
        before = list_tags(folder).get(tag)
        if before == descriptor.digest or not may_move(before):
            return before, before
        new = index_with(read_index(folder), descriptor, tag)
        write_if_changed(folder / "index.json", canonical_json(new), durable=True)
        return before, descriptor.digest


def restore_tag(folder: Path, tag: str, digest: str) -> None:
    """Point a tag at an image that was written into the layout, if ``index.json`` does not list it.

    Writers on hosts whose locks do not exclude each other (Lustre with ``-o localflock``) may lose
    the tags of others. Afterwards, one process calls this for each of them.

    Raises:
        ImageError: the layout does not have the image's manifest.
        SpaceError: the disk is full or the folder cannot be written.
    """
    if list_tags(folder).get(tag) == digest:
        return
    path = blob_path(folder, digest)
    if not path.exists():
        raise ImageError(f"{folder}: the manifest {digest} is missing", _DAMAGED)
    found = Descriptor("", digest, path.stat().st_size)
    document = parse_json(read_blob(folder, found), str(path))
    descriptor = replace(found, media_type=str(document.get("mediaType") or OCI_MANIFEST))
    move_layout_tag(folder, tag, descriptor, lambda before: True)


def prune_layout(folder: Path) -> int:
    """Remove blobs that no image of the layout uses, and files that killed writers left.

    Returns:
        The bytes freed.

    Raises:
        ImageError: it is not a complete OCI layout.
    """
    with _locked(folder):
        used = _used_blobs(folder)
        freed = remove_left_behind(folder)
        for path in (folder / "blobs" / "sha256").iterdir():
            if f"sha256:{path.name}" not in used:
                freed += path.stat().st_size
                path.unlink()
        return freed


def _used_blobs(folder: Path) -> set[str]:
    """Return the digests of all blobs that can be reached from ``index.json``."""
    used: set[str] = set()
    listed = [Descriptor.from_json(entry) for entry in read_index(folder)["manifests"]]
    pending = [entry for entry in listed if is_digest(entry.digest)]
    while pending:
        descriptor = pending.pop()
        if descriptor.digest in used:
            continue
        used.add(descriptor.digest)
        if descriptor.media_type not in (*INDEXES, *MANIFESTS):
            continue
        data = read_blob(folder, descriptor)
        if descriptor.media_type in INDEXES:
            document = parse_index(data, f"{descriptor.digest} in {folder}", descriptor.media_type)
        else:
            document = parse_manifest(data, descriptor, str(folder))
        children = [*document.get("manifests", ()), *document.get("layers", ())]
        children += [document.get("config"), document.get("subject")]
        found = [Descriptor.from_json(child) for child in children if child]
        pending += [child for child in found if _has_blob(folder, child)]
    return used


def _has_blob(folder: Path, descriptor: Descriptor) -> bool:
    return is_digest(descriptor.digest) and blob_path(folder, descriptor.digest).exists()


def write_if_changed(path: Path, data: bytes, *, durable: bool = False) -> bool:
    """Write a file unless it has this content and return whether that was necessary."""
    with suppress(FileNotFoundError, ImageError):  # something else, which is replaced
        if read_document(path, len(data)) == data:
            return False
    write_atomic(path, data, durable=durable)
    return True


def _place(layer: Layer, folder: Path, store: Store) -> None:
    """Put a layer's file into the layout.

    Its content is compared with its digest: the fingerprint of a cached file does not show a
    flipped bit.
    """
    assert layer.path is not None
    digest, size = layer.descriptor.digest, layer.descriptor.size
    target = blob_path(folder, digest)
    with removed_after(temporary_beside(target)) as temporary:
        store.link_or_copy(layer.path, temporary, digest)
        if temporary.stat().st_size != size:
            problem = f"{layer.path} is not the layer {digest}"
            raise ImageError(problem, "a file of the cache was changed: build again")
        is_copy = not temporary.samefile(layer.path)
        temporary.replace(target)
    if is_copy:
        store.mark_verified(target, digest)


def _holds(folder: Path, layer: Layer, store: Store) -> bool:
    """Return whether the layout's file is the layer, by its inode or by its content."""
    assert layer.path is not None
    target = look(blob_path(folder, layer.descriptor.digest))
    try:
        if layer.path.samefile(target):
            return True
        same_size = target.stat().st_size == layer.descriptor.size
    except FileNotFoundError:
        return False
    return same_size and store.verify(target, layer.descriptor.digest)


# reading ----------------------------------------------------------------------------------------------------


def list_tags(folder: Path) -> dict[str, str]:
    """Return the tags of a layout and the digests of their images.

    Raises:
        ImageError: it is not a complete OCI layout.
    """
    tagged = [(tag_of(entry), entry["digest"]) for entry in read_index(folder)["manifests"]]
    return {tag: digest for tag, digest in tagged if tag is not None}


def read_layout(
    folder: Path, tag_or_digest: str | None = None, architecture: str | None = None
) -> Image:
    """Return an image of a layout, its config and manifest verified by digest, its layers by size.

    Args:
        folder: the layout.
        tag_or_digest: which image; None: the layout holds one only.
        architecture: which image of an index for several architectures (``amd64``); None: the only
            one.

    Raises:
        ImageError: there is no such image, or the layout is damaged; the message names the file.
    """
    name = str(folder)
    chosen = choose(read_index(folder)["manifests"], tag_or_digest, name)
    wanted = through_indexes(chosen, lambda index: read_blob(folder, index), architecture, name)
    manifest = read_blob(folder, wanted)
    descriptor = Descriptor(wanted.media_type, wanted.digest, len(manifest))
    image = read_image(manifest, descriptor, lambda config: read_blob(folder, config), name)
    found = tuple(replace(layer, path=_layer_file(folder, layer)) for layer in image.layers)
    return replace(image, layers=found)


def read_blob(folder: Path, descriptor: Descriptor, most: int = MAX_DOCUMENT) -> bytes:
    """Return a small blob of a layout, verified.

    Args:
        folder: the layout.
        descriptor: of the blob.
        most: bytes that it may have; more are refused before they are read.

    Raises:
        ImageError: it is missing, corrupt, too large, or not an ordinary file.
    """
    path = blob_path(folder, descriptor.digest)
    check_size(descriptor.size, f"{folder}: blob {descriptor.digest}", most)
    try:
        data = read_document(path, most)
    except FileNotFoundError:
        raise ImageError(f"{folder}: blob {descriptor.digest} is missing", _DAMAGED) from None
    if sha256(data) != descriptor.digest:
        raise ImageError(f"{path} is corrupt: its content does not match its digest", _DAMAGED)
    if len(data) != descriptor.size:
        sizes = f"{len(data)} bytes, its descriptor lists {descriptor.size}"
        raise ImageError(f"{path}: {sizes}", _DAMAGED)
    return data


def read_index(folder: Path) -> dict[str, Any]:
    """Return the ``index.json`` of a layout. Each of its ``manifests`` is a descriptor.

    Raises:
        ImageError: the folder is not an OCI layout.
    """
    hint = "name a folder that an OCI tool wrote (builder build, skopeo copy ... oci:DIR)"
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder", hint)
    marker_file, index_file = folder / "oci-layout", folder / "index.json"
    try:
        marker = parse_json(read_document(marker_file), str(marker_file))
        index = parse_index(read_document(index_file), str(index_file))
    except FileNotFoundError as e:
        problem = f"is not an OCI layout: {Path(e.filename).name} is missing"
        raise ImageError(f"{folder} {problem}", hint) from None
    version = marker.get("imageLayoutVersion")
    if version != "1.0.0":
        found = shown(version) if isinstance(version, str) else "of no version"
        raise ImageError(f"{folder}: OCI layout version {found}, builder reads 1.0.0", hint)
    return index


def _layer_file(folder: Path, layer: Layer) -> Path:
    digest, size = layer.descriptor.digest, layer.descriptor.size
    path = blob_path(folder, digest)
    try:
        found = file_size(path)
    except FileNotFoundError:
        raise ImageError(f"{folder}: layer {digest} is missing", _DAMAGED) from None
    if found != size:
        raise ImageError(f"{path}: {found} bytes, the manifest lists {size}", _DAMAGED)
    return path


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder", "name the folder of an OCI layout")
    with writer_lock(folder / ".lock"):
        yield
