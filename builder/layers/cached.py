"""Layers that the cache has, or that are written in parallel, the largest first."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from builder.config.recipe import Compression
from builder.errors import LayerError
from builder.layers.cache import layer_record, read_layer
from builder.layers.compress import write_layer
from builder.layers.entry import Entry
from builder.model import Layer, LockedPackage
from builder.parallel import Stopped, in_parallel
from builder.progress import Reporter, working
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import require_space
from builder.store.records import write_record

#: Annotation of a layer's descriptor with the packages in it.
PACKAGES = "org.builder.packages"
#: Packages that the annotation names.
_ANNOTATION_NAMES = 20


class LayerContent(Protocol):
    """The members of a layer."""

    current: LockedPackage | None
    """The package whose entries are being written, for error messages."""

    def entries(self, stop: threading.Event) -> Iterator[Entry]:
        """Returns the members. Raises Stopped once ``stop`` is set: another layer has failed."""


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer, before it is known whether the cache has it."""

    title: str
    packages: tuple[LockedPackage, ...]
    record: Path
    """Where the layer is recorded once it is written. Its name is a hash of all that the bytes depend on."""
    unpacked: int
    """About how many bytes its tar has."""
    content: LayerContent


class LayerMaker:
    """Finds layers in the cache, and writes the others.

    Args:
        compression: ``gzip`` or ``zstd``.
        settings: number of threads, time of all files.
        store: receives the layers, and holds the cache.
        reporter: receives the progress.
        task: what the progress is called.
    """

    def __init__(
        self, compression: Compression, settings: Settings, store: Store, reporter: Reporter, task: str
    ) -> None:
        self._compression = compression
        self._settings = settings
        self._store = store
        self._reporter = reporter
        self._task = task
        self._stop = threading.Event()

    def find(self, plans: Sequence[PlannedLayer]) -> dict[int, Layer]:
        """Returns the layers that the cache has, by their place in ``plans``."""
        self._store.prefetch([plan.record for plan in plans])
        found = {number: read_layer(plan.record, self._store) for number, plan in enumerate(plans)}
        return {number: layer for number, layer in found.items() if layer is not None}

    def write(self, plans: Sequence[PlannedLayer]) -> list[Layer]:
        """Writes layers that the cache does not have; returns them in the order of ``plans``.

        Raises:
            LayerError: a package is unsafe or damaged.
            SpaceError: the disk is full.
        """
        total = sum(plan.unpacked for plan in plans)
        if total:
            require_space(self._store.root, total // 2, "the layers")
        order = sorted(range(len(plans)), key=lambda number: (-plans[number].unpacked, number))
        layers: dict[int, Layer] = {}
        with working(self._reporter, self._task, total) if plans else contextlib.nullcontext():
            written = in_parallel(lambda n: self._write(plans[n]), order, self._settings.jobs, self._stop)
            for number, layer in written:
                layers[number] = layer
        return [layers[number] for number in range(len(plans))]

    def _write(self, plan: PlannedLayer) -> Layer:
        """Writes a layer and records it, unless another build has done so in the meantime."""
        with self._store.lock(f"layer {plan.record.stem}"):
            cached = read_layer(plan.record, self._store)
            if cached is not None:
                return cached
            try:
                layer = write_layer(
                    self._store,
                    plan.content.entries(self._stop),
                    compression=self._compression,
                    mtime=self._settings.epoch,
                    title=plan.title,
                    packages=tuple(p.name for p in plan.packages),
                    annotations={PACKAGES: _packages_annotation(plan.packages)},
                    advance=self._advance,
                )
            except LayerError as e:
                name = plan.content.current.filename if plan.content.current else ""
                if name in e.message:
                    raise
                raise LayerError(f"{name}: {e.message}", e.hint) from e
            write_record(plan.record, layer_record(layer))
            return layer

    def _advance(self, n: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._reporter.advance(self._task, n)


def _packages_annotation(packages: Sequence[LockedPackage]) -> str:
    """Returns ``name=version`` of a layer's packages, of the first 20 in a large group."""
    names = sorted(f"{p.name}={p.version}" for p in packages)
    more = len(names) - _ANNOTATION_NAMES
    return " ".join(names[:_ANNOTATION_NAMES]) + (f" and {more} more" if more > 0 else "")
