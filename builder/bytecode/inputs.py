"""What the compiled modules of a package depend on. A build with nothing changed imports this module."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from builder.bases.image import BaseImage
from builder.layers.cache import FORMAT as LAYERS_FORMAT
from builder.layers.entry import LinkContext, PackageIndex
from builder.model import LockedPackage

if TYPE_CHECKING:
    from builder.layers.packages import Packages

#: Part of every cache key. Increase it when the same modules are compiled to other bytes.
FORMAT = 1
#: The first Python whose modules may carry a hash in place of a time (PEP 552).
_FIRST = (3, 7)
#: Builds of conda's package python that bring another implementation: ``0_73_pypy``, ``3_graalpy310_native``.
_NOT_CPYTHON = re.compile(r"_(pypy|graalpy)")


def python_package(packages: Packages) -> LockedPackage | None:
    """Returns the package of the environment's Python; None if there is none."""
    found = (p for p in packages.locked if p.manager == "conda" and p.name == "python")
    return next(found, None)


def python_packages(packages: Packages) -> list[LockedPackage]:
    """Returns the package of Python and the conda packages that it needs, directly or not, in link order.

    A list of packages with ``@EXPLICIT`` names no dependencies: then it may need any of them.
    """
    python = python_package(packages)
    by_name = {p.name: p for p in packages.locked if p.manager == "conda"}
    if python and not any(p.dependencies for p in by_name.values()):
        return [p for p in packages.locked if p.manager == "conda"]
    names: set[str] = set()
    todo = [python.name] if python else []
    while todo:
        name = todo.pop().lower()
        if name in by_name and name not in names:
            names.add(name)
            todo += by_name[name].dependencies
    return [p for p in packages.locked if p.manager == "conda" and p.name in names]


def can_compile(packages: Packages) -> bool:
    """Returns whether modules are compiled for the environment's Python: CPython from 3.7 on."""
    python, version = python_package(packages), packages.context.python
    if not version or (python is not None and _NOT_CPYTHON.search(python.build)):
        return False
    return tuple(map(int, version.split("."))) >= _FIRST


def base_key(base: BaseImage) -> list[str]:
    """Returns what identifies the files of a base, OS packages included."""
    return [base.digest, *(layer.diff_id for layer in base.added)]


def compiler_key(packages: Packages, base: BaseImage) -> list[str | int]:
    """Returns what identifies the Python that compiles, and what it reads, for keys of the cache.

    Its libraries and the base's C library belong to it: of two targets with the same Python, one may have a
    hostile library, and must not compile the modules of the other.
    """
    needed = [text for p in python_packages(packages) for text in (p.key, p.url)]
    return [FORMAT, LAYERS_FORMAT, *needed, *base_key(base)]


def modules_in(index: PackageIndex, context: LinkContext) -> dict[str, int]:
    """Returns the modules of a package, and the bytes of each: the files ``*.py`` in ``lib/pythonX.Y/``."""
    root = f"{context.prefix.strip('/')}/{posixpath.dirname(context.site_packages)}/"
    return {
        e.path: e.size
        for e in index.entries
        if e.path.endswith(".py") and e.path.startswith(root) and e.kind in ("file", "hardlink")
    }
