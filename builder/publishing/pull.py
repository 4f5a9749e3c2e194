"""Pulls the published image of a target, unless this machine has it already.

An OCI image has the same manifest digest in a registry, in an OCI layout and in podman's storage; a SIF's
artifact contains the sha256 of the file. So one request, for the digest of a tag, is enough to know whether
anything must be downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.config.recipe import Recipe
from builder.errors import ImageError, RegistryError, UsageError
from builder.model import Descriptor
from builder.oci.layout import list_tags, read_layout, write_layout
from builder.oci.manifest import INDEXES, MAX_INDEX_DEPTH, choose_platform, parse_index
from builder.oci.reference import is_digest, is_tag
from builder.progress import QUIET, Reporter, working
from builder.publishing.places import Place, verify_layers
from builder.registry.oras import sif_layer
from builder.store.blobs import Store


@dataclass(frozen=True)
class Pulled:
    """What a pull did."""

    target: str
    reference: str
    """The place, with the tag or digest."""
    digest: str
    """Of the manifest for an OCI image, of the file for a SIF."""
    changed: bool
    """False: this machine had the image already."""
    place: str
    """Where it is now: a file, ``oci:DIR:TAG``, or ``ENGINE:NAME``."""


def pull(
    recipe: Recipe,
    place: Place,
    tag: str,
    output: Path,
    store: Store,
    *,
    if_changed: bool = False,
    reporter: Reporter = QUIET,
) -> Pulled:
    """Downloads the image of a tag: a SIF into the file ``output``, an OCI image into the layout ``output``.

    Args:
        recipe: states whether it is a SIF, and for which processor.
        place: where it was published.
        tag: a tag or a digest.
        output: the file for a SIF; the folder of an OCI layout otherwise.
        store: receives the blobs, and records what was verified.
        if_changed: ask for the digest only, and change nothing when ``output`` holds that image undamaged.
            False: an OCI image is written into the layout again. Blobs on this machine are not downloaded in
            either case.
        reporter: receives progress.

    Raises:
        RegistryError: there is no such tag, or the registry refuses.
        ImageError: it is not what the target runs, or is damaged.
        HashMismatch, SpaceError: see :class:`builder.publishing.places.Place`.
    """
    where = reference_of(place, tag)
    place.prepare_pull()
    described, layer = resolve_published(recipe, place, tag)
    if layer is not None:
        changed = place.sif(layer, output)
        return Pulled(recipe.name, where, layer.digest, changed, str(output))
    with working(reporter, f"verifying {recipe.name} in {output}"):
        is_here = _in_layout(output, recipe.name, described.digest, store)
    if not is_here or not if_changed:
        image = place.image(described.digest, recipe.architecture)
        with working(reporter, f"writing {recipe.name} into {output}"):
            write_layout(image, output, recipe.name, store)
    return Pulled(recipe.name, where, described.digest, not is_here, f"oci:{output}:{recipe.name}")


def reference_of(place: Place, tag: str) -> str:
    """The place with a tag or digest.

    Raises:
        UsageError: it is neither.
    """
    if is_digest(tag):
        return f"{place.name}@{tag}"
    if is_tag(tag):
        return f"{place.name}:{tag}"
    raise UsageError(f"{tag!r} is neither a tag nor a digest", "write latest, 26.11 or sha256:...")


def resolve_published(recipe: Recipe, place: Place, tag: str) -> tuple[Descriptor, Descriptor | None]:
    """The manifest of a tag or digest, and its SIF where the target runs one (else None).

    Raises:
        RegistryError: there is no such tag.
        ImageError: it is not what the target runs.
    """
    where = reference_of(place, tag)
    described = _image_manifest(recipe, place, tag, where)
    layer = sif_layer(place.manifest(described), described, where)
    if recipe.format == "sif" and layer is None:
        raise ImageError(
            f"{where} is an OCI image, and target {recipe.name} runs a SIF",
            "publish the target's SIF there; or convert the image with Apptainer: apptainer pull docker://...",
        )
    if recipe.format != "sif" and layer is not None:
        raise ImageError(
            f"{where} is a SIF, and target {recipe.name} runs an OCI image",
            "correct the repository or the tag",
        )
    return described, layer


def _image_manifest(recipe: Recipe, place: Place, tag: str, where: str) -> Descriptor:
    """The manifest for the recipe's processor, found through image indexes."""
    described = place.resolve(tag)
    if described is None:
        raise RegistryError(
            f"there is no {where}",
            f"publish it (builder publish {recipe.name}), or name another --tag",
            status=404,
        )
    for _ in range(MAX_INDEX_DEPTH):
        if described.media_type not in INDEXES:
            return described
        what = f"the image index {where}"
        index = parse_index(place.manifest(described), what, described.media_type)
        described = choose_platform(index, recipe.architecture, where)
    raise ImageError(f"{where}: image indexes refer to each other", "the image is damaged: publish it again")


def _in_layout(folder: Path, tag: str, digest: str, store: Store) -> bool:
    """Whether a layout holds this image under the tag, with undamaged layers."""
    try:
        if list_tags(folder).get(tag) != digest:
            return False
        verify_layers(read_layout(folder, tag), folder, store)
    except ImageError:
        return False
    return True
