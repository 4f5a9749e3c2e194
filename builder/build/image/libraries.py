"""Shared libraries that the packages of an image need and that are missing in it.

Nothing is run. A library is missing if no file or link of its name is anywhere in the image. The
folders that the loader searches do not matter: torch's wheels find libraries of other wheels by
RPATH, and some packages load theirs before they import what needs them.

Many files are never loaded: a wheel may have a variant for each version of CUDA, and plugins for
programs that are not installed. So a library is *optional* unless one of these needs it, itself or
by way of other libraries of the image:

- an extension module, which Python imports; of alternatives only if none has all its libraries
- a program
- the only library of a package, which loads it with ctypes; copies of others in ``NAME.libs`` do
not count
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from builder.build.bases.debian_libraries import debian_package
from builder.build.bases.image import BaseImage
from builder.core.model import Layer, MissingLibrary
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.store.records import Record
from builder.core.workspace import Workspace
from builder.formats.layers.cache import cache_key
from builder.formats.layers.libraries import Libraries, is_library, recorded_libraries, with_needed
from builder.formats.layers.packages import Packages
from builder.lock.config.recipe import Recipe

log = logging.getLogger(__name__)

#: Part of the key of records. Increase it when other libraries of the same image are missing.
_FORMAT = 3
#: Libraries of the GPU's driver, which the runtime brings into the container.
_DRIVER = r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-.+|(EGL|GLX)_nvidia)\.so.*"
#: Libraries of the host's MPI and network, which a site with ``mpi:`` brings.
_MPI = r"lib(mpi(cxx|fort|_.+)?|cxi|fabric|pmi2?|pmix)\.so.*"
#: ``x.so``, ``x.abi3.so``, ``lib.cpython-311-x86_64-linux-gnu.so``; since CPython 3.15 ``x.abi3t.so`` and
#: ``x.abi3-x86_64-linux-gnu.so``.
_EXTENSION = r"((?!lib)[A-Za-z_]\w*|[A-Za-z_]\w*\.(abi3|cpython)[\w-]*)\.so"
#: Copies of libraries that an extension module is linked to, and plugins.
_LINKED = r"\.libs/|/plugins/"
#: Extension modules that a package imports if they work.
_OPTIONAL = r".*/(numba/np/ufunc/(omp|tbb)pool|open3d/open3d_(tf|torch)_ops)\b.*"
#: Extension modules of which a package imports one that works.
_ALTERNATIVES = r".*/mpi4py/MPI\.\w+\.(cpython|abi3).*"


def missing_libraries(
    recipe: Recipe, base: BaseImage, layers: list[Layer], packages: Packages, work: Workspace
) -> tuple[MissingLibrary, ...]:
    """Return the missing libraries of an image, sorted; none if its base is not downloaded.

    Args:
        recipe: the target.
        base: its base.
        layers: those above the base.
        packages: the packages in these layers.

    Raises:
        ImageError: the base is damaged.
        LayerError: a package is unsafe or damaged.
    """
    digests = [base.digest, *(layer.descriptor.digest for layer in (*base.layers, *layers))]
    key = cache_key([_FORMAT, digests, recipe.conda.prefix, recipe.site.mpi is None])
    path = work.store.folders.index / f"libraries-{key}.json"
    record = work.store.record(path, tuple[MissingLibrary, ...])
    known = record.read()
    if known is None:
        if not all(layer.path and layer.path.exists() for layer in base.layers):
            return ()
        with working(work.reporter, "looking for missing libraries"):
            hidden = recipe.conda.prefix.strip("/") + "/"
            paths = base_libraries(base, work.store)
            below = _names(path for path in paths if not path.startswith(hidden))
            files, owners = _files(layers, packages, work.store)
        brought = f"{_DRIVER}|{_MPI}" if recipe.site.mpi else _DRIVER
        known = _with_packages(_missing(files, owners, below, brought), below, base, work)
        record.write(known)
    log.info("libraries that the image does not have: %d", len(known))
    return known


def _with_packages(
    missing: Iterable[MissingLibrary], below: Set[str], base: BaseImage, work: Workspace
) -> tuple[MissingLibrary, ...]:
    """Return missing libraries with the packages that have them, if the base has apt."""
    found = tuple(missing)
    if not found or not any(name.startswith("libapt-pkg.so.") for name in below):
        return found
    # imported here: a build with nothing changed reads no base
    from builder.build.bases.contents import find_system

    name, version, _ = find_system(base, work)
    return tuple(replace(x, os_package=debian_package(x.name, name, version)) for x in found)


def base_libraries(base: BaseImage, store: Store, paths: Iterable[str] = ()) -> Sequence[str]:
    """Return the paths in a base that name a library. A base is read once: it may be large.

    Args:
        base: the base.
        store: records them.
        paths: all paths in the base; empty: it is read for them.
    """
    key = cache_key([_FORMAT, base.digest, [layer.diff_id for layer in base.layers]])

    def find() -> list[str]:
        # imported here: a build with nothing changed reads no base
        from builder.build.bases.sif import base_sources
        from builder.formats.trees.merge import Merge

        known = paths or (member.path for member, _ in Merge(base_sources(base, store)))
        return sorted(filter(is_library, known))

    return Record(store.folders.index / f"base-libraries-{key}.json", list[str]).get(find)


def _files(
    layers: list[Layer], packages: Packages, store: Store
) -> tuple[Libraries, Mapping[str, str]]:
    """Return the files above the base, and the package or layer of each."""
    files: Libraries = {}
    owners: dict[str, str] = {}
    for layer in layers:
        found = recorded_libraries(layer.descriptor.digest, store)
        files |= found
        owners |= dict.fromkeys(found, layer.title)
    for package in packages.locked:
        owners |= {entry.path: package.name for entry in packages.indexes[package.key].entries}
    return files, owners


def _names(paths: Iterable[str]) -> set[str]:
    """Return the names of files that can be loaded: CUDA's stubs are for linking."""
    return {posixpath.basename(path) for path in paths if "/stubs/" not in path}


def _missing(
    files: Libraries, owners: Mapping[str, str], below: set[str], brought: str
) -> Iterator[MissingLibrary]:
    """Yield the missing libraries, sorted by name.

    Args:
        files: those of the layers above the base.
        owners: the package or layer of each file.
        below: the names of the base's libraries.
        brought: an expression for the names of libraries that the host brings.
    """
    using: dict[str, list[str]] = defaultdict(list)
    for path, names in files.items():
        for name in names:
            using[name].append(path)
    absent = using.keys() - below - _names(files) - {""}
    absent = {name for name in absent if not re.fullmatch(brought, name)}
    loaded = _loaded(files, owners, absent)
    for name in sorted(absent):
        required = [path for path in using[name] if posixpath.basename(path) in loaded]
        who = sorted({owners[path] for path in required or using[name]})
        yield MissingLibrary(name, tuple(who), not required)


def _loaded(files: Libraries, owners: Mapping[str, str], absent: Set[str]) -> set[str]:
    """Return the names of the files that are loaded if all modules of the packages are imported.

    Args:
        files: those of the layers above the base.
        owners: the package or layer of each file.
        absent: the names of libraries that the image lacks.
    """
    loaded: set[str] = set()
    others: dict[str, set[str]] = defaultdict(set)
    for path in files:
        name = posixpath.basename(path)
        if re.fullmatch(_EXTENSION, name) or "/bin/" in path:
            if not re.fullmatch(_OPTIONAL, path):
                loaded.add(name)
        elif not re.search(_LINKED, path):
            others[owners[path]].add(name)
    loaded.update(*(names for names in others.values() if len(names) == 1))
    alternatives = [path for path in files if re.fullmatch(_ALTERNATIVES, path)]
    if not any(absent.isdisjoint(files[path]) for path in alternatives):
        loaded.update(map(posixpath.basename, alternatives))
    return with_needed(files, loaded)
