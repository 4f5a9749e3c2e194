"""Compiles the modules of packages, each package once.

Modules are compiled by the Python of the image itself, in a container without network: another Python of the
same minor version writes other bytes for some modules (16 of 4,793 between 3.11.2 and 3.11.7). Nothing of a
package is imported or run.

A record in the cache names the blob with the compiled modules of a package. Its key holds the archives of the
package and of the Python, and the path of the environment, which is in the modules for tracebacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.bytecode.inputs import BytecodeRequest, compiler_key, modules_of
from builder.bytecode.job import MAX_SOURCE, CompileJob, Share, source_of
from builder.bytecode.runtime import make_runtime
from builder.layers.cache import cache_key
from builder.model import LockedPackage
from builder.parallel import in_parallel
from builder.progress import working
from builder.store.leftovers import temporary_folder
from builder.store.records import read_record, write_record


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """A compiled module. Paths are relative to the image's root, as in :mod:`builder.layers.entry`."""

    source: str
    """The module: ``opt/conda/lib/python3.11/site-packages/six.py``."""
    pyc: str
    """What Python reads in its place: ``.../site-packages/__pycache__/six.cpython-311.pyc``."""
    offset: int
    """Where its bytes begin in :attr:`PackageBytecode.blob`."""
    size: int
    """In bytes."""
    sha256: str
    """Of its bytes: 64 lower-case hex digits."""


@dataclass(frozen=True, slots=True)
class PackageBytecode:
    """All modules of a package that can be compiled, in the order of :attr:`CompiledFile.pyc`."""

    files: tuple[CompiledFile, ...]
    blob: Path
    """One file that holds the bytes of all of them; content was verified when it was read from the cache."""


def compile_packages(request: BytecodeRequest, chosen: Sequence[LockedPackage]) -> dict[str, PackageBytecode]:
    """Return the compiled modules by package key; compile those that the cache lacks.

    Like pip, it leaves out those that do not compile.

    Raises:
        LayerError: a package is damaged, or Python did not survive its modules.
        RunnerError: no runner works on this host.
        ImageError, RegistryError: the base is damaged or not available.
        SpaceError: the disk is full.
    """
    found = {package.key: _known(request, package) for package in chosen}
    missing = [package for package in chosen if found[package.key] is None]
    if missing:
        _compile(request, missing)
        found |= {package.key: _known(request, package) for package in missing}
    return {key: bytecode or PackageBytecode((), Path()) for key, bytecode in found.items()}


def _compile(request: BytecodeRequest, missing: Sequence[LockedPackage]) -> None:
    """Compile packages in one container, and record the results."""
    settings, reporter = request.settings, request.reporter
    with temporary_folder(settings.tmpdir, 0o755) as folder, working(reporter, "compiling modules"):
        job = CompileJob(folder)
        runtime = make_runtime(request)

        def write(package: LockedPackage) -> list[Share]:
            return job.write(package, _sources(request, package))

        shares = in_parallel(write, missing, settings.jobs)
        tag = job.run(runtime, settings, request.store, reporter)
        for package, written in shares:
            pycs = {path: pyc for share in written for path, pyc in job.result(share).items()}
            _record(request, package, tag, pycs)


def _sources(request: BytecodeRequest, package: LockedPackage) -> Iterator[tuple[str, bytes]]:
    """Yield the image paths of a package's modules, and their content."""
    modules = modules_of(request.packages, package)
    paths = frozenset(entry.path for entry in request.packages.indexes[package.key].entries)
    sources: dict[str, bytes] = {}  # of a conda package, in which later paths may be hard links
    for entry in request.packages.entries(package, paths - modules.keys()):
        if entry.path not in modules or entry.size > MAX_SOURCE:
            continue
        if entry.kind == "hardlink":
            source = sources.get(entry.target)  # None: it is too large
        else:  # a symlink, which the index of a conda package may list as a file, has no source
            source = source_of(entry) if entry.kind == "file" else None
        if source is None:
            continue
        if package.manager == "conda":
            sources[entry.path] = source
        yield entry.path, source


# the cache


def _record_path(request: BytecodeRequest, package: LockedPackage) -> Path:
    packages = request.packages
    context = packages.context
    key = cache_key(
        [
            *compiler_key(packages, request.base),
            [package.key, package.url, context.prefix, context.site_packages],
            sorted(modules_of(packages, package)),
        ]
    )
    return request.store.folders.bytecode / f"{key}.json"


def _record(request: BytecodeRequest, package: LockedPackage, tag: str, pycs: Mapping[str, bytes]) -> None:
    """Stores the compiled modules of a package. An empty one did not compile."""
    files = []
    with request.store.writer() as blob:
        for path in sorted(pycs):
            pyc = pycs[path]
            if pyc:
                blob.write(pyc)
                files.append([path, len(pyc), hashlib.sha256(pyc).hexdigest()])
        digest, size = blob.commit()
    write_record(_record_path(request, package), {"tag": tag, "digest": digest, "size": size, "files": files})


def _known(request: BytecodeRequest, package: LockedPackage) -> PackageBytecode | None:
    """The compiled modules in the cache; None if they are not there."""
    data = read_record(_record_path(request, package))
    blob = None if data is None else request.store.get(data["digest"], data["size"])
    if blob is None:
        return None
    files = []
    offset = 0
    for source, size, sha256 in data["files"]:
        folder, _, name = source.rpartition("/")
        pyc = f"{folder}/__pycache__/{name.removesuffix('.py')}.{data['tag']}.pyc"
        files.append(CompiledFile(source, pyc, offset, size, sha256))
        offset += size
    return PackageBytecode(tuple(files), blob)
