"""Layers of compiled modules, above those of the packages and below builder's own files.

A package's own layer is the same with and without them, so a recipe that changes ``bytecode``
changes no layer of a package. What the compiled modules change in a package's metadata is in the
layer above::

    pip torch 2.9.0                torch/nn/__init__.py, torch-2.9.0.dist-info/RECORD
    bytecode of pip torch 2.9.0    torch/nn/__pycache__/__init__.cpython-311.pyc,
                                   torch-2.9.0.dist-info/RECORD, with rows for the .pyc files

Packages are distributed over these layers like over their own, see :mod:`builder.layers.grouping`,
but by the bytes of their modules: a new version of a package changes one layer of compiled modules.

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
from typing import TYPE_CHECKING, Any

from builder.bytecode.inputs import BytecodeRequest, can_compile, compiler_key, modules_of
from builder.layers.build import LayerMaker, PlannedLayer, contents_key, packages_key
from builder.layers.cache import cache_key, layer_record, recorded_layers
from builder.layers.compress import codec_name
from builder.layers.entry import Entry, LinkContext
from builder.layers.grouping import BYTECODE_TITLE, LayerPlan, plan_lock
from builder.layers.packages import Packages
from builder.model import Layer, LockedPackage, Manager
from builder.store.records import read_record, write_record

if TYPE_CHECKING:
    from builder.bytecode.compile import Bytecode

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

    What is large and seldom changes is at the bottom, see :mod:`builder.layers.grouping`: packages
    with a layer of their own, then their compiled modules, then groups of packages, then the
    compiled modules of groups.
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
    bytecode, python = request.recipe.bytecode, request.packages.context.python
    if bytecode == "none" or not can_compile(request.packages):
        log.info("no modules are compiled: bytecode: %s, Python: %s", bytecode, python or "none")
        return ()
    common = {
        "bytecode": _FORMAT,
        "compiler": compiler_key(request.packages, request.base),
        "codec": codec_name(request.recipe.layers.compression),
        "epoch": request.work.settings.epoch,
    }
    # two layers at least: a group for each manager
    budget, groups = max(2, request.total - len(request.below)), _groups(request)
    contents = [layer.content for layer in request.below if layer.content is not None]
    alone = sorted({content.name for content in contents if content.package})
    limits = {"budget": budget, "groups": groups, "alone": alone}
    inputs = {**packages_key(request.packages), **common, **limits}
    record = request.work.store.folders.layers / f"bytecode-set-{cache_key(inputs)}.json"
    known = read_record(record)
    layers = None if known is None else recorded_layers(known["layers"], request.work.store)
    if layers is not None:
        log.info("all %d layers of compiled modules are in the cache", len(layers))
    else:
        layers = _make(request, common, budget, groups, frozenset(alone))
        write_record(record, {"layers": [layer_record(layer) for layer in layers]})
    return layers


def _groups(request: BytecodeRequest) -> int:
    """Return the number of groups for each package manager.

    It does not depend on the number of packages, so that another package moves no module to another
    group.
    """
    return min(_GROUPS, request.recipe.layers.groups, max(1, _share(request.total) // 3))


def _make(
    request: BytecodeRequest,
    common: Mapping[str, Any],
    budget: int,
    groups: int,
    alone: frozenset[str],
) -> tuple[Layer, ...]:
    """Plan the layers, take them from the cache, and compile and write the missing ones.

    A package whose files are in a group has its compiled modules in a group, too: that is above all
    groups of packages, see :func:`in_order`.

    Args:
        request: what is compiled.
        common: what the bytes of every layer depend on.
        budget: the largest number of layers.
        groups: for each package manager.
        alone: managers and names of packages that have a layer of their own.
    """
    packages, options = request.packages, request.recipe.layers
    modules = {package.key: modules_of(packages, package) for package in packages.locked}
    chosen = [package for package in packages.locked if modules[package.key]]
    sizes: dict[str, int] = {}
    for package in chosen:
        size = sum(modules[package.key].values())
        is_alone = f"{package.manager} {package.name}" in alone
        sizes[package.key] = size if is_alone else min(size, _OWN_LAYER_FROM - 1)
    own = options.model_copy(update={"groups": groups, "own_layer_from": _OWN_LAYER_FROM})
    compiled: dict[str, Bytecode] = {}

    def entries(package: LockedPackage) -> Iterator[Entry]:
        return _entries(packages, package, compiled[package.key])

    def planned(plan: LayerPlan) -> PlannedLayer:
        key = cache_key({**common, **contents_key(packages, plan.packages)})
        size = sum(sum(modules[package.key].values()) for package in plan.packages)
        content, title = replace(plan.content, kind="bytecode"), f"{BYTECODE_TITLE}{plan.title}"
        return PlannedLayer(content, title, plan.packages, f"bytecode-{key}", size, entries)

    def compile_missing(missing: Sequence[PlannedLayer]) -> None:
        from builder.bytecode.compile import compile_packages  # with runners of containers

        needed = [package for plan in missing for package in plan.packages]
        compiled.update(compile_packages(request, needed))

    maker = LayerMaker(options.compression, request.work, _TASK)
    plans = plan_lock(chosen, sizes, own, budget=budget)
    return maker.make([planned(plan) for plan in plans], compile_missing)


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
    below = sorted(posixpath.relpath(path, root) for path in pycs)
    if manager == "pip":
        rows = io.StringIO()
        paths = [posixpath.relpath(path, context.site_packages) for path in below]
        csv.writer(rows, lineterminator="\n").writerows([path, "", ""] for path in paths)
        return record + rows.getvalue().encode()
    data = json.loads(record)
    data["files"] += below
    data["paths_data"]["paths"] += [{"_path": path, "path_type": "pyc_file"} for path in below]
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n"
