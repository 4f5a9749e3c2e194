"""Builds the layers of packages.

Each layer is written once, in parallel with others, and found in the cache after that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.config.recipe import Compression, Layers
from builder.errors import LayerError
from builder.layers.cache import (
    FORMAT,
    cache_key,
    context_key,
    layer_record,
    read_layer,
    recorded_layers,
)
from builder.layers.compress import codec_name, write_layer
from builder.layers.conda_activation import Activation, activation_environment
from builder.layers.conflicts import Conflict, Resolution, resolve_conflicts
from builder.layers.entry import Entry, LinkContext, PackageIndex
from builder.layers.packages import Packages
from builder.layers.pip_order import pip_order
from builder.layers.plan import LayerPlan, plan_lock, split_index
from builder.model import Fetched, Layer, LockedPackage
from builder.parallel import Stopped, in_parallel
from builder.progress import QUIET, Reporter, working
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import require_space
from builder.store.records import read_record, write_record

#: Annotation of a layer's descriptor with the packages in it.
PACKAGES = "org.builder.packages"
#: Packages that the annotation names.
_ANNOTATION_NAMES = 20
_TASK = "making layers"
#: The version of the rules for conflicting files: part of the key of a set of layers, not of a layer's.
_CONFLICTS = 2


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
    fetched: Sequence[Fetched],
    context: LinkContext,
    options: Layers,
    settings: Settings,
    store: Store,
    *,
    budget: int,
    post_link: Mapping[str, str] | None = None,
    reporter: Reporter = QUIET,
) -> LayersResult:
    """Returns the layers of packages; writes those that the cache does not have.

    Args:
        fetched: the packages in link order.
        context: where and for which Python they are installed.
        options: the recipe's ``layers:``.
        settings: temporary folder, number of threads, time of all files.
        store: receives the layers, and holds the cache.
        budget: the largest number of layers.
        post_link: ``{name: "skip"}`` for packages whose post-link script may be left out.
        reporter: receives the progress.

    Raises:
        LayerError: a package is unsafe or damaged, or has a post-link script that ``post_link`` does not
            list.
        SpaceError: the disk is full.
    """
    allowed = dict(post_link or {})
    inputs = {
        "packages": [(f.package.manager, f.package.name, f.package.key, f.package.url) for f in fetched],
        "context": context_key(context, [f.package for f in fetched]),
        "options": options.model_dump(),
        "budget": budget,
        "post_link": allowed,
        "codec": codec_name(options.compression),
        "epoch": settings.epoch,
        "format": FORMAT,
        "conflicts": _CONFLICTS,
    }
    record = store.folders.layers / f"set-{cache_key(inputs)}.json"
    cached = _read_result(record, store)
    if cached is not None:
        return cached

    packages = Packages(fetched, context, store, settings.tmpdir)
    result = _Build(packages, options, budget, settings, store, reporter).run(allowed)
    _write_result(record, result)
    return result


def make_layer(
    entries: Iterable[Entry],
    title: str,
    settings: Settings,
    store: Store,
    *,
    compression: Compression = "gzip",
) -> Layer:
    """Writes a layer of builder's own files.

    Args:
        entries: the members of the layer.
        title: the layer's name in the image's history.
        settings: time of all files.
        store: receives the layer.
        compression: ``gzip`` or ``zstd``.
    """
    return write_layer(store, entries, compression=compression, mtime=settings.epoch, title=title)


@dataclass(frozen=True, slots=True)
class _Missing:
    """A layer that is not in the cache."""

    number: int
    """Its place in the image, from the bottom."""
    plan: LayerPlan
    record: Path
    """Where the layer is recorded once it is written."""
    unpacked: int
    """About how many bytes its tar has."""


@dataclass(slots=True)
class _LayerContent:
    """The entries of one layer: its packages' entries, without losing paths and with moved paths replaced."""

    packages: Packages
    plan: LayerPlan
    resolution: Resolution
    other_parts: frozenset[str]
    """Paths that belong to other parts of the same package."""
    stop: threading.Event
    """Set if another layer has failed."""
    current: LockedPackage | None = field(default=None, init=False)
    """The package whose entries are being written, for error messages."""

    def entries(self) -> Iterator[Entry]:
        for package in self.plan.packages:
            self.current = package
            yield from self._of_package(package)

    def _of_package(self, package: LockedPackage) -> Iterator[Entry]:
        moved = self.resolution.moved.get(package.key, {})
        # A reader turns a hard link into a file if its first name is left out, for example into another part.
        leave_out = self.resolution.leave_out.get(package.key, frozenset()) | self.other_parts
        for entry in self.packages.entries(package, leave_out):
            if self.stop.is_set():
                raise Stopped
            if "/.wh." in entry.path:
                raise LayerError(
                    f"{package.filename}: /{entry.path} would delete a file of the image",
                    "do not use this package",
                )
            yield _moved(entry, moved) if moved else entry


def _moved(entry: Entry, moved: Mapping[str, str]) -> Entry:
    target = moved.get(entry.target, entry.target) if entry.kind == "hardlink" else entry.target
    return replace(entry, path=moved.get(entry.path, entry.path), target=target)


class _Build:
    """One run of :func:`build_layers`.

    The steps: read the index of every package; decide who wins each path; plan the layers; look each one up
    in the cache; write the missing ones, the largest first.
    """

    def __init__(
        self,
        packages: Packages,
        options: Layers,
        budget: int,
        settings: Settings,
        store: Store,
        reporter: Reporter,
    ) -> None:
        self._packages = packages
        self._options = options
        self._budget = budget
        self._settings = settings
        self._store = store
        self._reporter = reporter
        self._stop = threading.Event()

    def run(self, post_link: Mapping[str, str]) -> LayersResult:
        self._settings.tmpdir.mkdir(parents=True, exist_ok=True)
        packages = self._packages
        indexes = self._indexes()
        notes = _check_scripts(packages.locked, indexes, post_link)
        resolution = self._resolution(indexes)

        splits = {key: split_index(index) for key, index in indexes.items()}
        splits = {key: parts for key, parts in splits.items() if len(parts) > 1}
        plans = plan_lock(
            packages.locked,
            packages.sizes(),
            self._options,
            budget=self._budget,
            parts={key: len(parts) for key, parts in splits.items()},
            unpacked={key: index.unpacked for key, index in indexes.items()},
        )
        layers, made = self._layers(plans, resolution, splits, indexes)
        activation = activation_environment(packages.with_activation(indexes), packages.context)
        return LayersResult(layers, resolution.conflicts, (*notes, *resolution.notes), activation, made)

    def _indexes(self) -> dict[str, PackageIndex]:
        """The files of each package, by its key."""
        task = "reading packages"

        def read(package: LockedPackage) -> PackageIndex:
            index = self._packages.index(package)
            self._reporter.advance(task, 1)
            return index

        locked = self._packages.locked
        with working(self._reporter, task, len(locked), "packages"):
            found = in_parallel(read, locked, self._settings.jobs, self._stop)
        return {package.key: index for package, index in found}

    def _resolution(self, indexes: Mapping[str, PackageIndex]) -> Resolution:
        """Decides the conflicts. pip's order needs the metadata of all wheels, so it is used only where two
        wheels contain the same file.
        """
        packages = self._packages

        def resolved(ordered: Sequence[LockedPackage]) -> Resolution:
            return resolve_conflicts(ordered, indexes, packages.link_target, packages.context.prefix)

        resolution = resolved(packages.locked)
        pip = [package for package in packages.locked if package.manager == "pip"]
        names = {package.name for package in pip}
        if not any(len(names & {c.winner, *c.losers}) > 1 for c in resolution.conflicts):
            return resolution
        requires = {package.key: packages.requires(package) for package in pip}
        conda = [package for package in packages.locked if package.manager == "conda"]
        return resolved([*conda, *pip_order(pip, requires, packages.context)])

    def _layers(
        self,
        plans: Sequence[LayerPlan],
        resolution: Resolution,
        splits: Mapping[str, Sequence[frozenset[str]]],
        indexes: Mapping[str, PackageIndex],
    ) -> tuple[tuple[Layer, ...], int]:
        """Returns the planned layers, and how many of them were not in the cache."""
        layers: dict[int, Layer] = {}
        missing = []
        for number, plan in enumerate(plans):
            record = self._store.folders.layers / f"{self._key(plan, resolution)}.json"
            layer = read_layer(record, self._store)
            if layer is not None:
                layers[number] = layer
            else:
                unpacked = sum(indexes[p.key].unpacked for p in plan.packages) // plan.parts
                missing.append(_Missing(number, plan, record, unpacked))

        def write(item: _Missing) -> Layer:
            return self._write(item, resolution, splits)

        total = sum(item.unpacked for item in missing)
        if total:
            require_space(self._store.root, total // 2, "the layers")
            self._require_temporary_space([item.plan for item in missing], indexes)
        missing.sort(key=lambda item: (-item.unpacked, item.number))
        with working(self._reporter, _TASK, total) if missing else contextlib.nullcontext():
            for item, layer in in_parallel(write, missing, self._settings.jobs, self._stop):
                layers[item.number] = layer
        return tuple(layers[number] for number in range(len(plans))), len(missing)

    def _key(self, plan: LayerPlan, resolution: Resolution) -> str:
        return cache_key(
            {
                "packages": [(p.manager, p.key, p.url) for p in plan.packages],
                "part": [plan.part, plan.parts],
                "leave_out": [sorted(resolution.leave_out.get(p.key, ())) for p in plan.packages],
                "moved": [resolution.moved.get(p.key, {}) for p in plan.packages],
                "context": context_key(self._packages.context, plan.packages),
                "codec": codec_name(self._options.compression),
                "epoch": self._settings.epoch,
                "format": FORMAT,
            }
        )

    def _require_temporary_space(
        self, plans: Sequence[LayerPlan], indexes: Mapping[str, PackageIndex]
    ) -> None:
        """Checks that the temporary folder can hold the largest conda packages, one for each thread.

        :class:`builder.layers.conda.CondaReader` unpacks a package while its layer is written.
        """
        largest = []
        for plan in plans:
            sizes = [indexes[p.key].unpacked for p in plan.packages if p.manager == "conda"]
            largest.append(max(sizes, default=0))
        needed = sum(sorted(largest)[-self._settings.jobs :])
        if needed:
            require_space(self._settings.tmpdir, needed, "unpacking conda packages")

    def _write(
        self, item: _Missing, resolution: Resolution, splits: Mapping[str, Sequence[frozenset[str]]]
    ) -> Layer:
        """Writes a layer and records it, unless another build has done so in the meantime."""
        plan = item.plan
        content = _LayerContent(self._packages, plan, resolution, _other_parts(plan, splits), self._stop)
        with self._store.lock(f"layer {item.record.stem}"):
            cached = read_layer(item.record, self._store)
            if cached is not None:
                return cached
            try:
                layer = write_layer(
                    self._store,
                    content.entries(),
                    compression=self._options.compression,
                    mtime=self._settings.epoch,
                    title=plan.title,
                    packages=tuple(p.name for p in plan.packages),
                    annotations={PACKAGES: _packages_annotation(plan.packages)},
                    advance=self._advance,
                )
            except LayerError as e:
                name = content.current.filename if content.current else ""
                if name in e.message:
                    raise
                raise LayerError(f"{name}: {e.message}", e.hint) from e
            write_record(item.record, layer_record(layer))
            return layer

    def _advance(self, n: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._reporter.advance(_TASK, n)


def _check_scripts(
    packages: Sequence[LockedPackage], indexes: Mapping[str, PackageIndex], post_link: Mapping[str, str]
) -> list[str]:
    """Returns the packages' notes. Raises LayerError for a link script that the recipe does not skip."""
    notes = []
    for p in packages:
        index = indexes[p.key]
        notes += [f"{p.name}: {note}" for note in index.notes]
        if not index.post_link:
            continue
        if post_link.get(p.name) != "skip":
            scripts = ", ".join("/" + path for path in index.post_link)
            raise LayerError(
                f"{p.filename} has a link script ({scripts}), and the layered engine does not run scripts",
                "read the script; if the image works without it, add to the recipe: "
                f"conda: {{post_link: {{{p.name}: skip}}}}",
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


def _packages_annotation(packages: Sequence[LockedPackage]) -> str:
    """Returns ``name=version`` of a layer's packages, of the first 20 in a large group."""
    names = sorted(f"{p.name}={p.version}" for p in packages)
    more = len(names) - _ANNOTATION_NAMES
    return " ".join(names[:_ANNOTATION_NAMES]) + (f" and {more} more" if more > 0 else "")


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
