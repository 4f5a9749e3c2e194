"""Layers of compiled modules, above those of the packages and below builder's own files.

A package's own layer is the same with and without them, so a recipe that changes ``bytecode`` changes no
layer of a package. What the compiled modules change in a package's metadata is in the layer above::

    pip torch 2.9.0                torch/nn/__init__.py, torch-2.9.0.dist-info/RECORD
    bytecode of pip torch 2.9.0    torch/nn/__pycache__/__init__.cpython-311.pyc,
                                   torch-2.9.0.dist-info/RECORD, with rows for the .pyc files

Packages are distributed over these layers like over their own, see :mod:`builder.layers.plan`, but by the
bytes of their modules: a new version of a package changes one layer of compiled modules.

Invariant: a ``.pyc`` is in the image exactly if its module is there, is the one of the same package, and is
wanted. So the conflicts of packages decide for their modules, and modules alone.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.bases.image import BaseImage
from builder.bytecode.compiled import PackageBytecode
from builder.bytecode.inputs import can_compile, compiler_key, modules_in
from builder.bytecode.records import with_bytecode
from builder.config.recipe import Layers, Recipe
from builder.layers.build import packages_key
from builder.layers.cache import cache_key, context_key, layer_record, recorded_layers
from builder.layers.cached import LayerMaker, PlannedLayer
from builder.layers.compress import codec_name
from builder.layers.conflicts import Resolution
from builder.layers.entry import Entry, Inline, Range
from builder.layers.files import PackageFiles
from builder.layers.packages import Packages
from builder.layers.plan import BYTECODE_TITLE, LayerPlan, is_group, plan_lock
from builder.model import Layer, LockedPackage
from builder.parallel import Stopped
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import write_record

#: Layers that a plan of packages leaves free for compiled modules, also if there are none: three for each
#: group, see :data:`_GROUPS`.
SHARE = 18
#: The largest number of groups per package manager. Compiled modules are a tenth of the packages' bytes, so
#: they need fewer than these.
_GROUPS = 6
#: A package gets its own layer of compiled modules when its modules have at least this many bytes.
_OWN_LAYER_FROM = 8 << 20
#: Part of every cache key. Increase it when the same modules result in other layers.
_FORMAT = 2
_TASK = "making layers of compiled modules"


def layers_for_packages(total: int) -> int:
    """Returns how many of the layers above the base the packages may have.

    It depends on neither the recipe's ``bytecode`` nor the packages, so that the packages' layers are the
    same with and without compiled modules. A base with many layers leaves less for both.
    """
    return total - _share(total)


def _share(total: int) -> int:
    return max(0, min(SHARE, total // 4))


@dataclass(frozen=True, slots=True)
class BytecodeRequest:
    """What is compiled, and for which image."""

    files: PackageFiles
    wanted: frozenset[str] | None
    """Image paths of the modules to compile; None for all."""
    base: BaseImage
    recipe: Recipe
    settings: Settings
    store: Store
    total: int
    """The largest number of layers of packages and compiled modules together."""
    below: tuple[Layer, ...]
    """The layers of the packages."""
    reporter: Reporter = QUIET

    @property
    def packages(self) -> Packages:
        return self.files.packages

    @property
    def budget(self) -> int:
        """The largest number of layers of compiled modules. Two at least: a group for each manager."""
        return max(2, self.total - len(self.below))

    @property
    def alone(self) -> frozenset[tuple[str, str]]:
        """Managers and names of the packages that have a layer of their own."""
        own = (layer for layer in self.below if not is_group(layer.title))
        return frozenset((layer.title.partition(" ")[0], layer.packages[0]) for layer in own)

    @property
    def options(self) -> Layers:
        """The recipe's ``layers:`` as they apply to compiled modules.

        The number of groups does not depend on the number of packages, so that another package moves no
        module to another group.
        """
        groups = min(_GROUPS, self.recipe.layers.groups, max(1, _share(self.total) // 3))
        return self.recipe.layers.model_copy(update={"groups": groups, "own_layer_from": _OWN_LAYER_FROM})


def in_order(packages: Sequence[Layer], bytecode: Sequence[Layer]) -> tuple[Layer, ...]:
    """Returns the layers of packages and of their compiled modules in the order of an image, from below.

    What is large and seldom changes is at the bottom, see :mod:`builder.layers.plan`: packages with a layer
    of their own, then their compiled modules, then groups of packages, then the compiled modules of groups.
    """
    own, groups = _divided(packages, "")
    own_bytecode, bytecode_groups = _divided(bytecode, BYTECODE_TITLE)
    return (*own, *own_bytecode, *groups, *bytecode_groups)


def _divided(layers: Sequence[Layer], prefix: str) -> tuple[list[Layer], list[Layer]]:
    """Layers of single packages, and of groups."""
    groups = [layer for layer in layers if is_group(layer.title.removeprefix(prefix))]
    return [layer for layer in layers if layer not in groups], groups


def bytecode_layers(request: BytecodeRequest) -> tuple[Layer, ...]:
    """Returns the layers of compiled modules; makes those that the cache does not have.

    Nothing is run if no package has modules, or if the cache has all layers.

    Raises:
        LayerError: a package is unsafe or damaged, or its modules cannot be compiled.
        RunnerError: no runner works on this host.
        ImageError, RegistryError: the base is damaged or not available.
        SpaceError: the disk is full.
    """
    if request.wanted == frozenset() or not can_compile(request.packages):
        return ()
    record = request.store.folders.layers / f"bytecode-set-{cache_key(_set_inputs(request))}.json"
    known = request.store.recall(record)
    layers = None if known is None else recorded_layers(known["layers"], request.store)
    if layers is None:
        layers = _make(request)
        write_record(record, {"layers": [layer_record(layer) for layer in layers]})
    return layers


def _set_inputs(request: BytecodeRequest) -> dict[str, Any]:
    return {
        **packages_key(request.packages),
        **_common_inputs(request),
        "wanted": None if request.wanted is None else sorted(request.wanted),
        "budget": request.budget,
        "groups": request.options.groups,
        "alone": sorted(request.alone),
    }


def _common_inputs(request: BytecodeRequest) -> dict[str, Any]:
    """What the bytes of every layer depend on."""
    return {
        "bytecode": _FORMAT,
        "compiler": compiler_key(request.packages, request.base),
        "codec": codec_name(request.recipe.layers.compression),
        "epoch": request.settings.epoch,
    }


def _make(request: BytecodeRequest) -> tuple[Layer, ...]:
    """Plans the layers, looks each one up in the cache, compiles what the others need, and writes them."""
    modules = {package.key: _modules(request, package) for package in request.packages.locked}
    sizes = {p.key: _size(request, p, modules[p.key]) for p in request.packages.locked}
    chosen = [package for package in request.packages.locked if modules[package.key]]
    plans = plan_lock(chosen, sizes, request.options, budget=request.budget)
    content = _Content(request.files, request.wanted)
    common = _common_inputs(request)
    planned = [_planned(request, common, plan, modules, content) for plan in plans]

    maker = LayerMaker(
        request.recipe.layers.compression, request.settings, request.store, request.reporter, _TASK
    )
    layers = maker.find(planned)
    missing = [number for number in range(len(plans)) if number not in layers]
    if missing:
        to_compile = tuple(package for number in missing for package in plans[number].packages)
        content.compiled.update(_compiled(request, to_compile))
        layers |= dict(zip(missing, maker.write([planned[number] for number in missing]), strict=True))
    return tuple(layers[number] for number in range(len(plans)))


def _size(request: BytecodeRequest, package: LockedPackage, modules: Mapping[str, int]) -> int:
    """The bytes of a package's modules, as the plan of layers counts them.

    A package whose files are in a group has its compiled modules in a group, too: that is above all groups of
    packages, see :func:`in_order`.
    """
    size = sum(modules.values())
    is_alone = (package.manager, package.name) in request.alone
    return size if is_alone else min(size, _OWN_LAYER_FROM - 1)


def _modules(request: BytecodeRequest, package: LockedPackage) -> dict[str, int]:
    """The modules of a package that the image has and wants: bytes by path in the package's index."""
    files, wanted = request.files, request.wanted
    left_out = files.resolution.leave_out.get(package.key, frozenset())
    found = modules_in(files.indexes[package.key], request.packages.context)
    return {
        path: size
        for path, size in found.items()
        if path not in left_out and (wanted is None or path in wanted)
    }


def _planned(
    request: BytecodeRequest,
    common: Mapping[str, Any],
    plan: LayerPlan,
    modules: Mapping[str, Mapping[str, int]],
    content: _Content,
) -> PlannedLayer:
    resolution = request.files.resolution
    inputs = {
        **common,
        "packages": [(p.manager, p.key, p.url) for p in plan.packages],
        "context": context_key(request.packages.context, plan.packages),
        "leave_out": [sorted(resolution.leave_out.get(p.key, ())) for p in plan.packages],
        "moved": [resolution.moved.get(p.key, {}) for p in plan.packages],
        "wanted": None if request.wanted is None else [sorted(modules[p.key]) for p in plan.packages],
    }
    return PlannedLayer(
        f"{BYTECODE_TITLE}{plan.title}",
        plan.packages,
        request.store.folders.layers / f"bytecode-{cache_key(inputs)}.json",
        sum(sum(modules[p.key].values()) for p in plan.packages),
        _LayerContent(content, plan.packages),
    )


def _compiled(request: BytecodeRequest, packages: tuple[LockedPackage, ...]) -> dict[str, PackageBytecode]:
    from builder.bytecode.compile import CompileRequest, compile_packages  # with runners of containers

    return compile_packages(
        CompileRequest(
            request.packages,
            packages,
            request.base,
            request.recipe,
            request.settings,
            request.store,
            request.reporter,
        )
    )


@dataclass(frozen=True, slots=True)
class _Content:
    """What the layers hold."""

    files: PackageFiles
    wanted: frozenset[str] | None
    compiled: dict[str, PackageBytecode] = field(default_factory=dict)
    """By package key; those of layers that the cache has are missing."""

    def entries(self, package: LockedPackage) -> Iterator[Entry]:
        """The compiled modules of a package, and its record."""
        bytecode = self.compiled[package.key]
        resolution: Resolution = self.files.resolution
        left_out = resolution.leave_out.get(package.key, frozenset())
        moved = resolution.moved.get(package.key, {})
        pycs = []
        for module in bytecode.files:
            if module.source in left_out or (self.wanted is not None and module.source not in self.wanted):
                continue
            path = _beside(moved[module.source], module.pyc) if module.source in moved else module.pyc
            content = Range(bytecode.blob, module.offset, sha256=module.sha256)
            yield Entry(path, "file", 0o644, module.size, content=content)
            pycs.append(module.pyc)
        if pycs:
            yield from self._record(package, pycs, left_out, moved)

    def _record(
        self,
        package: LockedPackage,
        pycs: Sequence[str],
        left_out: frozenset[str],
        moved: Mapping[str, str],
    ) -> Iterator[Entry]:
        """The package's record, unless that of another package is in the image."""
        path, record = self.files.packages.record(package)
        if path not in left_out:
            data = with_bytecode(package.manager, record, pycs, self.files.packages.context)
            yield Entry(moved.get(path, path), "file", 0o644, len(data), content=Inline(data))


def _beside(source: str, pyc: str) -> str:
    """The path of a ``.pyc`` if its module is at another path."""
    return posixpath.join(posixpath.dirname(source), "__pycache__", posixpath.basename(pyc))


@dataclass(slots=True)
class _LayerContent:
    """The entries of one layer, see :class:`builder.layers.cached.LayerContent`."""

    content: _Content
    packages: tuple[LockedPackage, ...]
    current: LockedPackage | None = None

    def entries(self, stop: threading.Event) -> Iterator[Entry]:
        for package in self.packages:
            self.current = package
            for entry in self.content.entries(package):
                if stop.is_set():
                    raise Stopped
                yield entry
