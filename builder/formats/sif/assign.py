"""Decides which layers of an image become which partition of a layered SIF.

A new version of a package should change only few and small partitions, so that the others come from
the cache and need not be copied to another host again. So packages are distributed by the hash of
their names, which no other package influences, and by size: small ones change most often and are
shared by most environments, so they are not in one partition with a package of a gigabyte. Layers
of packages never hide each other's files, so their order does not matter. The layers before and
after them stay in their order, in separate partitions::

    layer                                                            partition
    -----                                                            ---------
    layers of the base image                                         base               (primary)
    builder: environment prefix                                      bottom             (overlay)
    builder: pip torch 2.0, 800 MB            hash("pip torch")      packages-large-1   (overlay)
    builder: pip numpy 1.0                    hash("pip numpy")      packages-own-1     (overlay)
    builder: conda group 1: xz, zlib          hash("conda group 1")  packages-groups-2  (overlay)
    builder: bytecode of pip torch 2.0        hash("pip torch")      bytecode-own-1     (overlay)
    builder: bytecode of conda group 2: pip   hash("conda group 2")  bytecode-groups-1  (overlay)
    builder: entry point                                             top                (overlay)

"bottom" is left out when it would be empty; "top" also holds the files for the SIF runtime. With
``most`` overlays there are ``(most - 2) // 5`` partitions of each of the five kinds between them.
Layers of compiled modules replace the packages' records, so their partitions are above those of all
packages; they do not hide each other's files either. A package is in the same partition whether
modules are compiled or not. When other layers lie between the packages, builder did not build the
image and the order may matter: everything above the base becomes "top".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from builder.core.model import Image, Layer, LayerContent
from builder.formats.layers.grouping import content_of, name_bucket

#: From this size of the compressed layer, in bytes, a package shares its partition with large ones
#: only.
LARGE = 32 << 20
_BUILDER = "builder: "
#: The kinds of partitions of packages, and of their compiled modules.
_KINDS = 5
#: The fewest overlays that suffice: bottom, top, and one of each kind.
MIN_OVERLAYS = 2 + _KINDS


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that become one overlay partition, from the bottom up."""

    name: str
    layers: tuple[Layer, ...]
    packages: bool
    """The layers hold only packages or compiled modules: they remove nothing, list all folders."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions of a SIF, from the bottom up."""

    base: tuple[Layer, ...]
    """Layers of the primary partition; empty when a base SIF provides it."""
    overlays: tuple[LayerGroup, ...]
    """At least one."""


def assign_layers(image: Image, *, base_is_sif: bool, most: int) -> Assignment:
    """Return the layers of each partition.

    Args:
        image: the image. With a base SIF, the layers are those above it.
        base_is_sif: the primary partition is that of a base SIF.
        most: how many overlay partitions there may be; at least :data:`MIN_OVERLAYS`.
    """
    titles = _builder_titles(image)
    first = 0 if base_is_sif else _first_above_base(titles)
    found = {n: content for n in range(first, len(titles)) if (content := content_of(titles[n]))}
    both = sorted(found)
    packages = [n for n in both if found[n].kind == "packages"]
    start, end = (both[0], both[-1] + 1) if packages else (first, first)
    if len(both) != end - start:  # other layers lie between them
        both, packages, start, end = [], [], first, first
    overlays = []
    if start > first:
        overlays.append(LayerGroup("bottom", image.layers[first:start], packages=False))
    count = (most - 2) // _KINDS
    for numbers in (packages, [n for n in both if n not in packages]):
        overlays += _partitions([(found[n], image.layers[n]) for n in numbers], count)
    overlays.append(LayerGroup("top", image.layers[end:], packages=False))
    return Assignment(image.layers[:first], tuple(overlays))


def _partitions(layers: Sequence[tuple[LayerContent, Layer]], count: int) -> list[LayerGroup]:
    """Return layers in up to ``count`` partitions of each kind."""
    found: dict[str, list[Layer]] = {}
    for content, layer in layers:
        number = name_bucket(content.name, count, digest_bytes=4) + 1
        found.setdefault(f"{_kind(content, layer)}-{number}", []).append(layer)
    return [LayerGroup(name, tuple(some), packages=True) for name, some in sorted(found.items())]


def _kind(content: LayerContent, layer: Layer) -> str:
    """Return the kind of a layer's partition. Versions do not matter."""
    if content.kind == "packages" and layer.descriptor.size >= LARGE:
        return "packages-large"
    return f"{content.kind}-{'own' if content.package else 'groups'}"


def _first_above_base(titles: Sequence[str]) -> int:
    """Return the number of the first layer that is not the base image's."""
    return next((number for number, title in enumerate(titles) if title), 1)


def _builder_titles(image: Image) -> list[str]:
    """Return the titles of builder's layers in the history; empty texts for the base's layers."""
    history = json.loads(image.config).get("history") or ()
    texts = [entry.get("created_by") or "" for entry in history if not entry.get("empty_layer")]
    if len(texts) != len(image.layers):
        texts = [_BUILDER + layer.title if layer.packages else "" for layer in image.layers]
    return [text.removeprefix(_BUILDER) if text.startswith(_BUILDER) else "" for text in texts]
