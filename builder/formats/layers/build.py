"""Builds the layers of packages.

Each layer is written once, in parallel with others, and found in the cache after that.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder.core.errors import LayerError
from builder.core.model import (
    Compression,
    Descriptor,
    Layer,
    LayerContent,
    LayerOptions,
    LockedPackage,
)
from builder.core.parallel import Advance, run_task
from builder.core.store.blobs import Store
from builder.core.store.files import require_space
from builder.core.text import human_bytes, listed
from builder.core.workspace import Workspace

from .cache import (
    FORMAT,
    cache_key,
    cached_layer,
    context_key,
    declared_record,
    layer_record,
    read_layer,
    recorded_layers,
)
from .compress import MEDIA_TYPES, LayerWriter, codec_name
from .conda_activation import Activation, activation_environment
from .conflicts import Conflict
from .entry import Entry
from .grouping import LayerPlan, plan_lock, split_index
from .libraries import RecordedLibraries, library_record
from .packages import Packages

log = logging.getLogger(__name__)

_TASK = "making layers"
#: Annotation of a layer's descriptor with the packages in it.
PACKAGES = "org.builder.packages"
#: Packages that the annotation names.
_ANNOTATION_NAMES = 20
#: The version of the rules for conflicting files and the order of layers: part of the key of a set
#: of layers, not of a layer's.
_RULES = 5


def make_layer(
    entries: Iterable[Entry],
    title: str,
    work: Workspace,
    *,
    compression: Compression = "gzip",
    advance: Advance = lambda n: None,
) -> Layer:
    """Write one layer into the store.

    Args:
        entries: the members of the layer.
        title: the layer's name in the image's history.
        compression: ``gzip`` or ``zstd``.
        advance: is called with the number of tar bytes written, block by block.

    Raises:
        LayerError: a path is unsafe, or content does not match its size or checksum.
        SpaceError: the disk is full.
    """
    with work.store.writer() as out:
        writer = LayerWriter(out, compression, work.settings.epoch, advance)
        writer.write(entries)
        digest, size = out.commit()
    libraries = RecordedLibraries(digest, writer.libraries.found)
    library_record(digest, work.store).write(libraries)
    descriptor, tar = Descriptor(MEDIA_TYPES[compression], digest, size), writer.blob
    return Layer(descriptor, tar.diff_id, work.store.path(digest), title=title, unpacked=tar.size)


# layers of packages, in the cache or written ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer, before it is known whether the cache has it."""

    content: LayerContent
    title: str
    packages: tuple[LockedPackage, ...]
    key: str
    """The name of its record: a hash of all that the bytes depend on."""
    unpacked: int
    """About how many bytes its tar has."""
    entries: Callable[[LockedPackage], Iterable[Entry]]
    """Returns the members that are one package's."""

    def record(self, store: Store) -> Path:
        """Return the path of the layer's record."""
        return store.folders.layers / f"{self.key}.json"


@dataclass(frozen=True)
class LayerMaker:
    """Finds layers in the cache, and writes the others in parallel, the largest first."""

    compression: Compression
    work: Workspace
    task: str
    """What the progress is called."""

    def make(
        self,
        plans: Sequence[PlannedLayer],
        prepare: Callable[[Sequence[PlannedLayer]], object] = lambda missing: None,
    ) -> tuple[Layer, ...]:
        """Return the layers in the order of ``plans``.

        Args:
            plans: the layers.
            prepare: is called with those that will be written, before the first one is.

        Raises:
            LayerError: a package is unsafe or damaged.
            SpaceError: the disk is full.
        """
        store, jobs = self.work.store, self.work.settings.jobs
        found = {plan.key: read_layer(plan.record(store), store) for plan in plans}
        missing = [plan for plan in plans if found[plan.key] is None]
        cached = len(plans) - len(missing)
        log.info("%s: %d are needed, %d of them in the cache", self.task, len(plans), cached)
        if missing:
            prepare(missing)
            total = sum(plan.unpacked for plan in missing)
            require_space(store.root, total // 2, "writing the layers")
            reporter, task = self.work.reporter, self.task
            written = run_task(self._write, missing, jobs, reporter, task, lambda p: p.unpacked)
            found |= {plan.key: layer for plan, layer in written}
        # another build may have made the same layer under another title
        return tuple(
            replace(layer, title=plan.title, content=plan.content)
            for plan in plans
            if (layer := found[plan.key]) is not None
        )

    def _write(self, plan: PlannedLayer, advance: Advance) -> Layer:
        """Return a layer that is written and recorded here, or by another build in the meantime."""
        store = self.work.store
        return cached_layer(plan.record(store), store, lambda: self._new(plan, advance))

    def _new(self, plan: PlannedLayer, advance: Advance) -> Layer:
        """Write a layer. An error names the package whose entries were being written."""
        current = ""

        def entries() -> Iterator[Entry]:
            nonlocal current
            for package in plan.packages:
                current = package.filename
                yield from plan.entries(package)

        try:
            layer = make_layer(
                entries(),
                plan.title,
                self.work,
                compression=self.compression,
                advance=advance,
            )
        except LayerError as e:
            if current in e.message:
                raise
            raise LayerError(f"{current}: {e.message}", e.hint) from e
        size, digest = layer.descriptor.size, layer.descriptor.digest
        log.info("not in the cache: %s; made %s (%s)", plan.title, digest, human_bytes(size))
        named = sorted(f"{p.name}={p.version}" for p in plan.packages)
        annotations = {PACKAGES: listed(named, _ANNOTATION_NAMES, " ")}
        descriptor = replace(layer.descriptor, annotations=annotations)
        return replace(layer, descriptor=descriptor, packages=tuple(p.name for p in plan.packages))


@dataclass(frozen=True, slots=True)
class LayersResult:
    """The layers of an environment."""

    layers: tuple[Layer, ...]
    """From the bottom up."""
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...]
    """Messages for the user."""
    activation: Activation


def build_layers(
    packages: Packages,
    options: LayerOptions,
    *,
    budget: int,
    post_link: Mapping[str, str] | None = None,
) -> LayersResult:
    """Return the layers of packages; write those that the cache does not have.

    The steps: read the index of every package; decide who wins each path; plan the layers; look
    each one up in the cache; write the missing ones.

    Args:
        packages: in link order.
        options: the recipe's ``layers:``.
        budget: the number of layers to plan for.
        post_link: ``{name: "skip"}`` for packages whose link script is not run.

    Raises:
        LayerError: a package is unsafe or damaged, or has a link script that ``post_link`` does not
            list.
        SpaceError: the disk is full.
    """
    work = packages.work
    inputs = {
        **packages_key(packages),
        **_common(options, work),
        "options": asdict(options),
        "budget": budget,
        "post_link": dict(post_link or {}),
    }
    record = work.store.record(
        work.store.folders.layers / f"set-2-{cache_key(inputs)}.json",
        tuple[list[dict[str, Any]], tuple[Conflict, ...], tuple[str, ...], Activation],
    )
    known = record.read()
    found = None if known is None else recorded_layers(known[0], work.store)
    if known is not None and found is not None:
        log.info("all %d layers of packages are in the cache", len(found))
        return LayersResult(found, *known[1:])
    notes = _check_scripts(packages, post_link or {})
    maker = LayerMaker(options.compression, work, _TASK)

    def fetch(missing: Sequence[PlannedLayer]) -> None:
        packages.fetch([package for plan in missing for package in plan.packages])

    layers = maker.make(_plans(packages, options, budget), fetch)
    activation = activation_environment(packages)
    rest = packages.resolution.conflicts, tuple(notes), activation
    record.write((list(map(layer_record, layers)), *rest))
    return LayersResult(layers, *rest)


def package_records(packages: Packages, options: LayerOptions, *, budget: int) -> list[Path]:
    """Return the records of the packages' layers, and of what planning them reads.

    Args:
        packages, options, budget: see :func:`build_layers`.
    """
    store = packages.work.store
    layers = [plan.record(store) for plan in _plans(packages, options, budget)]
    indexes = (packages.index_record(package).path for package in packages.locked)
    declared = (declared_record(package, store).path for package in packages.locked)
    return [*layers, *indexes, *declared]


def _common(options: LayerOptions, work: Workspace) -> dict[str, Any]:
    """Return the part of a key for what the bytes of every layer depend on."""
    return {"codec": codec_name(options.compression), "epoch": work.settings.epoch}


def _plans(packages: Packages, options: LayerOptions, budget: int) -> list[PlannedLayer]:
    """Return the layers of packages."""
    indexes, common = packages.indexes, _common(options, packages.work)
    splits = {key: split_index(index) for key, index in indexes.items()}
    counts = {key: len(parts) for key, parts in splits.items() if len(parts) > 1}

    def planned(plan: LayerPlan) -> PlannedLayer:
        parts = splits[plan.packages[0].key]
        others = frozenset[str]().union(*parts) - parts[plan.part]
        contents = contents_key(packages, plan.packages)
        key = cache_key({**contents, **common, "part": [plan.part, plan.parts], "format": FORMAT})
        unpacked = sum(indexes[p.key].unpacked for p in plan.packages) // plan.parts
        entries = functools.partial(_entries, packages, others=others)
        return PlannedLayer(plan.content, plan.title, plan.packages, key, unpacked, entries)

    sizes = {key: index.archive for key, index in indexes.items()}
    plans = plan_lock(packages.locked, sizes, options, budget=budget, parts=counts)
    return [planned(plan) for plan in plans]


def packages_key(packages: Packages) -> dict[str, Any]:
    """Return the part of a set's key for the files that the packages bring into the image."""
    return {
        "packages": [(p.manager, p.name, p.key, p.url) for p in packages.locked],
        "context": context_key(packages.context, packages.locked),
        "format": FORMAT,
        "rules": _RULES,
    }


def contents_key(packages: Packages, chosen: Sequence[LockedPackage]) -> dict[str, Any]:
    """Return the part of a layer's key for the files that some packages have in the image."""
    resolution = packages.resolution
    return {
        "packages": [(p.manager, p.key, p.url) for p in chosen],
        "leave_out": [sorted(resolution.leave_out.get(p.key, ())) for p in chosen],
        "moved": [resolution.moved.get(p.key, {}) for p in chosen],
        "context": context_key(packages.context, chosen),
    }


def _entries(packages: Packages, package: LockedPackage, others: frozenset[str]) -> Iterator[Entry]:
    """Yield a package's entries for the image.

    Paths that another package wins are left out; paths below links are renamed.

    Args:
        packages: all packages of the image.
        package: the one that is written.
        others: paths that belong to other parts of the package.
    """
    moved = packages.resolution.moved.get(package.key, {})
    # A reader turns a hard link into a file if its first name is left out, for example into another
    # part.
    leave_out = packages.resolution.leave_out.get(package.key, frozenset()) | others
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


def _check_scripts(packages: Packages, post_link: Mapping[str, str]) -> list[str]:
    """Return the packages' notes. Raises LayerError for a link script without a decision."""
    notes = []
    for p in packages.locked:
        scripts = ", ".join("/" + path for path in packages.indexes[p.key].post_link)
        if scripts and p.name not in post_link:
            raise LayerError(
                f"{p.filename} has a link script ({scripts}), and the recipe does not say what to do with it",
                f"read the script; then add to the recipe: conda: {{post_link: {{{p.name}: skip}}}}; if the "
                "image needs what it does, run it in steps:, with the variable PREFIX",
            )
        if scripts:
            notes.append(f"{p.name}: its link script was not run, as the recipe says")
    return notes
