"""The last build of an engine that installs anew each time: what is built is what is tested, and what is tested is published.

Such an engine gives another digest with each build, so a build whose inputs are those of the last one is not repeated. The
inputs are all that goes in: the recipe as far as it is about the image, the lock, builder's and the recipe's own files.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import builder
from builder.engines.base import BuildRequest, BuildResult, kept_sif
from builder.image.files import system_entries
from builder.layers.build import layer_record, make_layer, recorded_layer
from builder.layers.entry import LinkContext
from builder.mirrors import mirrored_base
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, LockedBase, SifImage, canonical_json
from builder.store import read_record, remember, verified, write_record

#: Of a recipe, what says where an image goes and runs, not what is in it.
_ELSEWHERE = {"source", "root", "registry", "group", "site", "engine"}


def find_kept(engine: str, request: BuildRequest) -> BuildResult | None:
    """The engine's last build for the target, when all that went into it is the same and it is still here, whole.

    Raises:
        ConfigError: a file of the recipe is missing.
    """
    data = read_record(_path(engine, request))
    if data is None or data["inputs"] != _inputs(engine, request):
        return None
    conda = request.recipe.conda.model_copy(update={"prefix": data["prefix"]})
    result = BuildResult(
        request.recipe.model_copy(update={"conda": conda}),
        request.lock,
        LockedBase(*data["base"]),
        engine=engine,
        notes=(
            *data["notes"],
            f"as built at {data['built']}, since nothing of it has changed; builder build --rebuild builds anew",
        ),
        definition=None if data["definition"] is None else (data["definition"][0], data["definition"][1]),
    )
    if data["sif"] is not None:
        path = kept_sif(request, engine)
        sif = SifImage(path, data["sif"]["digest"], data["sif"]["size"], data["sif"]["architecture"])
        return replace(result, sif=sif) if verified(path, sif.digest, _seen(path)) else None
    image = _image(data["image"], request)
    return None if image is None else replace(result, image=image)


def keep_build(result: BuildResult, request: BuildRequest) -> None:
    """Notes what an engine made of which inputs."""
    if (inputs := _inputs(result.engine, request)) is None:
        return
    sif, image = result.sif, result.image
    if sif is not None:
        remember(sif.path, _seen(sif.path))
    record = {
        "inputs": inputs,
        "built": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "prefix": result.recipe.conda.prefix,
        "base": [result.base.reference, result.base.digest],
        "notes": list(result.notes),
        "definition": None if result.definition is None else list(result.definition),
        "sif": None if sif is None else {"digest": sif.digest, "size": sif.size, "architecture": sif.architecture},
        "image": None if image is None else _image_record(image),
    }
    write_record(_path(result.engine, request), record)


def _path(engine: str, request: BuildRequest) -> Path:
    return kept_sif(request, engine).with_suffix(".json")


def _seen(path: Path) -> Path:
    return path.with_suffix(".seen")


def _inputs(engine: str, request: BuildRequest) -> str | None:
    """A digest of all that a build is made of; None for a lock that pins no base: nobody knows what that is tomorrow."""
    r = request
    if r.lock.base is None:
        return None
    anywhere = LinkContext(r.recipe.conda.prefix, "", "", r.recipe.platform)
    own = make_layer(system_entries(r.recipe, r.lock_text, anywhere, ()), "builder: files", r.settings, r.store)
    inputs: dict[str, Any] = {
        "builder": builder.__version__,
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
        "config": base64.b64encode(image.config).decode(),
        "manifest": base64.b64encode(image.manifest).decode(),
    }


def _image(data: dict[str, Any], request: BuildRequest) -> Image | None:
    """The image of a record, when all its layers are in the store."""
    layers = tuple(layer for x in data["layers"] if (layer := recorded_layer(x, request.store)) is not None)
    if len(layers) < len(data["layers"]):
        return None
    config, manifest = (base64.b64decode(data[name]) for name in ("config", "manifest"))
    return Image(layers, config, Descriptor.of(OCI_CONFIG, config), manifest, Descriptor.of(OCI_MANIFEST, manifest))
