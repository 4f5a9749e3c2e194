"""The inputs of compiled modules. A build with nothing changed imports this module."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from builder.build.bases.image import BaseImage
from builder.core.model import Layer, LockedPackage
from builder.core.store.records import Record
from builder.core.workspace import Workspace
from builder.formats.layers.cache import FORMAT as LAYERS_FORMAT
from builder.formats.layers.cache import cache_key
from builder.formats.layers.packages import Packages
from builder.formats.oci.shapes import Sha256
from builder.lock.config.recipe import Recipe

#: Part of every cache key. Increase it when the same modules are compiled to other bytes.
FORMAT = 1
#: Part of the keys of records. Increase it when records have another form.
_RECORD = 2
#: Folders below lib/pythonX.Y whose modules are not compiled: programs do not import a package's
#: tests.
_TESTS = re.compile(r"(.*/)?tests?/")
#: The first Python whose modules may carry a hash in place of a time (PEP 552).
_FIRST = (3, 7)
#: Builds of conda's package python that bring another implementation: ``0_73_pypy``,
#: ``3_graalpy310_native``.
_NOT_CPYTHON = re.compile(r"_(pypy|graalpy)")


@dataclass(frozen=True, slots=True)
class BytecodeRequest:
    """The modules to compile: of which packages, for which image, and with which tools."""

    packages: Packages
    """All packages of the image; one of them is Python."""
    base: BaseImage
    """Its C library, or its Python, runs the compiler."""
    recipe: Recipe
    work: Workspace
    total: int
    """The largest number of layers of packages and compiled modules together."""
    below: tuple[Layer, ...]
    """The layers of the packages."""


def python_package(packages: Packages) -> LockedPackage | None:
    """Return the package of the environment's Python; None if there is none."""
    found = (p for p in packages.locked if p.manager == "conda" and p.name == "python")
    return next(found, None)


def python_packages(packages: Packages) -> list[LockedPackage]:
    """Return Python's package and the conda packages that it needs, in link order.

    A list of packages with ``@EXPLICIT`` names no dependencies: then it may need any of them.
    """
    python = python_package(packages)
    if python is None:
        return []
    conda = [p for p in packages.locked if p.manager == "conda"]
    if not any(p.dependencies for p in conda):
        return conda
    by_name = {p.name: p for p in conda}
    names: set[str] = set()
    todo = [python.name]
    while todo:
        name = todo.pop().lower()
        if name in by_name and name not in names:
            names.add(name)
            todo += by_name[name].dependencies
    return [p for p in conda if p.name in names]


def can_compile(packages: Packages) -> bool:
    """Return whether modules are compiled for the environment's Python: CPython from 3.7 on."""
    python, version = python_package(packages), packages.context.python
    if not version or (python is not None and _NOT_CPYTHON.search(python.build)):
        return False
    return tuple(map(int, version.split("."))) >= _FIRST


def base_key(base: BaseImage) -> list[str]:
    """Return the digests of a base's files, OS packages included."""
    return [base.digest, *(layer.diff_id for layer in base.added)]


def compiler_key(packages: Packages, base: BaseImage) -> list[str | int]:
    """Return the identity of the Python that compiles, and of its libraries, for cache keys.

    Its libraries and the base's C library belong to it: of two targets with the same Python, one
    may have a hostile library, and must not compile the modules of the other.
    """
    needed = [text for p in python_packages(packages) for text in (p.key, p.url)]
    return [FORMAT, LAYERS_FORMAT, *needed, *base_key(base)]


@dataclass(frozen=True, slots=True)
class RecordedModules:
    """The compiled modules of a package, in one blob."""

    __pydantic_config__ = {"extra": "forbid"}

    tag: str
    """Of the Python: ``cpython-311``."""
    digest: Sha256
    size: int
    files: list[tuple[str, int, int, str]]
    """Path of the module; offset, size and SHA-256 of its compiled form. Sorted."""


def modules_record(request: BytecodeRequest, package: LockedPackage) -> Record[RecordedModules]:
    """Return the record of a package's compiled modules."""
    packages, context = request.packages, request.packages.context
    own = [package.key, package.url, context.prefix, context.site_packages]
    modules = sorted(modules_of(packages, package))
    key = cache_key([_RECORD, *compiler_key(packages, request.base), own, modules])
    store = request.work.store
    return store.record(store.folders.bytecode / f"{key}.json", RecordedModules)


def modules_of(packages: Packages, package: LockedPackage) -> dict[str, int]:
    """Return the modules of a package that are compiled, and the bytes of each.

    These are the files ``*.py`` in ``lib/pythonX.Y/``, without those in folders ``test`` and
    ``tests``, and without those that another package replaces.
    """
    context = packages.context
    root = f"{context.prefix.strip('/')}/{posixpath.dirname(context.site_packages)}/"
    left_out = packages.resolution.leave_out.get(package.key, frozenset())
    return {
        e.path: e.size
        for e in packages.indexes[package.key].entries
        if e.path.endswith(".py")
        and e.path.startswith(root)
        and e.kind in ("file", "hardlink")
        and e.path not in left_out
        and not _TESTS.match(e.path, len(root))
    }
