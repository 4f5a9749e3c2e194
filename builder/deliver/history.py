"""The history of a target's images: their layers, seconds of the build, and tags; in no image.

A build and a publish write ``reports/TARGET.images.json``, and ``builder report`` draws it.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from builder.build.engines.base import BuildResult
from builder.core.errors import BuilderError
from builder.core.model import Descriptor, Layer
from builder.core.store.files import write_atomic
from builder.formats.oci.documents import read_document
from builder.formats.oci.manifest import read_image
from builder.formats.trees.inside import own_path

#: What follows the target's name in the name of its file.
SUFFIX = ".images.json"
#: The number of images without a tag that stay in a history; published ones all do.
_BUILDS = 20
#: How the history in an image begins the titles of builder's layers.
_OURS = "builder: "


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image, as it was first built here."""

    digest: str
    """Of the manifest, or the sha256 of a SIF."""
    built: str
    """When it was first recorded, in UTC: ``2026-11-21 08:00:00+00:00``. Sorts by time."""
    size: int
    """Bytes of the compressed layers, or of the SIF."""
    layers: tuple[tuple[str, str, int], ...]
    """Title, digest and bytes of each layer, from the bottom up; of a SIF, those it was made of."""
    seconds: dict[str, float]
    """Of the build, by stage."""
    tags: tuple[str, ...] = ()
    """Those that it was published under, the dated ones first."""


def record_image(root: Path, result: BuildResult, tags: Sequence[str] = ()) -> None:
    """Make an image the newest of its target's history. A file that cannot be written is no error.

    Args:
        root: the project folder.
        result: the build.
        tags: those that name the image now.
    """
    with suppress(BuilderError, OSError):
        path = own_path(root, "reports") / f"{result.recipe.name}{SUFFIX}"
        known = read_images(path.parent, result.recipe.name)
        found = next((record for record in known if record.digest == result.digest), None)
        record = found or _record(result)
        record = replace(record, tags=tuple(dict.fromkeys([*tags, *record.tags])))
        if known and known[-1] == record:
            return
        builds = [other for other in known if not other.tags][-_BUILDS:]
        kept = [other for other in known if other != found and (other.tags or other in builds)]
        write_atomic(path, TypeAdapter(list[ImageRecord]).dump_json([*kept, record]))


def read_images(folder: Path, target: str) -> list[ImageRecord]:
    """Return a target's history, the newest build last; empty if it cannot be read.

    Args:
        folder: ``reports`` of the project.
        target: its name.
    """
    try:
        data = read_document(folder / f"{target}{SUFFIX}")
        return TypeAdapter(list[ImageRecord]).validate_json(data)
    except (OSError, BuilderError, ValidationError):
        return []


def read_histories(folder: Path, targets: Iterable[str]) -> dict[str, History]:
    """Return the histories of targets that have one, see :func:`read_images`."""
    found = {target: read_images(folder, target) for target in targets}
    return {target: History.of(images) for target, images in found.items() if images}


def _record(result: BuildResult) -> ImageRecord:
    found: list[tuple[str, str, int]] = []
    if (made := result.image) is not None:
        # as others read it: layers that this build made have other titles
        image = read_image(made.manifest, made.manifest_descriptor, lambda _: made.config, "")
        found = [(one.title, one.descriptor.digest, one.descriptor.size) for one in image.layers]
    now = datetime.datetime.now(datetime.UTC).isoformat(" ", "seconds")
    return ImageRecord(result.digest, now, result.artifact.size, tuple(found), result.timings)


def layers_by_name(layers: Iterable[Layer]) -> dict[str, dict[str, int]]:
    """Return the bytes of an image's layers by name and digest, from the bottom up.

    The names have no versions, so those of two months can be compared.

    A name is ``pip torch``, ``conda group 3``, ``bytecode of pip torch``, the title of another
    layer of builder's, or ``base``.
    """
    found: dict[str, dict[str, int]] = {}
    for layer in layers:
        found.setdefault(_name(layer), {})[layer.descriptor.digest] = layer.descriptor.size
    return found


def _name(layer: Layer) -> str:
    # a build with nothing changed needs neither
    from builder.formats.layers.grouping import BYTECODE_TITLE, content_of
    from builder.formats.registry.oras import TITLE

    title = layer.title.removeprefix(_OURS)
    if content := content_of(title):
        return f"{BYTECODE_TITLE if content.kind == 'bytecode' else ''}{content.name}"
    is_ours = title != layer.title or TITLE in layer.descriptor.annotations
    return title if is_ours else "base"


def told_apart(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels by digest; one that several have is followed by a part of the digest."""
    count = Counter(labels.values())
    parts = {digest: f" {digest.removeprefix('sha256:')[:6]}" for digest in labels}
    return {d: label + (parts[d] if count[label] > 1 else "") for d, label in labels.items()}


@dataclass(frozen=True, slots=True)
class History:
    """The images of a target, as ``builder report`` draws them."""

    labels: dict[str, str]
    """By digest: a tag or the day of the build."""
    new: ImageRecord
    old: ImageRecord | None
    """The newest other release, without one the newest other build; None: there is no other."""
    sizes: Sequence[ImageRecord]
    """The releases by time, and the newest build; without two of them, all builds."""

    @classmethod
    def of(cls, images: Sequence[ImageRecord]) -> History:
        """Return the history of images, at least one, the newest build last."""
        new = images[-1]
        by_time = sorted(images, key=lambda image: image.built)
        labels = told_apart({image.digest: (*image.tags, image.built[:10])[0] for image in by_time})
        others = [image for image in by_time if image is not new]
        old = max(others, key=lambda image: (bool(image.tags), image.built), default=None)
        shown = [image for image in by_time if image.tags or image is new]
        return cls(labels, new, old, shown if len(shown) > 1 else by_time)

    def parts(self, one: ImageRecord, other: ImageRecord | None) -> Iterator[tuple[str, int, int]]:
        """Yield the layers of an image, from the bottom up.

        Yields:
            For each name its bytes, and how many of them the other image has, too.
        """
        theirs = {digest for _, digest, _ in other.layers} if other else set()
        layers = [Layer(Descriptor("", d, size), "", title=t) for t, d, size in one.layers]
        for name, blobs in layers_by_name(layers).items():
            shared = sum(size for digest, size in blobs.items() if digest in theirs)
            yield name, sum(blobs.values()), shared
