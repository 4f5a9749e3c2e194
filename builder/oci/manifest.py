"""Manifests, indexes and configs of images (image-spec), parsed and checked, from any source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.errors import ImageError
from builder.model import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Descriptor, Image, Layer

#: The annotation that holds an image's tag in an OCI layout.
REF_NAME = "org.opencontainers.image.ref.name"
INDEXES = (OCI_INDEX, DOCKER_INDEX)
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
#: Indexes may contain indexes; more levels than this are a loop.
MAX_INDEX_DEPTH = 4
_DAMAGED = "the image is damaged: download or write it again"


def tag_of(entry: Mapping[str, Any]) -> str | None:
    """The tag of an entry of ``index.json``; None when it has none."""
    tag: str | None = (entry.get("annotations") or {}).get(REF_NAME)
    return tag


def choose(entries: Sequence[Mapping[str, Any]], tag_or_digest: str | None, where: str) -> Descriptor:
    """The entry of an ``index.json`` with a tag or digest; with None, the only image.

    Args:
        entries: its ``manifests``.
        tag_or_digest: which image.
        where: the layout, for messages.

    Raises:
        ImageError: there is none, or several when none is named.
    """
    tags = ", ".join(sorted({tag for entry in entries if (tag := tag_of(entry))})) or "none"
    if tag_or_digest is None:
        images = [
            entry for entry in entries if not entry.get("artifactType")
        ]  # attached artifacts are not images
        if len({entry["digest"] for entry in images}) != 1:
            count = f"{len(images)} images" if images else "no image"
            raise ImageError(f"{where} holds {count}", f"name one by its tag: {tags}")
        return Descriptor.from_json(images[0])
    for entry in entries:
        if tag_or_digest in (tag_of(entry), entry["digest"]):
            return Descriptor.from_json(entry)
    raise ImageError(f"{where} holds no image {tag_or_digest!r}", f"its tags: {tags}")


def choose_platform(index: Mapping[str, Any], architecture: str | None, where: str) -> Descriptor:
    """The manifest of an image index for linux and an architecture (image-spec, image-index.md).

    Args:
        index: the image index.
        architecture: as the OCI names it; None: the index must be for one architecture only.
        where: its name, for messages.

    Raises:
        ImageError: there is no such manifest.
    """
    found: list[tuple[str, str, Mapping[str, Any]]] = []
    for entry in index.get("manifests", []):
        platform = entry.get("platform") or {}
        known = platform.get("architecture") not in (None, "unknown")
        if known and platform.get("os", "linux") == "linux":
            found.append((platform["architecture"], platform.get("variant", ""), entry))
    architectures = sorted({name for name, _, _ in found})
    available = ", ".join(architectures) or "none for linux"
    if architecture is None and len(architectures) > 1:
        raise ImageError(f"{where} holds images for several architectures", f"it has: {available}")
    matching = [item for item in found if architecture in (None, item[0])]
    if not matching:
        wanted = f"linux/{architecture}" if architecture else "linux"
        raise ImageError(f"{where} holds no image for {wanted}", f"it has: {available}")
    best = min(matching, key=lambda item: (not _is_plain(item[0], item[1]), item[1]))
    return Descriptor.from_json(best[2])


def _is_plain(architecture: str, variant: str) -> bool:
    """Whether a variant runs on every processor of its architecture: none, amd64 v1, arm64 v8."""
    return variant in ("", "v8" if architecture == "arm64" else "v1")


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object.

    Args:
        data: its bytes.
        what: its name, for messages.

    Raises:
        ImageError: it is something else.
    """
    try:
        value = json.loads(data)
    except ValueError as e:
        raise ImageError(f"{what} is not JSON: {e}", _DAMAGED) from None
    if not isinstance(value, dict):
        raise ImageError(f"{what} is not a JSON object", _DAMAGED)
    return value


def parse_manifest(data: bytes, descriptor: Descriptor, where: str) -> dict[str, Any]:
    """An image manifest with its config and layers.

    Args:
        data: its bytes.
        descriptor: its digest, for messages.
        where: the image's name, for messages.

    Raises:
        ImageError: it is not an image manifest.
    """
    value = parse_json(data, f"the manifest {descriptor.digest} of {where}")
    if value.get("schemaVersion") == 1:
        raise ImageError(
            f"{where} is a Docker schema 1 image",
            "pull and push it once with a current Docker, or use another base",
        )
    config, layers = value.get("config"), value.get("layers")
    complete = isinstance(layers, list) and all(_is_descriptor(d) for d in (config, *layers))
    if not complete:
        raise ImageError(
            f"the manifest {descriptor.digest} of {where} has no config or layers",
            "it is not an image, or it is damaged",
        )
    return value


def _is_descriptor(value: object) -> bool:
    return isinstance(value, dict) and "digest" in value and "size" in value


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """An image config (image-spec, config.md) with its diff_ids.

    Args:
        data: its bytes.
        where: the image's name, for messages.

    Raises:
        ImageError: it is not an image config.
    """
    value = parse_json(data, f"the config of {where}")
    if not isinstance((value.get("rootfs") or {}).get("diff_ids"), list):
        raise ImageError(
            f"the config of {where} has no rootfs.diff_ids",
            "it is not a container image (an artifact, perhaps)",
        )
    return value


def image_layers(manifest: Mapping[str, Any], config: Mapping[str, Any], where: str) -> tuple[Layer, ...]:
    """The layers of a manifest, without paths; titles come from the config's history.

    Args:
        manifest, config: of the image, parsed.
        where: the image's name, for messages.

    Raises:
        ImageError: manifest and config do not match.
    """
    diff_ids = config["rootfs"]["diff_ids"]
    descriptors = [Descriptor.from_json(d) for d in manifest["layers"]]
    if len(diff_ids) != len(descriptors):
        raise ImageError(f"{where}: {len(descriptors)} layers but {len(diff_ids)} diff_ids", _DAMAGED)
    history = config.get("history") or []
    titles = [h.get("created_by", "") for h in history if not h.get("empty_layer")]
    if len(titles) != len(descriptors):
        titles = [""] * len(descriptors)
    rows = zip(descriptors, diff_ids, titles, strict=True)
    return tuple(Layer(descriptor, diff_id, title=title) for descriptor, diff_id, title in rows)


def with_path(layer: Layer, path: Path) -> Layer:
    """The same layer, on this machine's disk."""
    return replace(layer, path=path)


def require_layers(image: Image, purpose: str) -> None:
    """Raises ImageError when a base layer was not downloaded; ``purpose`` follows "cannot" in the message."""
    for layer in image.layers:
        if layer.path is None:
            raise ImageError(
                f"cannot {purpose}: the base layer {layer.descriptor.digest} is still in "
                f"{layer.origin or 'its registry'}",
                "build with the base's layers (download_base)",
            )
