"""The image that modules are compiled in: the target's Python and a C library, a few MB.

The standard library of a Python decides nothing of what it compiles to, so the image holds the
least that the Python starts with, and not the environment. The C library comes from the base: its
lowest layers are read up to the one that has it, so a base of 20 GB costs the download of one
layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.build.bases.registry import fetch_layer
from builder.build.bases.sif import downloading_sources
from builder.build.fetch.venv import BasePython, base_python_of
from builder.build.image.libraries import base_libraries
from builder.core.datafiles import table
from builder.core.errors import LayerError
from builder.core.model import Image, Layer, LockedPackage
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.cache import cache_key, cached_layer
from builder.formats.layers.entry import Entry
from builder.formats.oci.image import image_of
from builder.formats.trees.member import Content, Kind, Member
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source

from .inputs import BytecodeRequest, base_key, python_package, python_packages

#: Where the job's folder is in a container of the image.
JOB_FOLDER = "/run/builder-compile"
#: Part of the keys of records. Increase it when an image has other files.
_FORMAT = 3
_PATTERNS: Mapping[str, str] = table(__file__, "runtime.yaml")
#: Bytes of a file of the base.
_MAX_SIZE = 256 << 20
#: Where runtimes mount things; Apptainer makes no folders.
_MOUNT_POINTS = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var/tmp")


def make_runtime(source: BytecodeRequest) -> tuple[Image, str]:
    """Return the image that modules are compiled in, made once, and its Python's path.

    Raises:
        LayerError: the environment or its base has no Python.
        ImageError, RegistryError, SpaceError: the base is damaged or not available.
    """
    package, base_python = _python(source)
    python = base_python.interpreter if base_python else source.packages.context.interpreter
    layers = [part.layer(source.work) for part in runtime_parts(source)]
    target = f"python-{package.version}"
    return image_of(layers, {}, architecture=source.recipe.architecture, target=target), python


@dataclass(frozen=True, slots=True)
class RuntimePart:
    """A layer of the image that modules are compiled in."""

    key: str
    """A hash of all that the files depend on."""
    entries: Callable[[], Iterator[Entry]]
    title: str

    def record(self, store: Store) -> Path:
        """Return the path of the layer's record."""
        return store.folders.bytecode / f"python-{self.key}.json"

    def layer(self, work: Workspace) -> Layer:
        """Return the layer, made once, with its blob on this machine."""

        def make() -> Layer:
            return make_layer(self.entries(), self.title, work)

        return fetch_layer(cached_layer(self.record(work.store), work.store, make), work)


def runtime_parts(source: BytecodeRequest) -> list[RuntimePart]:
    """Return the layers of the image, from below.

    Raises:
        LayerError: the environment has no Python.
    """
    package, base_python = _python(source)
    if base_python is not None:
        return [_base_python(source, base_python)]
    return [_base_libraries(source), _conda_python(source, package)]


def _python(source: BytecodeRequest) -> tuple[LockedPackage, BasePython | None]:
    """Return the package of the environment's Python, and the base's Python if it is that one."""
    package = python_package(source.packages)
    if package is None:
        hint = "add python to the environment, or write in the recipe: bytecode: none"
        raise LayerError("no Python in the environment: its modules cannot be compiled", hint)
    return package, base_python_of(package.url)


def _conda_python(source: BytecodeRequest, python: LockedPackage) -> RuntimePart:
    """Return the layer of a conda package's Python, with the libraries that it needs."""
    needed = python_packages(source.packages)
    context = source.packages.context
    key = cache_key([_FORMAT, context.prefix, context.python, [(p.key, p.url) for p in needed]])
    root = re.escape(context.prefix.strip("/"))
    libraries = re.compile(rf"{root}/lib/(?!{_PATTERNS['not_linked']})[^/]*\.so[^/]*")
    python_files = re.compile(
        rf"{libraries.pattern}|{root}/(bin/python3[^/]*|lib/python3\.\d+t?/(?!{_PATTERNS['not_needed']}).*)"
    )

    def entries() -> Iterator[Entry]:
        source.packages.fetch(needed)
        seen: set[str] = set()
        for package in reversed(needed):  # of two packages with one path the later one wins
            wanted = python_files if package is python else libraries
            paths = {e.path for e in source.packages.indexes[package.key].entries}
            leave_out = frozenset(p for p in paths if p in seen or not wanted.fullmatch(p))
            if paths == leave_out:
                continue
            for entry in source.packages.entries(package, leave_out):
                if entry.kind != "dir" and entry.path in paths:
                    seen.add(entry.path)
                    yield entry

    return RuntimePart(key, entries, f"python {python.version}")


def _base_libraries(source: BytecodeRequest) -> RuntimePart:
    """Return the layer of the base's C library."""

    def entries() -> Iterator[Entry]:
        for sources in _from_below(source):
            merge = Merge(sources)
            found = list(_files(merge, re.compile(_PATTERNS["libraries"])))
            if len(sources) >= len(source.base.layers):  # the base is not read again for these
                base_libraries(source.base, source.work.store, merge.kinds.keys() - merge.implied)
            if any(re.fullmatch(_PATTERNS["c_library"], entry.path) for entry in found):
                yield from found
                return
        raise LayerError(
            f"the base {source.base.reference} has no C library: its Python cannot start to compile modules",
            "name another base, or write in the recipe: bytecode: none",
        )

    key = cache_key([_FORMAT, "libraries", base_key(source.base)])
    return RuntimePart(key, entries, "C library")


def _base_python(source: BytecodeRequest, python: BasePython) -> RuntimePart:
    """Return the layer of a base's own Python."""
    root = re.escape(str(PurePosixPath(python.interpreter).parent.parent).strip("/"))
    wanted = re.compile(
        rf"{_PATTERNS['libraries']}|{root}/(bin/python3[^/]*|lib/[^/]*\.so[^/]*"
        rf"|lib/python{re.escape(python.minor)}t?/(?!{_PATTERNS['not_needed']}).*)"
    )

    def entries() -> Iterator[Entry]:
        *_, whole = _from_below(source)
        yield from _files(Merge(whole), wanted)

    key = cache_key([_FORMAT, "python", base_key(source.base), python.interpreter])
    return RuntimePart(key, entries, f"python {python.version}")


def _from_below(source: BytecodeRequest) -> Iterator[list[Source]]:
    """Yield the base's lowest layer, its two lowest ones, and so on; all partitions of a SIF."""
    sources = downloading_sources(source.base, source.work)
    for number in range(len(sources) if source.base.sif else 1, len(sources) + 1):
        yield sources[:number]


def _files(merge: Merge, wanted: re.Pattern[str]) -> Iterator[Entry]:
    """Yield empty folders, and the files and links of a tree whose paths match; hard links last."""
    for folder in (*_MOUNT_POINTS, JOB_FOLDER.strip("/")):
        yield Entry(folder, "dir", 0o755)
    matching = (_entry(*item) for item in merge if wanted.fullmatch(item[0].path))
    # a layer may have a path again: the last one counts
    found = {entry.path: entry for entry in matching if entry is not None}
    files = {entry.path for entry in found.values() if entry.kind == "file"}
    for entry in sorted(found.values(), key=lambda entry: entry.kind == "hardlink"):
        if entry.kind != "hardlink" or entry.target in files:
            yield entry


def _entry(member: Member, content: Content) -> Entry | None:
    """Return a file or link of a tree; None for anything else, and for a file that is too large."""
    if member.kind is Kind.SYMLINK:
        return Entry(member.path, "symlink", 0o777, target=member.target)
    if member.kind is Kind.HARDLINK:
        return Entry(member.path, "hardlink", target=member.target)
    if member.kind is not Kind.FILE or member.size > _MAX_SIZE:
        return None
    return Entry.of(member.path, b"".join(map(bytes, content)), member.mode & 0o755)
