"""The last build of an engine that installs anew each time: what is built is what is tested, and what is tested is published.

Such an engine gives another digest with each build, so a build whose inputs are those of the last one is not repeated. The
inputs are all that goes in: the recipe as far as it is about the image, the lock, builder's and the recipe's own files.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from builder.engines.base import BuildRequest, BuildResult, cached_sif
from builder.image.files import system_entries
from builder.layers.build import make_layer
from builder.layers.cache import layer_record, recorded_layers
from builder.layers.entry import LinkContext
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, LockedBase, SifImage, canonical_json
from builder.net.mirrors import mirrored_base
from builder.store.blobs import Store
from builder.store.records import read_record, write_record
from builder.version import __version__

#: Of a recipe, what says where an image goes and runs, not what is in it.
_ELSEWHERE = {"source", "root", "registry", "group", "site", "engine"}


class LastBuild:
    """The last build of a target by an engine, and what goes into the one that is asked for."""

    def __init__(self, engine: str, request: BuildRequest) -> None:
        """Looks at the inputs as they are before the build. Raises ConfigError: a file of the recipe is missing."""
        self._engine = engine
        self._request = request
        self._sif = cached_sif(request, engine)
        self._record = self._sif.with_suffix(".json")
        self._inputs = _inputs(engine, request)

    def find(self) -> BuildResult | None:
        """The build, when all that went into it is the same and it is still here, whole."""
        data = read_record(self._record)
        if data is None or data["inputs"] != self._inputs:
            return None
        r = self._request
        conda = r.recipe.conda.model_copy(update={"prefix": data["prefix"]})
        result = BuildResult(
            r.recipe.model_copy(update={"conda": conda}),
            r.lock,
            LockedBase(*data["base"]),
            engine=self._engine,
            notes=(
                *data["notes"],
                f"as built at {data['built']}, since nothing of it has changed; builder build --rebuild builds anew",
            ),
            definition=data["definition"] and tuple(data["definition"]),
        )
        if data["sif"] is not None:
            sif = SifImage(self._sif, **data["sif"])
            return replace(result, sif=sif) if r.store.verify(sif.path, sif.digest) else None
        image = _image(data["image"], r.store)
        return None if image is None else replace(result, image=image)

    def keep(self, result: BuildResult) -> None:
        """Notes what the engine made of these inputs."""
        if self._inputs is None:
            return
        sif, image = result.sif, result.image
        if sif is not None:
            self._request.store.mark_verified(sif.path, sif.digest)
        record = {
            "inputs": self._inputs,
            "built": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "prefix": result.recipe.conda.prefix,
            "base": [result.base.reference, result.base.digest],
            "notes": result.notes,
            "definition": result.definition,
            "sif": sif and {"digest": sif.digest, "size": sif.size, "architecture": sif.architecture},
            "image": image and _image_record(image),
        }
        write_record(self._record, record)


def _inputs(engine: str, request: BuildRequest) -> str | None:
    """A digest of all that a build is made of; None for a lock that pins no base: nobody knows what that is tomorrow."""
    r = request
    if r.lock.base is None:
        return None
    anywhere = LinkContext(r.recipe.conda.prefix, "", "", r.recipe.platform)
    own = make_layer(
        system_entries(r.recipe, r.lock_text, anywhere, ()), "builder: files", r.settings, r.store
    )
    inputs: dict[str, Any] = {
        "builder": __version__,
        "engine": engine,
        "recipe": r.recipe.model_dump(mode="json", exclude=_ELSEWHERE),
        "lock": hashlib.sha256(r.lock_text).hexdigest(),
        "base": [mirrored_base(r.settings, r.lock.base.reference), r.lock.base.digest],
        "files": own.diff_id,
        "requested": sorted(r.requested),
        "annotations": dict(r.annotations),
        "epoch": r.settings.epoch,
    }
    return hashlib.sha256(canonical_json(inputs)).hexdigest()


def _image_record(image: Image) -> dict[str, Any]:
    return {
        "layers": [layer_record(layer) for layer in image.layers],
        "config": image.config.decode(),
        "manifest": image.manifest.decode(),
    }


def _image(data: Mapping[str, Any], store: Store) -> Image | None:
    """The image of a record, when all its layers are in the store."""
    layers = recorded_layers(data["layers"], store)
    if layers is None:
        return None
    config, manifest = data["config"].encode(), data["manifest"].encode()
    return Image(
        layers, config, Descriptor.of(OCI_CONFIG, config), manifest, Descriptor.of(OCI_MANIFEST, manifest)
    )
