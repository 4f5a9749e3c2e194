"""Builds the layers of packages.

Each layer is written once, in parallel with others, and found in the cache after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder.config.recipe import Compression, Layers
from builder.errors import LayerError
from builder.layers.cache import (
    FORMAT,
    cache_key,
    cached_layer,
    context_key,
    layer_record,
    read_layer,
    recorded_layers,
)
from builder.layers.compress import MEDIA_TYPES, LayerWriter, codec_name
from builder.layers.conda_activation import Activation, activation_environment
from builder.layers.conflicts import Conflict
from builder.layers.entry import Entry, PackageIndex
from builder.layers.packages import Packages
from builder.layers.plan import LayerPlan, plan_lock, split_index
from builder.model import Descriptor, Layer, LockedPackage
from builder.parallel import Stopped, in_parallel
from builder.progress import QUIET, Reporter, working
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import require_space
from builder.store.records import read_record, write_record

_TASK = "making layers"
#: Annotation of a layer's descriptor with the packages in it.
PACKAGES = "org.builder.packages"
#: Packages that the annotation names.
_ANNOTATION_NAMES = 20
#: The version of the rules for conflicting files: part of the key of a set of layers, not of a layer's.
_CONFLICTS = 3
#: The version of the rules for the order of layers, in the same key.
_ORDER = 2


def make_layer(
    entries: Iterable[Entry],
    title: str,
    settings: Settings,
    store: Store,
    *,
    compression: Compression = "gzip",
    advance: Callable[[int], None] = lambda n: None,
) -> Layer:
    """Write one layer into the store.

    Args:
        entries: the members of the layer.
        title: the layer's name in the image's history.
        settings: time of all files.
        store: receives the layer.
        compression: ``gzip`` or ``zstd``.
        advance: is called with the number of tar bytes written, block by block.

    Raises:
        LayerError: a path is unsafe, or content does not match its size or checksum.
        SpaceError: the disk is full.
    """
    with store.writer() as out:
        writer = LayerWriter(out, compression, settings.epoch, advance)
        writer.write(entries)
        digest, size = out.commit()
    descriptor = Descriptor(MEDIA_TYPES[compression], digest, size)
    return Layer(descriptor, writer.diff_id, store.path(digest), title=title, unpacked=writer.size)


# layers of packages, in the cache or written ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer, before it is known whether the cache has it."""

    title: str
    packages: tuple[LockedPackage, ...]
    key: str
    """The name of its record: a hash of all that the bytes depend on."""
    unpacked: int
    """About how many bytes its tar has."""
    entries: Callable[[LockedPackage], Iterable[Entry]]
    """Returns the members that are one package's."""

    def record(self, store: Store) -> Path:
        """Return where the layer is recorded once it is written."""
        return store.folders.layers / f"{self.key}.json"


class LayerMaker:
    """Finds layers of packages in the cache, and writes the others.

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

    def make(
        self, plans: Sequence[PlannedLayer], prepare: Callable[[Sequence[PlannedLayer]], object]
    ) -> tuple[tuple[Layer, ...], int]:
        """Return the layers in the order of ``plans``, and how many of them were not in the cache.

        These are written in parallel, the largest first.

        Args:
            plans: the layers.
            prepare: is called with those that will be written, before the first one is.

        Raises:
            LayerError: a package is unsafe or damaged.
            SpaceError: the disk is full.
        """
        found = {plan.key: read_layer(plan.record(self._store), self._store) for plan in plans}
        missing = [plan for plan in plans if found[plan.key] is None]
        if missing:
            prepare(missing)
            found |= self._written(missing)
        layers = [found[plan.key] for plan in plans]
        return tuple(layer for layer in layers if layer is not None), len(missing)

    def _written(self, plans: Sequence[PlannedLayer]) -> dict[str, Layer]:
        total = sum(plan.unpacked for plan in plans)
        if total:
            require_space(self._store.root, total // 2, "the layers")
        largest_first = sorted(plans, key=lambda plan: -plan.unpacked)
        with working(self._reporter, self._task, total):
            written = in_parallel(self._write, largest_first, self._settings.jobs, self._stop)
        return {plan.key: layer for plan, layer in written}

    def _write(self, plan: PlannedLayer) -> Layer:
        """Return a layer that is written and recorded here, or by another build in the meantime."""
        return cached_layer(plan.record(self._store), self._store, lambda: self._new(plan))

    def _new(self, plan: PlannedLayer) -> Layer:
        """Write a layer. An error names the package whose entries were being written."""
        current = ""

        def entries() -> Iterator[Entry]:
            nonlocal current
            for package in plan.packages:
                current = package.filename
                for entry in plan.entries(package):
                    if self._stop.is_set():
                        raise Stopped
                    yield entry

        try:
            layer = make_layer(
                entries(),
                plan.title,
                self._settings,
                self._store,
                compression=self._compression,
                advance=self._advance,
            )
        except LayerError as e:
            if current in e.message:
                raise
            raise LayerError(f"{current}: {e.message}", e.hint) from e
        annotations = {PACKAGES: _packages_annotation(plan.packages)}
        descriptor = replace(layer.descriptor, annotations=annotations)
        return replace(layer, descriptor=descriptor, packages=tuple(p.name for p in plan.packages))

    def _advance(self, n: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._reporter.advance(self._task, n)


@dataclass(frozen=True, slots=True)
class LayersResult:
    """The layers of an environment."""

    layers: tuple[Layer, ...]
    """From the bottom up."""
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...]
    """Messages for the user."""
    activation: Activation
    made: int
    """How many layers were written; the others were in the cache."""


def build_layers(
    packages: Packages,
    options: Layers,
    settings: Settings,
    store: Store,
    *,
    budget: int,
    post_link: Mapping[str, str] | None = None,
    reporter: Reporter = QUIET,
) -> LayersResult:
    """Return the layers of packages; write those that the cache does not have.

    Args:
        packages: in link order.
        options: the recipe's ``layers:``.
        settings: temporary folder, number of threads, time of all files.
        store: receives the layers, and holds the cache.
        budget: the largest number of layers.
        post_link: ``{name: "skip"}`` for packages whose post-link script does not run, ``run`` for those
            where a step runs it.
        reporter: receives the progress.

    Raises:
        LayerError: a package is unsafe or damaged, or has a post-link script that ``post_link`` does not
            list.
        SpaceError: the disk is full.
    """
    inputs = {
        **packages_key(packages),
        "options": options.model_dump(),
        "budget": budget,
        "post_link": dict(post_link or {}),
        "codec": codec_name(options.compression),
        "epoch": settings.epoch,
        "order": _ORDER,
    }
    record = store.folders.layers / f"set-{cache_key(inputs)}.json"
    result = _read_result(record, store)
    if result is None:
        build = _Build(packages, options, budget, settings, store)
        result = build.run(post_link or {}, reporter)
        _write_result(record, result)
    return result


def packages_key(packages: Packages) -> dict[str, Any]:
    """Returns the part of a set's cache key that says which files the packages bring into the image."""
    return {
        "packages": [(p.manager, p.name, p.key, p.url) for p in packages.locked],
        "context": context_key(packages.context, packages.locked),
        "format": FORMAT,
        "conflicts": _CONFLICTS,
    }


@dataclass(frozen=True, slots=True)
class _Build:
    """One run of :func:`build_layers`.

    The steps: read the index of every package; decide who wins each path; plan the layers; look each one up
    in the cache; write the missing ones, the largest first.
    """

    packages: Packages
    options: Layers
    budget: int
    settings: Settings
    store: Store

    def run(self, post_link: Mapping[str, str], reporter: Reporter) -> LayersResult:
        self.settings.tmpdir.mkdir(parents=True, exist_ok=True)
        packages, indexes = self.packages, self.packages.indexes
        notes = _check_scripts(packages.locked, indexes, post_link)
        splits = {key: split_index(index) for key, index in indexes.items()}
        splits = {key: parts for key, parts in splits.items() if len(parts) > 1}
        plans = plan_lock(
            packages.locked,
            packages.sizes,
            self.options,
            budget=self.budget,
            parts={key: len(parts) for key, parts in splits.items()},
            unpacked={key: index.unpacked for key, index in indexes.items()},
        )
        planned = [self._planned(plan, _other_parts(plan, splits)) for plan in plans]
        maker = LayerMaker(self.options.compression, self.settings, self.store, reporter, _TASK)
        layers, made = maker.make(planned, self._require_temporary_space)
        activation = activation_environment(packages.with_activation, packages.context)
        resolution = packages.resolution
        return LayersResult(layers, resolution.conflicts, tuple(notes), activation, made)

    def _planned(self, plan: LayerPlan, other_parts: frozenset[str]) -> PlannedLayer:
        def entries(package: LockedPackage) -> Iterator[Entry]:
            return _entries(self.packages, package, other_parts)

        unpacked = sum(self.packages.indexes[p.key].unpacked for p in plan.packages) // plan.parts
        return PlannedLayer(plan.title, plan.packages, self._key(plan), unpacked, entries)

    def _key(self, plan: LayerPlan) -> str:
        return cache_key(
            {
                **contents_key(self.packages, plan.packages),
                "part": [plan.part, plan.parts],
                "codec": codec_name(self.options.compression),
                "epoch": self.settings.epoch,
                "format": FORMAT,
            }
        )

    def _require_temporary_space(self, plans: Sequence[PlannedLayer]) -> None:
        """Check that the temporary folder can hold the largest conda packages, one for each thread.

        :class:`builder.layers.conda.CondaReader` unpacks a package while its layer is written.
        """
        indexes = self.packages.indexes
        largest = []
        for plan in plans:
            sizes = [indexes[p.key].unpacked for p in plan.packages if p.manager == "conda"]
            largest.append(max(sizes, default=0))
        needed = sum(sorted(largest)[-self.settings.jobs :])
        if needed:
            require_space(self.settings.tmpdir, needed, "unpacking conda packages")


def contents_key(packages: Packages, chosen: Sequence[LockedPackage]) -> dict[str, Any]:
    """Return the part of a layer's cache key that says which files of some packages are in the image."""
    resolution = packages.resolution
    return {
        "packages": [(p.manager, p.key, p.url) for p in chosen],
        "leave_out": [sorted(resolution.leave_out.get(p.key, ())) for p in chosen],
        "moved": [resolution.moved.get(p.key, {}) for p in chosen],
        "context": context_key(packages.context, chosen),
    }


def _entries(packages: Packages, package: LockedPackage, other_parts: frozenset[str]) -> Iterator[Entry]:
    """Yield a package's entries as the image has them: without lost paths, and moved ones at their place.

    Args:
        packages: all packages of the image.
        package: the one that is written.
        other_parts: paths that belong to other parts of the package.
    """
    moved = packages.resolution.moved.get(package.key, {})
    # A reader turns a hard link into a file if its first name is left out, for example into another part.
    leave_out = packages.resolution.leave_out.get(package.key, frozenset()) | other_parts
    for entry in packages.entries(package, leave_out):
        if "/.wh." in entry.path:
            raise LayerError(
                f"{package.filename}: /{entry.path} would delete a file of the image",
                "do not use this package",
            )
        yield _moved(entry, moved) if moved else entry


def _moved(entry: Entry, moved: Mapping[str, str]) -> Entry:
    target = moved.get(entry.target, entry.target) if entry.kind == "hardlink" else entry.target
    return replace(entry, path=moved.get(entry.path, entry.path), target=target)


def _check_scripts(
    packages: Sequence[LockedPackage], indexes: Mapping[str, PackageIndex], post_link: Mapping[str, str]
) -> list[str]:
    """Returns the packages' notes. Raises LayerError for a link script that the recipe does not skip."""
    notes = []
    for p in packages:
        index = indexes[p.key]
        if not index.post_link:
            continue
        if post_link.get(p.name) == "run":
            continue
        if post_link.get(p.name) != "skip":
            scripts = ", ".join("/" + path for path in index.post_link)
            raise LayerError(
                f"{p.filename} has a link script ({scripts}), and the recipe does not say what to do with it",
                "read the script; if the image works without it, add to the recipe: "
                f"conda: {{post_link: {{{p.name}: skip}}}}; else write run in place of skip",
            )
        notes.append(f"{p.name}: its link script was left out, as the recipe says")
    return notes


def _other_parts(plan: LayerPlan, splits: Mapping[str, Sequence[frozenset[str]]]) -> frozenset[str]:
    """Returns the paths of the plan's package that belong to its other parts."""
    if plan.parts == 1:
        return frozenset()
    others: set[str] = set()
    for number, paths in enumerate(splits[plan.packages[0].key]):
        if number != plan.part:
            others |= paths
    return frozenset(others)


def _write_result(path: Path, result: LayersResult) -> None:
    data: dict[str, Any] = {
        "layers": [layer_record(x) for x in result.layers],
        "conflicts": [asdict(c) for c in result.conflicts],
        "notes": result.notes,
        "activation": [dict(result.activation.env), result.activation.scripts],
    }
    write_record(path, data)


def _read_result(path: Path, store: Store) -> LayersResult | None:
    """Returns the result of an earlier build, or None if there is none, or a layer's blob is missing."""
    data = read_record(path)
    layers = None if data is None else recorded_layers(data["layers"], store)
    if layers is None:
        return None
    conflicts = tuple(Conflict(c["path"], c["winner"], tuple(c["losers"])) for c in data["conflicts"])
    env, scripts = data["activation"]
    return LayersResult(layers, conflicts, tuple(data["notes"]), Activation(env, tuple(scripts)), made=0)


def _packages_annotation(packages: Sequence[LockedPackage]) -> str:
    """Returns ``name=version`` of a layer's packages, of the first 20 in a large group."""
    names = sorted(f"{p.name}={p.version}" for p in packages)
    more = len(names) - _ANNOTATION_NAMES
    return " ".join(names[:_ANNOTATION_NAMES]) + (f" and {more} more" if more > 0 else "")
