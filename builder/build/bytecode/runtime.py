"""The image that modules are compiled in: the target's Python and a C library, a few MB.

The standard library of a Python decides nothing of what it compiles to, so the image holds the
least that the Python starts with, and not the environment: its program, its standard library, and
the shared libraries that the ELF files of both need. Libraries of the base are taken by name from
any folder, because each Python and loader has its own search path. For a conda package's Python the
base's lowest layers are read up to the one that has its C library, so a base of 20 GB costs the
download of one layer.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Set
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
from builder.formats.layers.content import read_whole
from builder.formats.layers.elf import Needed, needed_by
from builder.formats.layers.entry import Entry
from builder.formats.layers.libraries import Libraries, is_library, recorded_libraries, with_needed
from builder.formats.oci.image import config_environment, image_of
from builder.formats.trees.member import Content, Kind, Member, ancestors, real_path
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source

from .inputs import BytecodeRequest, base_key, python_package, python_packages

#: Where the job's folder is in a container of the image.
JOB_FOLDER = "/run/builder-compile"
#: Part of the keys of records. Increase it when an image has other files.
_FORMAT = 4
#: What tells the loader of glibc or musl where libraries are.
_LOADER_FILES = r"etc/ld(\.so\.cache|-musl-[^/]*\.path)"
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
    env = config_environment(source.base.config)
    env = {name: value for name, value in env.items() if name == "LD_LIBRARY_PATH"}
    return image_of(layers, env, architecture=source.recipe.architecture, target=target), python


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
        return [_base_part(source, base_python.interpreter, f"python {base_python.version}")]
    return [_base_part(source, "", "C library"), _conda_python(source, package)]


def _python(source: BytecodeRequest) -> tuple[LockedPackage, BasePython | None]:
    """Return the package of the environment's Python, and the base's Python if it is that one."""
    package = python_package(source.packages)
    if package is None:
        hint = "add python to the environment, or write in the recipe: bytecode: none"
        raise LayerError("no Python in the environment: its modules cannot be compiled", hint)
    return package, base_python_of(package.url)


def _python_files(interpreter: str) -> re.Pattern[str]:
    """Return what matches the paths of a Python's programs and standard library."""
    program = PurePosixPath(interpreter)
    root, name = (re.escape(str(path).strip("/")) for path in (program.parent.parent, program.name))
    left_out = table(__file__, "runtime.yaml")["not_needed"]
    return re.compile(rf"{root}/(bin/python3[^/]*|lib(64)?/{name}t?/(?!{left_out}).*)")


def _conda_libraries(source: BytecodeRequest) -> Libraries:
    """Return what the files of Python's conda packages need, as it was found for their layers."""
    layers = (layer.descriptor.digest for layer in source.below)
    found = [recorded_libraries(digest, source.work.store) for digest in layers]
    indexes = (source.packages.indexes[p.key] for p in python_packages(source.packages))
    paths = {entry.path for index in indexes for entry in index.entries}
    return {path: names for one in found for path, names in one.items() if path in paths}


def _names(files: Libraries, python: re.Pattern[str]) -> set[str]:
    """Return the names of a Python's ELF files, and of all that they need."""
    return with_needed(files, {posixpath.basename(path) for path in files if python.match(path)})


def _conda_python(source: BytecodeRequest, python: LockedPackage) -> RuntimePart:
    """Return the layer of a conda package's Python, with the libraries that it needs."""
    needed = python_packages(source.packages)
    python_files = _python_files(source.packages.context.interpreter)

    def entries() -> Iterator[Entry]:
        names = _names(_conda_libraries(source), python_files)
        seen: set[str] = set()
        for package in reversed(needed):  # of two packages with one path the later one wins
            paths = {e.path for e in source.packages.indexes[package.key].entries}
            own = filter(python_files.fullmatch, paths) if package is python else ()
            wanted = {p for p in paths if posixpath.basename(p) in names}.union(own) - seen
            leave_out = frozenset(paths - wanted)
            for entry in source.packages.entries(package, leave_out) if wanted else ():
                if entry.kind != "dir" and entry.path in paths:
                    seen.add(entry.path)
                    yield entry

    return RuntimePart(_conda_key(source), entries, f"python {python.version}")


def _conda_key(source: BytecodeRequest) -> str:
    needed, context = python_packages(source.packages), source.packages.context
    return cache_key([_FORMAT, context.prefix, context.python, [(p.key, p.url) for p in needed]])


def _base_part(source: BytecodeRequest, interpreter: str, title: str) -> RuntimePart:
    """Return the layer of the base's files.

    Args:
        source: what is compiled.
        interpreter: of the base's Python; empty: a conda package's Python needs libraries.
        title: of the layer.
    """
    program = interpreter or source.packages.context.interpreter
    first, python = posixpath.basename(program), _python_files(program)
    wanted = re.compile(f"{_LOADER_FILES}|{python.pattern}" if interpreter else _LOADER_FILES)

    def entries() -> Iterator[Entry]:
        conda = {} if interpreter else _conda_libraries(source)
        below = [*_from_below(source)]
        missing = {"C library"}
        for sources in below[-1:] if interpreter else below:
            merge, links = Merge(sources), dict[str, str]()
            files = {**dict(_needs(merge, links)), **conda}
            if len(sources) >= len(source.base.layers):  # the base is not read again for these
                base_libraries(source.base, source.work.store, merge.kinds.keys() - merge.implied)
            missing = with_needed(files, {first}) - {first, *map(posixpath.basename, files)}
            if not missing:
                yield from _files(Merge(sources), wanted, _names(files, python), links)
                return
        raise LayerError(
            f"the base {source.base.reference} has no {', '.join(sorted(missing))}: "
            "its Python cannot start to compile modules",
            "name another base, or write in the recipe: bytecode: none",
        )

    own = [interpreter] if interpreter else ["libraries", _conda_key(source)]
    return RuntimePart(cache_key([_FORMAT, base_key(source.base), *own]), entries, title)


def _from_below(source: BytecodeRequest) -> Iterator[list[Source]]:
    """Yield the base's lowest layer, its two lowest ones, and so on; all partitions of a SIF."""
    sources = downloading_sources(source.base, source.work)
    for number in range(len(sources) if source.base.sif else 1, len(sources) + 1):
        yield sources[:number]


def _needs(merge: Merge, links: dict[str, str]) -> Iterator[tuple[str, Needed]]:
    """Yield the paths of a tree's ELF files and links, and the names that each needs.

    Args:
        merge: the tree.
        links: receives the targets of all symlinks, by path.
    """
    for member, content in merge:
        is_candidate = member.mode & 0o111 or is_library(member.path)
        if member.kind is Kind.SYMLINK:
            links[member.path] = member.target
        if member.target:
            yield member.path, (posixpath.basename(member.target),)
            continue
        entry = _entry(member, content) if is_candidate else None
        needed = needed_by(read_whole(entry)) if entry else None
        if needed is not None:
            yield member.path, needed


def _files(
    merge: Merge, wanted: re.Pattern[str], names: Set[str], links: Mapping[str, str]
) -> Iterator[Entry]:
    """Yield empty folders, and files and links of a tree; hard links last.

    Args:
        merge: the tree.
        wanted: matches their paths.
        names: their file names, in any folder.
        links: the targets of all symlinks; those to folders with such files are yielded, too.
    """
    for folder in (*_MOUNT_POINTS, JOB_FOLDER.strip("/")):
        yield Entry(folder, "dir", 0o755)
    # a layer may have a path again: the last one counts
    found = {
        member.path: entry
        for member, content in merge
        if wanted.fullmatch(member.path) or posixpath.basename(member.path) in names
        if (entry := _entry(member, content)) is not None
    }
    folders = {folder for path in found for folder in ancestors(path)}
    for path in sorted(links.keys() - found.keys() - {*_MOUNT_POINTS}):
        if real_path(path, links) in folders:
            found[path] = Entry(path, "symlink", 0o777, target=links[path])
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
