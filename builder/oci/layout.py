"""OCI image layouts (image-spec, image-layout.md): a folder with ``oci-layout``, ``index.json`` and ``blobs/``."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from builder.errors import ImageError
from builder.model import (
    OCI_INDEX,
    Descriptor,
    Image,
    canonical_json,
)
from builder.oci.manifest import (
    INDEXES,
    MANIFESTS,
    REF_NAME,
    choose,
    choose_platform,
    image_layers,
    parse_config,
    parse_json,
    parse_manifest,
    require_layers,
    with_path,
)
from builder.store.blobs import Store
from builder.store.files import space_errors, write_atomic

OCI_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


def write_layout(
    image: Image, folder: Path, tag: str | None, store: Store, *, allow_missing: bool = False
) -> None:
    """Puts an image into an OCI layout, made if it is not there; other images in it stay.

    Blobs are hard links to the store's where the file system allows it, copies elsewhere. ``index.json`` is renamed into
    place last, so a reader never sees an image whose blobs are not there, and nothing is lost when the writer is killed.

    Args:
        image: the image.
        folder: the layout.
        tag: its ``org.opencontainers.image.ref.name``; an image that has the tag loses it. None: found by digest only.
        store: remembers which blobs of the layout have been checked.
        allow_missing: leave out base layers that were never downloaded, instead of refusing.

    Raises:
        ImageError: a base layer is not on this machine, or the folder holds something else.
        SpaceError: the disk is full or the folder cannot be written.
    """
    if not allow_missing:
        require_layers(image, f"write {folder}")
    with space_errors(folder):
        blobs = folder / "blobs" / "sha256"
        if folder.exists() and not folder.is_dir():
            raise ImageError(f"{folder} is not a folder", "choose another folder for the OCI layout")
        blobs.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            index = (
                read_index(folder)
                if (folder / "index.json").exists()
                else {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}
            )
            for layer in image.layers:
                if layer.path is not None:
                    _place(layer.path, blobs, layer.descriptor, store)
            for data, descriptor in (
                (image.config, image.config_descriptor),
                (image.manifest, image.manifest_descriptor),
            ):
                target = blobs / _hex(descriptor.digest)
                if not target.exists() or target.read_bytes() != data:
                    write_atomic(target, data)
            if not (folder / "oci-layout").exists():
                write_atomic(folder / "oci-layout", OCI_LAYOUT)
            new = index_with(index, image.manifest_descriptor, tag)
            text = canonical_json(new)
            if not (folder / "index.json").exists() or (folder / "index.json").read_bytes() != text:
                write_atomic(folder / "index.json", text)


def index_with(index: Mapping[str, Any], descriptor: Descriptor, tag: str | None) -> dict[str, Any]:
    """An index with one more image: the tag is taken from whatever had it, and a digest is listed once for each tag."""
    kept = []
    for entry in index.get("manifests", []):
        name = (entry.get("annotations") or {}).get(REF_NAME)
        if (tag is not None and name == tag) or (
            entry.get("digest") == descriptor.digest and (name is None or name == tag)
        ):
            continue
        kept.append(entry)
    if tag is None and any(entry.get("digest") == descriptor.digest for entry in kept):
        return {**index, "manifests": kept}
    entry = descriptor.to_json()
    if tag is not None:
        entry["annotations"] = {**entry.get("annotations", {}), REF_NAME: tag}
    return {**index, "manifests": [*kept, entry]}


def list_tags(folder: Path) -> dict[str, str]:
    """The tags of a layout and the digests they name.

    Raises:
        ImageError: it is not a whole OCI layout.
    """
    return {
        name: entry["digest"]
        for entry in read_index(folder)["manifests"]
        if (name := (entry.get("annotations") or {}).get(REF_NAME)) is not None
    }


def read_layout(folder: Path, tag_or_digest: str | None = None, architecture: str | None = None) -> Image:
    """Reads an image of a layout; config and manifest are checked by their digests, layers by their size.

    Args:
        folder: the layout.
        tag_or_digest: which image; None when the layout holds just one.
        architecture: the one to take of an image for several (``amd64``); None takes the only one.

    Raises:
        ImageError: no such image, or a damaged layout; the message names the file.
    """
    wanted = choose(read_index(folder)["manifests"], tag_or_digest, str(folder))
    seen = 0
    while wanted.media_type in INDEXES:
        data = parse_json(read_blob(folder, wanted), f"the image index {wanted.digest} in {folder}")
        wanted = choose_platform(data, architecture, f"{folder} ({wanted.digest})")
        if (seen := seen + 1) > 4:
            raise ImageError(
                f"{folder}: image indexes point at each other", "the layout is damaged: write it again"
            )
    manifest = read_blob(folder, wanted)
    data = parse_manifest(manifest, wanted, str(folder))
    config_descriptor = Descriptor.from_json(data["config"])
    config = read_blob(folder, config_descriptor)
    layers = image_layers(data, parse_config(config, str(folder)), str(folder))
    found = []
    for layer in layers:
        path = folder / "blobs" / "sha256" / _hex(layer.descriptor.digest)
        if not path.is_file():
            raise ImageError(
                f"{folder}: layer {layer.descriptor.digest} is missing",
                "the layout is damaged: write it again",
            )
        if path.stat().st_size != layer.descriptor.size:
            raise ImageError(
                f"{path}: {path.stat().st_size} bytes, the manifest says {layer.descriptor.size}",
                "the layout is damaged: write it again",
            )
        found.append(with_path(layer, path))
    return Image(
        tuple(found),
        config,
        config_descriptor,
        manifest,
        Descriptor(wanted.media_type, wanted.digest, len(manifest)),
    )


def prune_layout(folder: Path) -> int:
    """Removes blobs that no image of the layout uses any more; gives the bytes freed.

    Raises:
        ImageError: it is not a whole OCI layout.
    """
    with _locked(folder):
        used: set[str] = set()
        pending = [Descriptor.from_json(e) for e in read_index(folder)["manifests"]]
        while pending:
            descriptor = pending.pop()
            if descriptor.digest in used:
                continue
            used.add(descriptor.digest)
            if descriptor.media_type in (*INDEXES, *MANIFESTS):
                data = parse_json(read_blob(folder, descriptor), f"{descriptor.digest} in {folder}")
                children = [
                    *data.get("manifests", []),
                    *data.get("layers", []),
                    *filter(None, [data.get("config"), data.get("subject")]),
                ]
                pending += [
                    d for d in map(Descriptor.from_json, children) if _path(folder, d.digest).exists()
                ]
        freed = 0
        for path in (folder / "blobs" / "sha256").iterdir():
            if f"sha256:{path.name}" not in used:
                freed += path.stat().st_size
                path.unlink()
        return freed


# what every source of images shares -----------------------------------------------------------------------------------


# files ----------------------------------------------------------------------------------------------------------------


def _hex(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ImageError(
            f"not a sha256 digest: {digest!r}",
            "the image is damaged, or uses a hash that builder does not know",
        )
    return value


def _path(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / _hex(digest)


def read_blob(folder: Path, descriptor: Descriptor) -> bytes:
    """A small blob of a layout, checked by its digest, or an ImageError."""
    path = _path(folder, descriptor.digest)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ImageError(
            f"{folder}: blob {descriptor.digest} is missing", "the layout is damaged: write it again"
        ) from None
    except OSError as e:
        raise ImageError(f"{path}: {e.strerror}", "let this user read the layout") from None
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != descriptor.digest:
        raise ImageError(f"{path} is not what its name says", "the layout is damaged: write it again")
    return data


def read_index(folder: Path) -> dict[str, Any]:
    """The ``index.json`` of a layout, or an ImageError."""
    hint = "name a folder that an OCI tool wrote (builder build, skopeo copy ... oci:DIR)"
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder", hint)
    try:
        version = parse_json((folder / "oci-layout").read_bytes(), str(folder / "oci-layout")).get(
            "imageLayoutVersion"
        )
        index = parse_json((folder / "index.json").read_bytes(), str(folder / "index.json"))
    except FileNotFoundError as e:
        raise ImageError(f"{folder} is not an OCI layout: {Path(e.filename).name} is missing", hint) from None
    except OSError as e:
        raise ImageError(f"{e.filename}: {e.strerror}", "let this user read the layout") from None
    if version != "1.0.0":
        raise ImageError(f"{folder}: OCI layout version {version!r}, builder reads 1.0.0", hint)
    entries = index.get("manifests")
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and "digest" in e and "size" in e for e in entries
    ):
        raise ImageError(
            f"{folder / 'index.json'} has no list of manifests", "the layout is damaged: write it again"
        )
    return index


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder", "name the folder of an OCI layout")
    with filelock.FileLock(folder / ".lock"):
        yield


def _place(source: Path, blobs: Path, descriptor: Descriptor, store: Store) -> None:
    target = blobs / _hex(descriptor.digest)
    try:
        if source.samefile(target) or (
            target.stat().st_size == descriptor.size and store.verify(target, descriptor.digest)
        ):
            return
    except FileNotFoundError:
        pass
    temporary = blobs / f".{target.name}.{secrets.token_hex(6)}.tmp"
    try:
        try:
            os.link(source, temporary)
        except OSError:  # another file system, or one without hard links, or somebody else's file
            shutil.copyfile(source, temporary)
        if temporary.stat().st_size != descriptor.size:
            raise ImageError(
                f"{source} is not the layer {descriptor.digest}", "the cache was changed by hand: build again"
            )
        temporary.replace(target)
    except FileNotFoundError as e:
        raise ImageError(
            f"{source}: the layer {descriptor.digest} is gone from the cache", "build again"
        ) from e
    finally:
        temporary.unlink(missing_ok=True)
