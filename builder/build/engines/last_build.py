"""The last build of an engine whose builds differ each time, even from the same inputs.

Builds of the engines docker, apptainer and cotainr differ each time, so the last one is stored and
reused while its inputs are unchanged. Otherwise `build`, `smoke` and `publish` would each build a
different image, and the published image would not be the tested one.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any

from builder.build.bases.resolve import is_made_here
from builder.build.image.files import system_entries
from builder.core.model import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
    Image,
    LockedBase,
    SifImage,
    canonical_json,
)
from builder.core.store.records import read_record, write_record
from builder.core.version import __version__
from builder.formats.layers.build import make_layer
from builder.formats.layers.cache import FORMAT, layer_record, recorded_layers
from builder.formats.net.mirrors import mirrored_base

from .base import BuildRequest, BuildResult, cached_sif

#: Part of the digest of the inputs. Increase it when the same inputs result in another config.
_FORMAT = 2
#: Fields of a recipe that set where an image is published, run, built or tested, not what is in it.
_NOT_CONTENTS = {"source", "root", "registry", "group", "site", "engine", "smoke"}


class LastBuild:
    """The stored build of a target by one engine.

    A record next to the SIF in the cache (``cached_sif`` with suffix ``.json``) holds the digest of
    the inputs and the result.
    """

    def __init__(self, engine: str, request: BuildRequest) -> None:
        """Compute the digest of the inputs now: the next build notices changes during this one.

        Raises:
            ConfigError: A file of the recipe is missing.
        """
        self._engine = engine
        self._request = request
        self._sif = cached_sif(request, engine)
        self._record = self._sif.with_suffix(".json")
        self._inputs = _inputs_digest(engine, request)

    def find(self) -> BuildResult | None:
        """Return the stored build if its inputs are the same and its files are intact."""
        data = read_record(self._record)
        if data is None or data["inputs"] != self._inputs:
            return None
        request = self._request
        artifact = self._artifact(data["artifact"])
        if artifact is None:
            return None
        conda = request.recipe.conda.model_copy(update={"prefix": data["prefix"]})
        again = "to build again: builder build --rebuild"
        unchanged = f"unchanged since the build at {data['built']}; {again}"
        return BuildResult(
            request.recipe.model_copy(update={"conda": conda}),
            request.lock,
            LockedBase(*data["base"]),
            artifact,
            engine=self._engine,
            notes=(*data["notes"], unchanged),
            definition=data["definition"] and tuple(data["definition"]),
        )

    def store(self, result: BuildResult) -> None:
        """Record a build. Does nothing for a lock that pins no base."""
        if self._inputs is None:
            return
        artifact, data = result.artifact, dict[str, Any]()
        if isinstance(artifact, SifImage):
            self._request.work.store.mark_verified(artifact.path, artifact.digest)
            data = {name: getattr(artifact, name) for name in ("digest", "size", "architecture")}
        else:
            layers = [layer_record(layer) for layer in artifact.layers]
            config, manifest = artifact.config.decode(), artifact.manifest.decode()
            data = {"layers": layers, "config": config, "manifest": manifest}
        record = {
            "inputs": self._inputs,
            "built": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "prefix": result.recipe.conda.prefix,
            "base": [result.base.reference, result.base.digest],
            "notes": result.notes,
            "definition": result.definition,
            "artifact": data,
        }
        write_record(self._record, record)

    def _artifact(self, data: Mapping[str, Any]) -> Image | SifImage | None:
        """Return the SIF or image of a record; None if it is damaged or not in the cache."""
        store = self._request.work.store
        if self._request.recipe.format == "sif":
            sif = SifImage(self._sif, **data)
            return sif if store.verify(sif.path, sif.digest) else None
        layers = recorded_layers(data["layers"], store)
        if layers is None:
            return None
        config, manifest = data["config"].encode(), data["manifest"].encode()
        described = Descriptor.of(OCI_CONFIG, config), Descriptor.of(OCI_MANIFEST, manifest)
        return Image(layers, config, described[0], manifest, described[1])


def _inputs_digest(engine: str, request: BuildRequest) -> str | None:
    """Return the digest of recipe, lock, base, and the files of builder and of the recipe.

    None for a lock that pins no base, or not its OS packages: they may change at any time.
    """
    r = request
    needs_os_packages = r.recipe.base_packages and not is_made_here(r.recipe.base)
    if r.lock.base is None or (needs_os_packages and r.lock.record.os_packages is None):
        return None
    entries = system_entries(r.recipe, r.lock.text, ())
    files = make_layer(entries, "builder: files", r.work)
    inputs: dict[str, Any] = {
        "builder": [__version__, FORMAT, _FORMAT],
        "engine": engine,
        "recipe": r.recipe.model_dump(mode="json", exclude=_NOT_CONTENTS),
        "lock": hashlib.sha256(r.lock.text).hexdigest(),
        "base": [mirrored_base(r.work.settings, r.lock.base.reference), r.lock.base.digest],
        "files": files.diff_id,
        "requested": sorted(r.requested),
        "annotations": dict(r.options.annotations),
        "epoch": r.work.settings.epoch,
    }
    return hashlib.sha256(canonical_json(inputs)).hexdigest()
