"""Builds the layers of packages.

Each layer is written once, in parallel with others, and found in the cache after that.
"""

from __future__ import annotations

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
    package_records,
    recorded_layers,
)
from builder.layers.cached import LayerMaker, PlannedLayer
from builder.layers.compress import codec_name, write_layer
from builder.layers.conda_activation import Activation, activation_environment
from builder.layers.conflicts import Conflict, Resolution
from builder.layers.entry import Entry, PackageIndex
from builder.layers.files import PackageFiles
from builder.layers.packages import Packages
from builder.layers.plan import LayerPlan, plan_lock, split_index
from builder.model import Layer, LockedPackage
from builder.parallel import Stopped
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import require_space
from builder.store.records import write_record

_TASK = "making layers"
#: The version of the rules for conflicting files: part of the key of a set of layers, not of a layer's.
_CONFLICTS = 3
#: The version of the rules for the order of layers, in the same key.
_ORDER = 2


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
    files: PackageFiles,
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
        files: the packages in link order.
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
    allowed = dict(post_link or {})
    inputs = {
        **packages_key(files.packages),
        "options": options.model_dump(),
        "budget": budget,
        "post_link": allowed,
        "codec": codec_name(options.compression),
        "epoch": settings.epoch,
        "order": _ORDER,
    }
    record = store.folders.layers / f"set-{cache_key(inputs)}.json"
    cached = _read_result(record, store)
    if cached is not None:
        if store.shared is not None:
            store.shared.note(package_records(store, files.packages.locked, files.packages.context))
        return cached

    result = _Build(files, options, budget, settings, store, reporter).run(allowed)
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


@dataclass(slots=True)
class _LayerContent:
    """The entries of one layer: its packages' entries, without losing paths and with moved paths replaced."""

    packages: Packages
    plan: LayerPlan
    resolution: Resolution
    other_parts: frozenset[str]
    """Paths that belong to other parts of the same package."""
    current: LockedPackage | None = field(default=None, init=False)
    """The package whose entries are being written, for error messages."""

    def entries(self, stop: threading.Event) -> Iterator[Entry]:
        for package in self.plan.packages:
            self.current = package
            yield from self._of_package(package, stop)

    def _of_package(self, package: LockedPackage, stop: threading.Event) -> Iterator[Entry]:
        moved = self.resolution.moved.get(package.key, {})
        # A reader turns a hard link into a file if its first name is left out, for example into another part.
        leave_out = self.resolution.leave_out.get(package.key, frozenset()) | self.other_parts
        for entry in self.packages.entries(package, leave_out):
            if stop.is_set():
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
        files: PackageFiles,
        options: Layers,
        budget: int,
        settings: Settings,
        store: Store,
        reporter: Reporter,
    ) -> None:
        self._files = files
        self._options = options
        self._budget = budget
        self._settings = settings
        self._store = store
        self._maker = LayerMaker(options.compression, settings, store, reporter, _TASK)

    def run(self, post_link: Mapping[str, str]) -> LayersResult:
        self._settings.tmpdir.mkdir(parents=True, exist_ok=True)
        packages, indexes = self._files.packages, self._files.indexes
        notes = _check_scripts(packages.locked, indexes, post_link)
        resolution = self._files.resolution

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
        layers, made = self._layers(plans, splits)
        activation = activation_environment(packages.with_activation(indexes), packages.context)
        return LayersResult(layers, resolution.conflicts, (*notes, *resolution.notes), activation, made)

    def _layers(
        self, plans: Sequence[LayerPlan], splits: Mapping[str, Sequence[frozenset[str]]]
    ) -> tuple[tuple[Layer, ...], int]:
        """Returns the planned layers, and how many of them were not in the cache."""
        planned = [self._planned(plan, splits) for plan in plans]
        layers = self._maker.find(planned)
        missing = [number for number in range(len(plans)) if number not in layers]
        self._files.packages.require(p for number in missing for p in plans[number].packages)
        self._require_temporary_space([plans[number] for number in missing])
        written = self._maker.write([planned[number] for number in missing])
        layers |= dict(zip(missing, written, strict=True))
        return tuple(layers[number] for number in range(len(plans))), len(missing)

    def _planned(self, plan: LayerPlan, splits: Mapping[str, Sequence[frozenset[str]]]) -> PlannedLayer:
        files = self._files
        return PlannedLayer(
            plan.title,
            plan.packages,
            self._store.folders.layers / f"{self._key(plan)}.json",
            sum(files.indexes[p.key].unpacked for p in plan.packages) // plan.parts,
            _LayerContent(files.packages, plan, files.resolution, _other_parts(plan, splits)),
        )

    def _key(self, plan: LayerPlan) -> str:
        resolution = self._files.resolution
        return cache_key(
            {
                "packages": [(p.manager, p.key, p.url) for p in plan.packages],
                "part": [plan.part, plan.parts],
                "leave_out": [sorted(resolution.leave_out.get(p.key, ())) for p in plan.packages],
                "moved": [resolution.moved.get(p.key, {}) for p in plan.packages],
                "context": context_key(self._files.packages.context, plan.packages),
                "codec": codec_name(self._options.compression),
                "epoch": self._settings.epoch,
                "format": FORMAT,
            }
        )

    def _require_temporary_space(self, plans: Sequence[LayerPlan]) -> None:
        """Checks that the temporary folder can hold the largest conda packages, one for each thread.

        :class:`builder.layers.conda.CondaReader` unpacks a package while its layer is written.
        """
        largest = []
        for plan in plans:
            sizes = [self._files.indexes[p.key].unpacked for p in plan.packages if p.manager == "conda"]
            largest.append(max(sizes, default=0))
        needed = sum(sorted(largest)[-self._settings.jobs :])
        if needed:
            require_space(self._settings.tmpdir, needed, "unpacking conda packages")


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
    data = store.recall(path)
    layers = None if data is None else recorded_layers(data["layers"], store)
    if layers is None:
        return None
    conflicts = tuple(Conflict(c["path"], c["winner"], tuple(c["losers"])) for c in data["conflicts"])
    env, scripts = data["activation"]
    return LayersResult(layers, conflicts, tuple(data["notes"]), Activation(env, tuple(scripts)), made=0)
