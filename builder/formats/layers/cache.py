"""Cache keys and cache records of packages and layers. docs/layers.md lists the files.

A key is a hash of everything that the record depends on. A record counts as absent if it is missing
or damaged, if the store does not have its blob, or if the libraries of its packages are not
recorded; then the layer is built again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from builder.core.model import Descriptor, Layer, LayerContent, LockedPackage, canonical_json
from builder.core.store.blobs import Store
from builder.core.store.records import Record

from .entry import Declared, LinkContext
from .libraries import library_record

#: Part of every cache key. Increase it when a change results in other bytes for the same packages.
FORMAT = 5
#: Part of the names of records. Increase it when something else is read from the same archive.
_DECLARED = 1


def cache_key(value: Any) -> str:
    """Return the hash of a JSON value, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def context_key(context: LinkContext, packages: Sequence[LockedPackage]) -> dict[str, Any]:
    """Return the part of a context that these packages depend on.

    Requested names of other packages are left out, so that a newly requested name changes its own
    layer only.
    """
    names = {p.name for p in packages}
    return {**asdict(context), "requested": sorted(context.requested & names)}


def package_key(package: LockedPackage, context: LinkContext) -> str:
    """Return the key of a package's index and of its installed record."""
    return cache_key([FORMAT, package.key, package.url, context_key(context, [package])])


def declared_record(package: LockedPackage, store: Store) -> Record[Declared]:
    """Return the record of what a package declares of itself."""
    name = f"declared-{_DECLARED}-{package.key.replace(':', '-')}.json"
    return store.record(store.folders.index / name, Declared)


def layer_record(layer: Layer) -> dict[str, Any]:
    """Return a layer of the store as JSON."""
    others = ("descriptor", "path", "content")
    values = {f.name: getattr(layer, f.name) for f in fields(layer) if f.name not in others}
    if layer.content is not None:
        values["content"] = asdict(layer.content)
    return {**values, "descriptor": layer.descriptor.to_json()}


def recorded_layer(data: Mapping[str, Any], store: Store) -> Layer | None:
    """Return the layer that :func:`layer_record` described; None if its blob is not available.

    It is in the store, or in the registry of an image that is reused. None also for a layer of
    packages whose libraries are not recorded.
    """
    descriptor = Descriptor.from_json(data["descriptor"])
    path, origin = store.locate(descriptor.digest, descriptor.size, data["diff_id"])
    libraries = library_record(descriptor.digest, store)
    has_libraries = libraries.path.exists() or libraries.read() is not None
    if not (path or origin) or (data["packages"] and not has_libraries):
        return None
    values = {**data, "descriptor": descriptor, "path": path, "origin": origin}
    values["packages"] = tuple(data["packages"])
    if "content" in data:
        values["content"] = LayerContent(**data["content"])
    return Layer(**values)


def recorded_layers(data: Sequence[Mapping[str, Any]], store: Store) -> tuple[Layer, ...] | None:
    """Return the layers that :func:`layer_record` described; None if a blob is not stored."""
    layers = [recorded_layer(x, store) for x in data]
    found = tuple(layer for layer in layers if layer is not None)
    return found if len(found) == len(layers) else None


def read_layer(path: Path, store: Store) -> Layer | None:
    """Return the layer of a record; None if there is no record, or no blob."""
    layers = (recorded_layer(data, store) for data in store.records(path))
    return next((layer for layer in layers if layer is not None), None)


def cached_layer(path: Path, store: Store, make: Callable[[], Layer]) -> Layer:
    """Return the layer of a record; make and record it if the cache does not have it.

    Two builds do not make the same layer at the same time.
    """
    with store.lock(f"layer {path.stem}"):
        layer = read_layer(path, store)
        if layer is None:
            layer = make()
            store.write_record(path, layer_record(layer))
    return layer
