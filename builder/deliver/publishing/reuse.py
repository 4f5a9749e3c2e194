"""A registry as a cache: a build takes the layers that the published image has already.

A machine with an empty cache would download every package only to find that the registry has nearly
all layers. So publishing attaches a record to the image: the cache's records of what made which
layer, and of the paths of each package. A build whose cache lacks a record looks into that of the
published image, and leaves a layer that it names in the registry, like one of a base::

    cache has no record of a layer -> record of HOST/REPOSITORY:latest -> digest, diff id, size
                                   -> none either: packages are downloaded, the layer is made

To compile the modules of a changed package, the few MB of Python that compile are attached, too.

Trust: whoever writes the record decides what the build contains. Where the project has a policy, or
the publish signs, only a record that an accepted signature covers counts; otherwise the recipe has
to say ``registry: {reuse: true}``. A layer that the record names must be one of the image, with its
diff id, and its content is verified when it is downloaded. What a build makes with a record stays
apart from the cache of other builds, see :class:`builder.core.store.blobs.Reuse`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import zstandard
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from builder.build.bases.contents import BaseSystem
from builder.build.bytecode.inputs import RecordedModules
from builder.build.engines.base import BuildResult
from builder.core.errors import BuilderError, ImageError, UsageError
from builder.core.model import Image, LayerContent, canonical_json
from builder.core.store.blobs import Reuse, Store
from builder.core.store.files import mark_used
from builder.core.text import human_bytes, one_line
from builder.core.workspace import Workspace
from builder.formats.layers.entry import Declared, Kind
from builder.formats.layers.libraries import RecordedLibraries
from builder.formats.oci.shapes import BlobShape, Sha256
from builder.formats.registry.referrers import Artifact, AttachedFile
from builder.lock.config.recipe import Recipe

from .destination import RegistryDestination
from .published import read_published
from .pull import is_reference, open_reference
from .release import COMPILER, LAYERS
from .tags import TagPlan
from .verify import Subject, Trust, read_document, verify

log = logging.getLogger(__name__)

#: Bytes of a record without compression, and of its window, which is held in memory.
_MOST, _WINDOW = 128 << 20, 8 << 20
_COMPILER = re.compile(r"bytecode/python-[0-9a-f]{64}\.json")


class _LayerRecord(BaseModel, extra="forbid"):
    """See :func:`builder.formats.layers.cache.layer_record`."""

    descriptor: BlobShape
    diff_id: Sha256
    origin: str
    title: str
    packages: list[str]
    unpacked: int
    content: LayerContent | None = None


class LayersRecord(BaseModel, extra="forbid"):
    """The attached file."""

    format: Literal[1]
    records: dict[str, Any]
    documents: list[str] = Field(max_length=2)
    """Manifest and config of the base."""


#: A :class:`builder.formats.layers.entry.PackageIndex`, with all values of each entry.
_Index = tuple[list[tuple[str, Kind, int, str]], list[str], list[str], int, list[str]]
#: Names of records, and what they hold. Others are ignored.
_SHAPES: Mapping[str, Any] = {
    r"layers/(bytecode-)?[0-9a-f]{64}": _LayerRecord,
    r"bytecode/python-[0-9a-f]{64}": _LayerRecord,
    r"bytecode/[0-9a-f]{64}": RecordedModules,
    r"layers/libraries-\d+-[0-9a-f]{64}": RecordedLibraries,
    r"index/[0-9a-f]{64}": _Index,
    r"index/[0-9a-f]{64}-record": dict[str, str],
    r"index/declared-[\w-]+": Declared,
    r"index/python-[0-9a-f]{64}": tuple[str, str],
    r"index/base-system-[\w-]+": BaseSystem,
}


# writing ------------------------------------------------------------------------------------------


def layer_artifacts(result: BuildResult) -> list[Artifact]:
    """Return what is attached to an image so that other machines need not make its layers."""
    if result.work is None:
        return []
    store = result.work.store
    paths = {path.relative_to(store.root).as_posix(): path for path in result.records()}
    records = {name: store.read_record(path) for name, path in sorted(paths.items())}
    found = {name: record for name, record in records.items() if record is not None}
    documents = _documents(result, store)
    text = canonical_json({"format": 1, "records": found, "documents": documents})
    data = zstandard.ZstdCompressor(level=9).compress(text)
    log.info("record of %d layers and packages: %s", len(records), human_bytes(len(data)))
    artifacts = [Artifact(LAYERS, [AttachedFile("layers.json.zst", LAYERS, data)])]
    files = [
        AttachedFile("python.tar.gz", compiler["descriptor"]["mediaType"], path.read_bytes())
        for compiler in _compilers(found)
        if (path := store.get(compiler["descriptor"]["digest"]))
    ]
    return [*artifacts, Artifact(COMPILER, files)] if files else artifacts


def _documents(result: BuildResult, store: Store) -> list[str]:
    """Return manifest and config of the base, which other machines may be unable to make."""
    manifest = store.get(result.base.digest)
    if manifest is None or result.base.reference.startswith("sif:"):
        return []
    text = manifest.read_text()
    config = store.get(json.loads(text)["config"]["digest"])
    return [text, config.read_text()] if config else []


def is_reused(recipe: Recipe, trust: Trust | None) -> bool:
    """Return whether builds take layers of the target's published image, so that it needs a record."""
    return bool(recipe.registry.reuse) or trust is not None


# reading ------------------------------------------------------------------------------------------


def reusing(
    work: Workspace, recipe: Recipe, where: str, trust: Trust | None, image: str = ""
) -> Workspace:
    """Return a workspace whose store may take layers of a published image.

    The registry is asked when the cache lacks something. Where nothing can be reused, this reports
    a warning, and the build makes its layers.

    Args:
        work: the workspace.
        recipe: the target.
        where: the destination of its images; empty or ``oci:DIR``: nothing is reused.
        trust: the policy that the image must fulfil; None: there is none.
        image: a reference (``--reuse``); empty: the recipe's, or the target's tags.

    Raises:
        UsageError: ``image`` is no reference.
    """
    images = _images(recipe, where, trust, image)
    if not images or work.settings.offline:
        return work

    def find() -> Reuse | None:
        for name in images:
            try:
                if found := _open(name, trust, work):
                    return found
            except BuilderError as e:
                work.reporter.warn(f"no layer of {name} is reused: {e.message}")
                return None
        is_named = image or recipe.registry.reuse not in (True, False)
        say = work.reporter.warn if is_named else log.info
        say(f"no layer is reused: no image with a record of layers at {', '.join(images)}")
        return None

    return replace(work, store=Store(work.settings.cache, find))


def _images(recipe: Recipe, where: str, trust: Trust | None, image: str) -> list[str]:
    """Return the references of images that may be reused, the first choice first."""
    image = image or (recipe.registry.reuse if isinstance(recipe.registry.reuse, str) else "")
    if image:
        if image.startswith("oci:") or not is_reference(image):
            hint = "write HOST/REPOSITORY:TAG"
            raise UsageError(f"reuse of {image}: not an image of a registry", hint)
        return [image]
    is_in_registry = where.partition(":")[0] not in ("", "oci")
    if recipe.format == "sif" or not is_in_registry or not is_reused(recipe, trust):
        return []  # a SIF has one layer
    return [f"{where}:{tag}" for tag in reversed(TagPlan.of(recipe).tags)]


def _open(name: str, trust: Trust | None, work: Workspace) -> Reuse | None:
    """Return an image with its record; None if there is no such image, or no record.

    Raises:
        ImageError, VerifyError: the policy refuses it, or its record is damaged.
        RegistryError: the registry refuses, or cannot be reached.
    """
    with open_reference(name, work, "--reuse") as (place, tag):
        if not isinstance(place, RegistryDestination) or place.resolve(tag) is None:
            return None
        image = read_published(place, tag)
        attached = _attached(Subject.of(place, tag, image), trust)
    if not attached:
        return None
    record, digest = _newest(attached, image)
    for document in record.documents:
        work.store.add(document.encode())
    folder = work.store.folders.reuse / digest
    folder.mkdir(parents=True, exist_ok=True)
    mark_used(folder)
    layers = {layer.descriptor.digest: layer.diff_id for layer in image.layers}
    layers |= {r["descriptor"]["digest"]: r["diff_id"] for r in _compilers(record.records)}
    work.reporter.note(f"layers of {name} ({image.digest[:19]}) are reused")
    return Reuse(folder, place.name, layers, record.records)


def _attached(subject: Subject, trust: Trust | None) -> list[bytes]:
    """Return the attached records that count, the newest first."""
    if trust is None:
        found = subject.place.attached_to(subject.digest, LAYERS)
        return [file.data for one in reversed(found) for file in one.files]
    verified = verify(subject, trust)
    verified.require()
    attached = verified.release.attached if verified.release else {}
    return [read_document(subject, attached, LAYERS)] if LAYERS in attached else []


def _newest(attached: Sequence[bytes], image: Image) -> tuple[LayersRecord, str]:
    """Return the first record that can be read, and the hash of its bytes."""
    problem = ImageError("")
    for data in attached:
        try:
            return read_layers(data, image), hashlib.sha256(data).hexdigest()[:32]
        except ImageError as e:
            problem = e
    raise problem


def read_layers(data: bytes, image: Image) -> LayersRecord:
    """Return an attached record without layers that the image does not have.

    Raises:
        ImageError: it is damaged, too large, or of another version.
    """
    try:
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data) as stream:
            text = stream.read(_MOST)
        record = LayersRecord.model_validate_json(text)
        known = dict(_checked(record.records))
    except (zstandard.ZstdError, ValidationError) as e:
        problem = f"its record of layers is damaged, or of another version of builder: {e}"
        raise ImageError(one_line(problem), "publish it again") from None
    own = {(layer.descriptor.digest, layer.diff_id) for layer in image.layers}

    def is_of_image(found: Any) -> bool:
        is_layer = isinstance(found, dict) and "diff_id" in found
        return not is_layer or (found["descriptor"]["digest"], found["diff_id"]) in own

    counting = {n: r for n, r in known.items() if _COMPILER.fullmatch(n) or is_of_image(r)}
    return record.model_copy(update={"records": counting})


def _checked(records: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the records of known names. Raises ValidationError: one has another shape."""
    for pattern, shape in _SHAPES.items():
        adapter = TypeAdapter(shape)
        for name in filter(re.compile(rf"{pattern}\.json").fullmatch, records):
            found = adapter.validate_python(records[name])
            yield name, adapter.dump_python(found, mode="json", exclude_unset=True)


def _compilers(records: Mapping[str, Any]) -> list[Any]:
    return [record for name, record in records.items() if _COMPILER.fullmatch(name)]
