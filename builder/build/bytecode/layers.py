"""Layers of compiled modules, above those of the packages and below builder's own files.

A package's own layer is the same with and without them, so a recipe that changes ``bytecode``
changes no layer of a package. What the compiled modules change in a package's metadata is in the
layer above::

    pip torch 2.9.0                torch/nn/__init__.py, torch-2.9.0.dist-info/RECORD
    bytecode of pip torch 2.9.0    torch/nn/__pycache__/__init__.cpython-311.pyc,
                                   torch-2.9.0.dist-info/RECORD, with rows for the .pyc files

Packages are distributed over these layers like over their own, see
:mod:`builder.formats.layers.grouping`, but by the bytes of their modules: a new version of a
package changes one layer of compiled modules.

Invariant: a ``.pyc`` is in the image exactly if its module is there, is the one of the same
package, and is no test. So the conflicts of packages decide for their modules, and modules alone.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.model import Layer, LockedPackage, Manager
from builder.formats.layers.build import LayerMaker, PlannedLayer, contents_key, packages_key
from builder.formats.layers.cache import cache_key, layer_record, recorded_layers
from builder.formats.layers.compress import codec_name
from builder.formats.layers.entry import Entry, LinkContext
from builder.formats.layers.grouping import BYTECODE_TITLE, LayerPlan, plan_lock
from builder.formats.layers.packages import Packages

from .inputs import BytecodeRequest, can_compile, compiler_key, modules_of, modules_record

if TYPE_CHECKING:
    from .compile import Bytecode

log = logging.getLogger(__name__)

#: Layers that a plan of packages leaves free for compiled modules, also if there are none: three
#: for each group, see :data:`_GROUPS`.
SHARE = 18
#: The largest number of groups per package manager. Compiled modules are a tenth of the packages'
#: bytes, so they need fewer than these.
_GROUPS = 6
#: A package gets its own layer of compiled modules when its modules have at least this many bytes.
_OWN_LAYER_FROM = 8 << 20
#: Part of every cache key. Increase it when the same modules result in other layers.
_FORMAT = 3
_TASK = "making layers of compiled modules"


def layers_for_packages(total: int) -> int:
    """Return the number of layers above the base that packages may have.

    It depends on neither the recipe's ``bytecode`` nor the packages, so that the packages' layers
    are the same with and without compiled modules. A base with many layers leaves less for both.
    """
    return total - _share(total)


def _share(total: int) -> int:
    return max(0, min(SHARE, total // 4))


def in_order(packages: Sequence[Layer], bytecode: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers of packages and compiled modules in an image's order, from below.

    What is large and seldom changes is at the bottom, see :mod:`builder.formats.layers.grouping`:
    packages with a layer of their own, then their compiled modules, then groups of packages, then
    the compiled modules of groups.
    """

    def is_group(layer: Layer) -> bool:
        return layer.content is not None and not layer.content.package

    return tuple(sorted([*packages, *bytecode], key=is_group))


def bytecode_layers(request: BytecodeRequest) -> tuple[Layer, ...]:
    """Return the layers of compiled modules; make those that the cache does not have.

    Nothing is run if no package has modules, or if the cache has all layers.

    Raises:
        LayerError: a package is unsafe or damaged, or its modules cannot be compiled.
        RunnerError: no runner works on this host.
        ImageError, RegistryError: the base is damaged or not available.
        SpaceError: the disk is full.
    """
    if not _compiles(request):
        return ()
    inputs = {**packages_key(request.packages), **_common(request), **_limits(request)}
    store = request.work.store
    path = store.folders.layers / f"bytecode-set-2-{cache_key(inputs)}.json"
    record = store.record(path, list[dict[str, Any]])
    known = record.read()
    layers = None if known is None else recorded_layers(known, store)
    if layers is not None:
        log.info("all %d layers of compiled modules are in the cache", len(layers))
    else:
        layers = _make(request)
        record.write(list(map(layer_record, layers)))
    return layers


def bytecode_records(request: BytecodeRequest) -> list[Path]:
    """Return the records of the layers of compiled modules, and of the image that compiles.

    Also of the modules of each package in a group, whose layer changes with any of them.
    """
    if not _compiles(request):
        return []
    from .runtime import runtime_parts

    records = [part.record(request.work.store) for part in runtime_parts(request)]
    for plan in _plans(request, {}):
        records.append(plan.record(request.work.store))
        for package in plan.packages if len(plan.packages) > 1 else ():
            own = modules_record(request, package), request.packages.installed_record(package)
            records += [record.path for record in own]
    return records


def _compiles(request: BytecodeRequest) -> bool:
    bytecode, python = request.recipe.bytecode, request.packages.context.python
    compiles = bytecode != "none" and can_compile(request.packages)
    if not compiles:
        log.info("no modules are compiled: bytecode: %s, Python: %s", bytecode, python or "none")
    return compiles


def _common(request: BytecodeRequest) -> dict[str, Any]:
    """Return the part of a key for what the bytes of every layer depend on."""
    return {
        "bytecode": _FORMAT,
        "compiler": compiler_key(request.packages, request.base),
        "codec": codec_name(request.recipe.layers.compression),
        "epoch": request.work.settings.epoch,
    }


def _limits(request: BytecodeRequest) -> dict[str, Any]:
    """Return the number of layers and of groups, and the packages with a layer of their own."""
    contents = [layer.content for layer in request.below if layer.content is not None]
    return {
        # two layers at least: a group for each manager
        "budget": max(2, request.total - len(request.below)),
        # not by the number of packages: another one moves no module to another group
        "groups": min(_GROUPS, request.recipe.layers.groups, max(1, _share(request.total) // 3)),
        "alone": sorted({content.name for content in contents if content.package}),
    }


def _make(request: BytecodeRequest) -> tuple[Layer, ...]:
    """Plan the layers, take them from the cache, and compile and write the missing ones."""
    compiled: dict[str, Bytecode] = {}

    def compile_missing(missing: Sequence[PlannedLayer]) -> None:
        from .compile import compile_packages  # with runners of containers

        needed = [package for plan in missing for package in plan.packages]
        compiled.update(compile_packages(request, needed))

    maker = LayerMaker(request.recipe.layers.compression, request.work, _TASK)
    return maker.make(_plans(request, compiled), compile_missing)


def _plans(request: BytecodeRequest, compiled: Mapping[str, Bytecode]) -> list[PlannedLayer]:
    """Plan the layers.

    A package whose files are in a group has its compiled modules in a group, too: that is above all
    groups of packages, see :func:`in_order`.

    Args:
        request: what is compiled.
        compiled: has the modules of a package, by its key, when its layer is written.
    """
    packages, options = request.packages, request.recipe.layers.options
    common, limits = _common(request), _limits(request)
    modules = {package.key: modules_of(packages, package) for package in packages.locked}
    chosen = [package for package in packages.locked if modules[package.key]]
    sizes: dict[str, int] = {}
    for package in chosen:
        size = sum(modules[package.key].values())
        is_alone = f"{package.manager} {package.name}" in limits["alone"]
        sizes[package.key] = size if is_alone else min(size, _OWN_LAYER_FROM - 1)
    own = replace(options, groups=limits["groups"], own_layer_from=_OWN_LAYER_FROM)

    def entries(package: LockedPackage) -> Iterator[Entry]:
        return _entries(packages, package, compiled[package.key])

    def planned(plan: LayerPlan) -> PlannedLayer:
        key = cache_key({**common, **contents_key(packages, plan.packages)})
        size = sum(sum(modules[package.key].values()) for package in plan.packages)
        content, title = replace(plan.content, kind="bytecode"), f"{BYTECODE_TITLE}{plan.title}"
        return PlannedLayer(content, title, plan.packages, f"bytecode-{key}", size, entries)

    plans = plan_lock(chosen, sizes, own, budget=limits["budget"])
    return [planned(plan) for plan in plans]


def _entries(packages: Packages, package: LockedPackage, bytecode: Bytecode) -> Iterator[Entry]:
    """Yield a package's compiled modules, and its record if the image has that one."""
    moved = packages.resolution.moved.get(package.key, {})
    for source, entry in bytecode:
        if source in moved:  # the .pyc is beside its module
            names = posixpath.dirname(moved[source]), "__pycache__", posixpath.basename(entry.path)
            entry = replace(entry, path=posixpath.join(*names))
        yield entry
    if not bytecode:
        return
    path, record = packages.record(package)
    if path not in packages.resolution.leave_out.get(package.key, frozenset()):
        pycs = [entry.path for _, entry in bytecode]
        data = with_bytecode(package.manager, record, pycs, packages.context)
        yield Entry.of(moved.get(path, path), data)


def with_bytecode(
    manager: Manager, record: bytes, pycs: Sequence[str], context: LinkContext
) -> bytes:
    """Return a package's record with its compiled modules, as pip and conda write them.

    Args:
        manager: ``pip`` for a RECORD, ``conda`` for a record in conda-meta.
        record: the content without compiled modules.
        pycs: image paths of the compiled modules.
        context: the prefix and its site-packages.
    """
    root = context.prefix.strip("/")
    below = sorted(path.removeprefix(f"{root}/") for path in pycs)
    if manager == "pip":
        rows = io.StringIO()
        # absolute: relpath() does not ask for the current folder
        paths = [posixpath.relpath(f"/{path}", f"/{context.site_packages}") for path in below]
        csv.writer(rows, lineterminator="\n").writerows([path, "", ""] for path in paths)
        return record + rows.getvalue().encode()
    data = json.loads(record)
    data["files"] += below
    data["paths_data"]["paths"] += [{"_path": path, "path_type": "pyc_file"} for path in below]
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n"
