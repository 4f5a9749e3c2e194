"""Plans to blobs: each layer is made once, in parallel, and found again by what it is made of."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from builder.config.recipe import Compression, Layers
from builder.errors import LayerError
from builder.layers.compress import codec_name, write_layer
from builder.layers.conda import Activation, CondaReader, activation_environment, is_activation
from builder.layers.entry import Entry, IndexEntry, LinkContext, PackageIndex, PackageReader
from builder.layers.plan import Conflict, LayerPlan, Resolution, plan_lock, resolve_conflicts, split_index
from builder.layers.wheel import WheelReader
from builder.model import Descriptor, Fetched, Layer, LockedPackage, canonical_json
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import require_space
from builder.store.records import read_record, write_record

#: Changes whenever the same packages would give other bytes; part of every cache key.
FORMAT = 3
#: The annotation of a layer's descriptor that says what is inside.
PACKAGES = "org.builder.packages"
_TASK = "layers"


@dataclass(frozen=True, slots=True)
class LayersResult:
    """The packages' layers from the bottom up; ``made`` of them were not in the cache."""

    layers: tuple[Layer, ...]
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...]
    activation: Activation
    made: int


class _Stopped(Exception):
    """Another layer failed, or the user pressed Ctrl-C."""


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
    """Makes the layers of packages, or finds them in the cache.

    Args:
        fetched: the packages in link order.
        context: where and for which Python they are laid out.
        options: the recipe's.
        budget: how many layers there may be.
        post_link: ``{name: "skip"}`` for packages whose post-link script may be left out.

    Raises:
        LayerError: an unsafe or damaged package, or one with a post-link script that nobody allowed to leave out.
        SpaceError: the disk is full.
    """
    codec = codec_name(options.compression)
    allowed = dict(post_link or {})
    described = {
        "packages": [(f.package.manager, f.package.name, f.package.key, f.package.url) for f in fetched],
        "context": _context_key(context, [f.package for f in fetched]),
        "options": options.model_dump(),
        "budget": budget,
        "post_link": allowed,
        "codec": codec,
        "epoch": settings.epoch,
        "format": FORMAT,
    }
    whole = store.folders.layers / f"set-{_digest(described)}.json"
    if (known := _load_set(whole, store)) is not None:
        return known
    job = _Job(fetched, context, options.compression, codec, settings, store, allowed, reporter)
    result = job.run(options, budget)
    write_record(
        whole,
        {
            "layers": [layer_record(x) for x in result.layers],
            "conflicts": [asdict(c) for c in result.conflicts],
            "notes": result.notes,
            "activation": [dict(result.activation.env), result.activation.scripts],
        },
    )
    return result


def make_layer(
    entries: Iterable[Entry],
    title: str,
    settings: Settings,
    store: Store,
    *,
    compression: Compression = "gzip",
) -> Layer:
    """Makes a layer of builder's own files."""
    return write_layer(store, entries, compression=compression, mtime=settings.epoch, title=title)


class _Job:
    """One run of :func:`build_layers` that the cache could not answer as a whole."""

    def __init__(
        self,
        fetched: Sequence[Fetched],
        context: LinkContext,
        compression: Compression,
        codec: str,
        settings: Settings,
        store: Store,
        post_link: Mapping[str, str],
        reporter: Reporter,
    ) -> None:
        self._fetched = {f.package.key: f for f in fetched}
        self._packages = [f.package for f in fetched]
        self._context = context
        self._compression = compression
        self._codec = codec
        self._settings = settings
        self._store = store
        self._post_link = post_link
        self._reporter = reporter
        self._stop = threading.Event()
        self._wheels = WheelReader()
        self._conda = CondaReader(settings.tmpdir)
        if len(self._fetched) != len(self._packages):
            raise LayerError("a package stands twice in the lock", "lock again")

    def _reader(self, package: LockedPackage) -> PackageReader:
        return self._conda if package.manager == "conda" else self._wheels

    def run(self, options: Layers, budget: int) -> LayersResult:
        self._settings.tmpdir.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self._settings.jobs, thread_name_prefix="layer") as pool:
            indexes = dict(
                zip(
                    (p.key for p in self._packages),
                    self._parallel(pool, self._index, self._packages),
                    strict=True,
                )
            )
            notes = self._check_scripts(indexes)
            resolution = resolve_conflicts(self._packages, indexes, self._link_target)
            splits = {k: s for k, i in indexes.items() if len(s := split_index(i)) > 1}
            sizes: dict[str, int | None] = {k: f.size for k, f in self._fetched.items()}
            plans = plan_lock(
                self._packages,
                sizes,
                options,
                budget=budget,
                parts={k: len(s) for k, s in splits.items()},
                unpacked={k: i.unpacked for k, i in indexes.items()},
            )
            keys = [self._key(plan, resolution) for plan in plans]
            layers = [_load_layer(self._record_path(k), self._store) for k in keys]
            todo = [i for i, layer in enumerate(layers) if layer is None]
            weight = {
                i: sum(indexes[p.key].unpacked for p in plans[i].packages) // plans[i].parts for i in todo
            }
            total = sum(weight.values())
            if total:
                require_space(self._store.root, total // 2, "the layers")
                self._require_temporary_space([plans[i] for i in todo], indexes)
                self._reporter.start(_TASK, total)
            todo.sort(key=lambda i: (-weight[i], i))
            make = partial(self._make, plans=plans, keys=keys, resolution=resolution, splits=splits)
            for i, layer in zip(todo, self._parallel(pool, make, todo), strict=True):
                layers[i] = layer
            if total:
                self._reporter.finish(_TASK)
            activation = activation_environment(self._activating(indexes), self._context)
        made = tuple(x for x in layers if x)
        return LayersResult(made, resolution.conflicts, (*notes, *resolution.notes), activation, len(todo))

    def _require_temporary_space(
        self, plans: Sequence[LayerPlan], indexes: Mapping[str, PackageIndex]
    ) -> None:
        """Room for as many unpacked conda packages as there are threads, see :class:`builder.layers.conda.CondaReader`."""
        largest = [
            max((indexes[p.key].unpacked for p in plan.packages if p.manager == "conda"), default=0)
            for plan in plans
        ]
        needed = sum(sorted(largest)[-self._settings.jobs :])
        if needed:
            require_space(self._settings.tmpdir, needed, "unpacking conda packages")

    def _activating(self, indexes: Mapping[str, PackageIndex]) -> list[Fetched]:
        """The conda packages that bring activation scripts."""
        root = self._context.prefix.strip("/") + "/"
        return [
            self._fetched[p.key]
            for p in self._packages
            if p.manager == "conda"
            and any(is_activation(e.path.removeprefix(root)) for e in indexes[p.key].entries)
        ]

    def _parallel(
        self, pool: ThreadPoolExecutor, function: Callable[[Any], Any], items: Sequence[Any]
    ) -> list[Any]:
        futures = [pool.submit(function, item) for item in items]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                if (error := future.exception()) and not isinstance(error, _Stopped):
                    raise error
            return [f.result() for f in futures]
        except BaseException:
            self._stop.set()
            for future in futures:
                future.cancel()
            raise

    def _index(self, package: LockedPackage) -> PackageIndex:
        name = _digest([FORMAT, package.key, package.url, _context_key(self._context, [package])])
        path = self._store.folders.index / f"{name}.json"
        if (data := read_record(path)) is not None:
            return PackageIndex(
                tuple(IndexEntry(*e) for e in data["entries"]), tuple(data["post_link"]), tuple(data["notes"])
            )
        index = self._reader(package).index(self._fetched[package.key], self._context)
        entries = [(e.path, e.kind, e.size, e.target) for e in index.entries]
        write_record(path, {"entries": entries, "post_link": index.post_link, "notes": index.notes})
        return index

    def _check_scripts(self, indexes: Mapping[str, PackageIndex]) -> list[str]:
        notes = []
        for p in self._packages:
            notes += [f"{p.name}: {n}" for n in indexes[p.key].notes]
            scripts = indexes[p.key].post_link
            if not scripts:
                continue
            if self._post_link.get(p.name) != "skip":
                raise LayerError(
                    f"{p.filename} has a link script ({', '.join('/' + s for s in scripts)}), and a layered build runs nothing",
                    "see what it does; if the image works without it, say so in the recipe: "
                    f"conda: {{post_link: {{{p.name}: skip}}}}",
                )
            notes.append(f"{p.name}: its link script was left out, as the recipe says")
        return notes

    def _link_target(self, package: LockedPackage, path: str) -> str:
        for entry in self._reader(package).entries(self._fetched[package.key], self._context):
            if entry.path == path:
                return entry.target
        raise LayerError(f"{package.filename}: no link at {path}", "the package is damaged: fetch it again")

    def _key(self, plan: LayerPlan, resolution: Resolution) -> str:
        return _digest(
            {
                "packages": [(p.manager, p.key, p.url) for p in plan.packages],
                "part": [plan.part, plan.parts],
                "leave_out": [sorted(resolution.leave_out.get(p.key, ())) for p in plan.packages],
                "moved": [resolution.moved.get(p.key, {}) for p in plan.packages],
                "context": _context_key(self._context, plan.packages),
                "codec": self._codec,
                "epoch": self._settings.epoch,
                "format": FORMAT,
            }
        )

    def _record_path(self, key: str) -> Path:
        return self._store.folders.layers / f"{key}.json"

    def _make(
        self,
        i: int,
        plans: Sequence[LayerPlan],
        keys: Sequence[str],
        resolution: Resolution,
        splits: Mapping[str, list[frozenset[str]]],
    ) -> Layer:
        plan, record = plans[i], self._record_path(keys[i])
        with self._store.lock(f"layer {keys[i]}"):
            if (layer := _load_layer(record, self._store)) is not None:  # another build made it meanwhile
                return layer
            now: list[LockedPackage] = []
            try:
                layer = write_layer(
                    self._store,
                    self._entries(plan, resolution, splits, now),
                    compression=self._compression,
                    mtime=self._settings.epoch,
                    title=plan.title,
                    packages=tuple(p.name for p in plan.packages),
                    annotations={PACKAGES: _contents(plan.packages)},
                    advance=self._advance,
                )
            except LayerError as e:
                name = now[-1].filename if now else ""
                raise e if name in e.message else LayerError(f"{name}: {e.message}", e.hint) from e
            write_record(record, layer_record(layer))
            return layer

    def _advance(self, n: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._reporter.advance(_TASK, n)

    def _entries(
        self,
        plan: LayerPlan,
        resolution: Resolution,
        splits: Mapping[str, list[frozenset[str]]],
        now: list[LockedPackage],
    ) -> Iterator[Entry]:
        """A layer's entries; ``now`` is told the package that they come from."""
        for p in plan.packages:
            now.append(p)
            moved = resolution.moved.get(p.key, {})
            leave_out = resolution.leave_out.get(p.key, frozenset())
            if (
                plan.parts > 1
            ):  # what is in the other parts; the reader makes a file of a hard link to one of those
                leave_out = leave_out.union(
                    *(paths for i, paths in enumerate(splits[p.key]) if i != plan.part)
                )
            for entry in self._reader(p).entries(self._fetched[p.key], self._context, leave_out):
                if self._stop.is_set():
                    raise _Stopped
                if entry.path in leave_out:
                    continue  # a directory, or a record that readers give whatever they are asked to leave out
                if "/.wh." in entry.path:
                    raise LayerError(
                        f"{p.filename}: /{entry.path} would delete a file of the image",
                        "do not use this package",
                    )
                if moved:
                    target = (
                        moved.get(entry.target, entry.target) if entry.kind == "hardlink" else entry.target
                    )
                    entry = replace(entry, path=moved.get(entry.path, entry.path), target=target)
                yield entry


def _contents(packages: Sequence[LockedPackage]) -> str:
    """``name=version`` of a layer's packages, for its descriptor; the first 20 of a large group."""
    names = sorted(f"{p.name}={p.version}" for p in packages)
    return " ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _context_key(context: LinkContext, packages: Sequence[LockedPackage]) -> dict[str, Any]:
    """The context as far as these packages depend on it: a name newly asked for changes its own layer only."""
    names = {p.name for p in packages}
    return {
        "prefix": context.prefix,
        "python": context.python,
        "site_packages": context.site_packages,
        "platform": context.platform,
        "requested": sorted(context.requested & names),
    }


def layer_record(layer: Layer) -> dict[str, Any]:
    """A layer of the store as JSON."""
    return {
        "media_type": layer.descriptor.media_type,
        "digest": layer.descriptor.digest,
        "size": layer.descriptor.size,
        "annotations": dict(layer.descriptor.annotations),
        "diff_id": layer.diff_id,
        "title": layer.title,
        "packages": layer.packages,
        "unpacked": layer.unpacked,
    }


def _recorded_layer(data: Mapping[str, Any], store: Store) -> Layer | None:
    """The layer that :func:`layer_record` described, or None when its blob is not in the store any more."""
    path = store.get(data["digest"], data["size"])
    if path is None:
        return None
    return Layer(
        Descriptor(data["media_type"], data["digest"], data["size"], data["annotations"]),
        data["diff_id"],
        path,
        title=data["title"],
        packages=tuple(data["packages"]),
        unpacked=data["unpacked"],
    )


def recorded_layers(data: Sequence[Mapping[str, Any]], store: Store) -> tuple[Layer, ...] | None:
    """All these layers, or None when one of them is not in the store any more."""
    layers = tuple(layer for x in data if (layer := _recorded_layer(x, store)) is not None)
    return layers if len(layers) == len(data) else None


def _load_layer(path: Path, store: Store) -> Layer | None:
    """A layer on record whose blob is there and whole, else None."""
    data = read_record(path)
    return None if data is None else _recorded_layer(data, store)


def _load_set(path: Path, store: Store) -> LayersResult | None:
    data = read_record(path)
    if data is None:
        return None
    layers = recorded_layers(data["layers"], store)
    if layers is None:
        return None
    conflicts = tuple(Conflict(c["path"], c["winner"], tuple(c["losers"])) for c in data["conflicts"])
    return LayersResult(
        layers,
        conflicts,
        tuple(data["notes"]),
        Activation(data["activation"][0], tuple(data["activation"][1])),
        0,
    )
