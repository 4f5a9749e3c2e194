"""Manifests, indexes and configs of images (image-spec), parsed and checked whatever their source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.errors import ImageError
from builder.model import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Descriptor, Image, Layer

REF_NAME = "org.opencontainers.image.ref.name"
INDEXES = (OCI_INDEX, DOCKER_INDEX)
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)


def choose(entries: list[Any], tag_or_digest: str | None, where: str) -> Descriptor:
    """The entry of an ``index.json`` that a tag or digest names, or the only one."""
    names = [(e.get("annotations") or {}).get(REF_NAME) for e in entries]
    known = ", ".join(sorted({n for n in names if n})) or "none"
    if tag_or_digest is None:
        entries = [e for e in entries if not e.get("artifactType")]  # what is attached to an image is not one
        if len({e["digest"] for e in entries}) != 1:
            held = "no image" if not entries else f"{len(entries)} images"
            raise ImageError(f"{where} holds {held}", f"name one by its tag: {known}")
        return Descriptor.from_json(entries[0])
    for entry, name in zip(entries, names, strict=True):
        if tag_or_digest in (name, entry["digest"]):
            return Descriptor.from_json(entry)
    raise ImageError(f"{where} holds no image {tag_or_digest!r}", f"its tags: {known}")


def choose_platform(index: Mapping[str, Any], architecture: str | None, where: str) -> Descriptor:
    """The manifest of an image index for linux and an architecture (image-spec, image-index.md)."""
    found = []
    for entry in index.get("manifests", []):
        platform = entry.get("platform") or {}
        if platform.get("os", "linux") == "linux" and platform.get("architecture") not in (None, "unknown"):
            found.append((platform["architecture"], platform.get("variant", ""), entry))
    architectures = sorted({f"{a}" for a, _, _ in found})
    matching = sorted(
        (f for f in found if architecture in (None, f[0])),
        key=lambda f: (f[1] not in ("", "v8" if f[0] == "arm64" else "v1"), f[1]),
    )
    if not matching or (architecture is None and len(architectures) > 1):
        wanted = f"no image for linux/{architecture}" if architecture else "images for several architectures"
        raise ImageError(f"{where} holds {wanted}", f"it has: {', '.join(architectures) or 'none for linux'}")
    return Descriptor.from_json(matching[0][2])


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object, or an ImageError that names it."""
    try:
        value = json.loads(data)
    except ValueError as e:
        raise ImageError(
            f"{what} is not JSON: {e}", "the image is damaged: fetch or write it again"
        ) from None
    if not isinstance(value, dict):
        raise ImageError(f"{what} is not a JSON object", "the image is damaged: fetch or write it again")
    return value


def parse_manifest(data: bytes, descriptor: Descriptor, where: str) -> dict[str, Any]:
    """An image manifest with its config and layers, or an ImageError."""
    value = parse_json(data, f"the manifest {descriptor.digest} of {where}")
    if value.get("schemaVersion") == 1:
        raise ImageError(
            f"{where} is a Docker schema 1 image",
            "pull and push it once with a current Docker, or use another base",
        )
    config, layers = value.get("config"), value.get("layers")
    whole = isinstance(config, dict) and isinstance(layers, list)
    if not whole or not all(
        isinstance(d, dict) and "digest" in d and "size" in d for d in (config, *(layers or []))
    ):
        raise ImageError(
            f"the manifest {descriptor.digest} of {where} has no config or layers",
            "it is not an image, or it is damaged",
        )
    return value


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """An image config (image-spec, config.md) with its diff_ids, or an ImageError."""
    value = parse_json(data, f"the config of {where}")
    if not isinstance((value.get("rootfs") or {}).get("diff_ids"), list):
        raise ImageError(
            f"the config of {where} has no rootfs.diff_ids",
            "it is not an image that can be run (an artifact, perhaps)",
        )
    return value


def image_layers(manifest: Mapping[str, Any], config: Mapping[str, Any], where: str) -> tuple[Layer, ...]:
    """The layers of a manifest, without paths; titles come from the config's history."""
    diff_ids = config["rootfs"]["diff_ids"]
    descriptors = [Descriptor.from_json(d) for d in manifest["layers"]]
    if len(diff_ids) != len(descriptors):
        raise ImageError(
            f"{where}: {len(descriptors)} layers but {len(diff_ids)} diff_ids",
            "the image is damaged: fetch or write it again",
        )
    history = [h.get("created_by", "") for h in config.get("history") or [] if not h.get("empty_layer")]
    titles = history if len(history) == len(descriptors) else [""] * len(descriptors)
    return tuple(Layer(d, i, title=t) for d, i, t in zip(descriptors, diff_ids, titles, strict=True))


def with_path(layer: Layer, path: Path) -> Layer:
    """The same layer, on this machine's disk."""
    return Layer(
        layer.descriptor, layer.diff_id, path, layer.origin, layer.title, layer.packages, layer.unpacked
    )


def require_layers(image: Image, purpose: str) -> None:
    """Raises ImageError when a base layer was left in its registry."""
    for layer in image.layers:
        if layer.path is None:
            raise ImageError(
                f"cannot {purpose}: the base layer {layer.descriptor.digest} is still in {layer.origin or 'its registry'}",
                "build without leaving the base's layers in their registry",
            )
