"""Manifests, indexes and configs of images (image-spec), parsed and checked, from any source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from builder.core.errors import ImageError
from builder.core.model import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Image,
    Layer,
)

from .documents import check_digest, check_size, load_json, refuse_look_alikes, shown, some

#: The annotation that holds an image's tag in an OCI layout.
REF_NAME = "org.opencontainers.image.ref.name"
INDEXES = (OCI_INDEX, DOCKER_INDEX)
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
#: The annotation of BuildKit's attestations.
_ATTACHED = "vnd.docker.reference.type"
#: Indexes may contain indexes; more levels than this are a loop.
MAX_INDEX_DEPTH = 4
_DAMAGED = "the image is damaged: download or write it again"
#: A parsed document, or an object in one.
_Object = Mapping[str, Any]


def tag_of(entry: _Object) -> str | None:
    """Return the tag of an entry of ``index.json``; None when it has none."""
    tag: str | None = (entry.get("annotations") or {}).get(REF_NAME)
    return tag


def choose(entries: Sequence[_Object], tag_or_digest: str | None, where: str) -> Descriptor:
    """Return the entry of an ``index.json`` with a tag or digest; with None, the only image.

    Args:
        entries: its ``manifests``, from :func:`parse_index`.
        tag_or_digest: which image.
        where: the layout, for messages.

    Raises:
        ImageError: there is none, or several when none is named.
    """
    tags = some(tag for entry in entries if (tag := tag_of(entry)))
    if tag_or_digest is None:
        images = [entry for entry in entries if _is_image(entry)]
        if len({entry["digest"] for entry in images}) != 1:
            count = f"{len(images)} images" if images else "no image"
            hint = f"name one by its digest in index.json (oci:DIR@sha256:...) or its tag: {tags}"
            raise ImageError(f"{where} holds {count}", hint)
        return Descriptor.from_json(images[0])
    for entry in entries:
        if tag_or_digest in (tag_of(entry), entry["digest"]):
            return Descriptor.from_json(entry)
    raise ImageError(f"{where} holds no image {tag_or_digest!r}", f"its tags: {tags}")


def _is_image(entry: _Object) -> bool:
    """Return whether an entry of an index is an image or an index, and nothing attached to one."""
    attached = entry.get("artifactType") or _ATTACHED in (entry.get("annotations") or {})
    return not attached and entry.get("mediaType", "") in ("", *MANIFESTS, *INDEXES)


def choose_platform(index: _Object, architecture: str | None, where: str) -> Descriptor:
    """Return the manifest for linux and an architecture of an image index (image-index.md).

    If it has none, the first one that names no platform, as skopeo does.

    Args:
        index: the image index, from :func:`parse_index`.
        architecture: as the OCI names it; None: the index must be for one architecture only.
        where: its name, for messages.

    Raises:
        ImageError: there is no such manifest.
    """
    found = list(_linux_manifests(index))
    architectures = sorted({name for name, _, _ in found if name})
    available = some(architectures) if architectures else "none for linux"
    if architecture is None and len(architectures) > 1:
        raise ImageError(f"{where} holds images for several architectures", f"it has: {available}")
    matching = [item for item in found if item[0] and architecture in (None, item[0])]
    matching = matching or [item for item in found if not item[0]]
    if not matching:
        wanted = f"linux/{architecture}" if architecture else "linux"
        raise ImageError(f"{where} holds no image for {wanted}", f"it has: {available}")
    best = min(matching, key=lambda item: (not _is_plain(item[0], item[1]), item[1]))
    return Descriptor.from_json(best[2])


def _linux_manifests(index: _Object) -> Iterator[tuple[str, str, _Object]]:
    """Yield the architecture (empty: not named) and variant of each manifest for linux, and its entry."""
    for entry in filter(_is_image, index["manifests"]):
        platform = entry.get("platform") or {}
        if (platform.get("os") or "linux") == "linux":
            yield platform.get("architecture") or "", platform.get("variant") or "", entry


def through_indexes(
    found: Descriptor, read: Callable[[Descriptor], bytes], architecture: str | None, where: str
) -> Descriptor:
    """Return the image manifest that an index leads to; that of an image is returned unchanged.

    Args:
        found: a manifest or an index.
        read: returns the verified bytes of an index.
        architecture: as for :func:`choose_platform`.
        where: its name, for messages.

    Raises:
        ImageError: there is no such image, or an index is damaged.
    """
    for _ in range(MAX_INDEX_DEPTH):
        if found.media_type and found.media_type not in INDEXES:
            return found
        name = f"the image index {found.digest} of {where}"
        data = read(found)
        if not found.media_type and "manifests" not in parse_json(data, name):
            return found
        index = parse_index(data, name, found.media_type)
        found = choose_platform(index, architecture, where)
    raise ImageError(f"{where}: image indexes refer to each other", _DAMAGED)


def _is_plain(architecture: str, variant: str) -> bool:
    """Return whether a variant is its architecture's lowest: none, v1 of amd64, v8 of arm64."""
    return variant in ("", "v8" if architecture == "arm64" else "v1")


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object.

    Args:
        data: its bytes.
        what: its name, for messages.

    Raises:
        ImageError: it is something else, or larger or deeper than documents of the OCI may be.
    """
    value = load_json(data, what)
    if not isinstance(value, dict):
        raise ImageError(f"{what} is not a JSON object", _DAMAGED)
    return value


def _checked(name: str, value: object, what: str) -> Any:
    """Return a value that has the shape of this name in :mod:`builder.formats.oci.shapes`.

    Raises:
        ImageError: it has another one.
    """
    # pydantic is slow to import, and the digest of a tag needs none
    from builder.formats.oci import shapes

    return shapes.check_shape(getattr(shapes, name), value, what)


def parse_manifest(data: bytes, descriptor: Descriptor, where: str) -> dict[str, Any]:
    """Return an image manifest; its config and layers are descriptors with sha256 digests.

    Args:
        data: its bytes.
        descriptor: its digest, for messages; and its media type, which the manifest must not
            contradict.
        where: the image's name, for messages.

    Raises:
        ImageError: it is not an image manifest.
    """
    what = f"the manifest {descriptor.digest} of {where}"
    value = parse_json(data, what)
    if value.get("schemaVersion") == 1:
        hint = "pull and push it once with a current Docker, or use another base"
        raise ImageError(f"{where} is a Docker schema 1 image", hint)
    _check_media_type(value, descriptor.media_type, what)
    if not value.get("config") or not isinstance(value.get("layers", ""), list | None):
        raise ImageError(f"{what} has no config or layers", "it is not an image")
    checked: dict[str, Any] = _checked("ManifestShape", value, what)
    for part in (checked["config"], *checked["layers"]):
        refuse_look_alikes(part, what)
    return checked


def parse_index(data: bytes, what: str, media_type: str = "") -> dict[str, Any]:
    """Return an image index, or a layout's ``index.json``; its ``manifests`` are descriptors.

    Args:
        data: its bytes.
        what: its name, for messages.
        media_type: of its descriptor, or of the response that it came with.

    Raises:
        ImageError: it is not an index.
    """
    value = parse_json(data, what)
    _check_media_type(value, media_type, what)
    checked: dict[str, Any] = _checked("IndexShape", value, what)
    for number, entry in enumerate(checked["manifests"]):
        check_digest(entry["digest"], f"{what}: manifests[{number}]")
        refuse_look_alikes(entry, what)
    return checked


def stated_media_type(data: bytes, content_type: str, what: str) -> str:
    """Return the media type of a manifest or index: its own, else the response's.

    Args:
        data: its bytes; of anything else, such as a page for people, the Content-Type counts.
        content_type: without parameters; empty if the response has none.
        what: its name, for messages.

    Raises:
        ImageError: the two contradict each other, or it is both a manifest and an index
            (CVE-2021-41190).
    """
    try:
        value = parse_json(data, what)
    except ImageError:
        if content_type in (*MANIFESTS, *INDEXES):
            raise
        return content_type
    return _check_media_type(value, content_type, what)


def _check_media_type(value: _Object, stated: str, what: str) -> str:
    """Return a document's media type; refuse a manifest that other readers take for an index."""
    refuse_look_alikes(value, what)
    own = value.get("mediaType") or ""
    if not isinstance(own, str):
        raise ImageError(f"{what}: mediaType is not a text", _DAMAGED)
    if stated in (*MANIFESTS, *INDEXES) and own not in ("", stated):
        types = f"has the media type {shown(own)}, and is served as {stated}"
        raise ImageError(f"{what} {types}", _DAMAGED)
    media_type = own or stated
    keys = {key for key, item in value.items() if item is not None}
    is_index = "manifests" in keys or media_type in INDEXES
    is_manifest = bool(keys & {"config", "layers", "fsLayers"}) or media_type in MANIFESTS
    if is_index and is_manifest:
        raise ImageError(f"{what} can be read as a manifest and as an index", _DAMAGED)
    return media_type


def parse_docker_listing(data: bytes, where: str) -> list[dict[str, Any]]:
    """Return the images of a docker-archive: its ``manifest.json``.

    Args:
        data: its bytes.
        where: the archive, for messages.

    Raises:
        ImageError: it is something else.
    """
    what = f"manifest.json of {where}"
    listing = {"images": load_json(data, what)}
    images: list[dict[str, Any]] = _checked("DockerListingShape", listing, what)["images"]
    return images


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """Return an image config (image-spec, config.md) with its diff_ids.

    Args:
        data: its bytes.
        where: the image's name, for messages.

    Raises:
        ImageError: it is not an image config.
    """
    what = f"the config of {where}"
    value = parse_json(data, what)
    if not value.get("rootfs") or not isinstance(value["rootfs"], dict):
        hint = "it is not a container image (an artifact, perhaps)"
        raise ImageError(f"{what} has no rootfs.diff_ids", hint)
    checked: dict[str, Any] = _checked("ConfigShape", value, what)
    checked["rootfs"].setdefault("diff_ids", [])
    return checked


def read_image(
    manifest: bytes, descriptor: Descriptor, read: Callable[[Descriptor], bytes], where: str
) -> Image:
    """Return the image of a manifest; its layers have titles from the config's history, and no paths.

    Args:
        manifest: its bytes, verified.
        descriptor: of the manifest; without a media type if that is not known.
        read: returns the verified bytes of the config.
        where: the image's name, for messages.

    Raises:
        ImageError: manifest or config is damaged, or they do not match.
    """
    data = parse_manifest(manifest, descriptor, where)
    described = Descriptor.from_json(data["config"])
    check_size(described.size, f"the config of {where}")
    config_data = read(described)
    config = parse_config(config_data, where)
    diff_ids = config["rootfs"]["diff_ids"]
    blobs = [Descriptor.from_json(layer) for layer in data["layers"]]
    if any(blob.media_type.endswith("+encrypted") for blob in blobs):
        hint = "decrypt it: skopeo copy --decryption-key KEY.pem IMAGE oci:DIR, and name oci:DIR"
        raise ImageError(f"{where} has encrypted layers", hint)
    if len(diff_ids) != len(blobs):
        counts = f"{len(blobs)} layers but {len(diff_ids)} diff_ids"
        raise ImageError(f"{where}: {counts}", _DAMAGED)
    history = config.get("history") or ()
    titles = [h.get("created_by") or "" for h in history if not h.get("empty_layer")]
    if len(titles) != len(blobs):
        titles = [""] * len(blobs)
    rows = zip(blobs, diff_ids, titles, strict=True)
    layers = tuple(Layer(blob, diff_id, title=title) for blob, diff_id, title in rows)
    return Image(layers, config_data, described, manifest, descriptor)


def require_layers(image: Image, purpose: str) -> None:
    """Raise ImageError, "cannot ``purpose``", when a base layer was not downloaded."""
    for layer in image.layers:
        if layer.path is None:
            where = layer.origin or "its registry"
            problem = f"the base layer {layer.descriptor.digest} is still in {where}"
            hint = "build with the base's layers (download_base)"
            raise ImageError(f"cannot {purpose}: {problem}", hint)
