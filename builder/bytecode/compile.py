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
from functools import cached_property
from pathlib import Path

from builder.bases.image import BaseImage
from builder.bytecode.compiled import CompiledFile, PackageBytecode
from builder.bytecode.inputs import compiler_key, modules_in
from builder.bytecode.job import MAX_SOURCE, Share, compile_job, source_of
from builder.bytecode.runtime import RuntimeSource, make_runtime
from builder.config.recipe import Recipe
from builder.layers.cache import cache_key
from builder.layers.packages import Packages
from builder.model import LockedPackage
from builder.parallel import in_parallel
from builder.progress import QUIET, Reporter, working
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import write_record


@dataclass(frozen=True)
class CompileRequest:
    """What is compiled, and with what."""

    packages: Packages
    """All packages of the build; one of them is Python."""
    chosen: tuple[LockedPackage, ...]
    """Those to compile."""
    base: BaseImage
    """Its C library, or its Python, runs the compiler."""
    recipe: Recipe
    settings: Settings
    store: Store
    reporter: Reporter = QUIET

    @cached_property
    def compiler(self) -> list[str | int]:
        """The part of the cache keys that all packages share."""
        return compiler_key(self.packages, self.base)


def compile_packages(request: CompileRequest) -> dict[str, PackageBytecode]:
    """Returns the compiled modules by package key; compiles those that the cache lacks.

    Modules are the files ``*.py`` in the environment's ``lib/pythonX.Y/``. Like pip, it leaves out those that
    do not compile.

    Raises:
        LayerError: a package is damaged, or Python did not survive its modules.
        RunnerError: no runner works on this host.
        ImageError, RegistryError: the base is damaged or not available.
        SpaceError: the disk is full.
    """
    found: dict[str, PackageBytecode] = {}
    missing = []
    request.store.prefetch([_record_path(request, package) for package in request.chosen])
    for package in request.chosen:
        known = _known(request, package) if _modules(request, package) else PackageBytecode((), Path())
        if known is None:
            missing.append(package)
        else:
            found[package.key] = known
    if missing:
        found |= _compile(request, missing)
    return {package.key: found.get(package.key, PackageBytecode((), Path())) for package in request.chosen}


def _modules(request: CompileRequest, package: LockedPackage) -> frozenset[str]:
    """The paths of a package's modules."""
    return frozenset(modules_in(request.packages.index(package), request.packages.context))


def _compile(request: CompileRequest, missing: Sequence[LockedPackage]) -> dict[str, PackageBytecode]:
    """Compiles packages in one container, and records the results."""
    settings, store, reporter = request.settings, request.store, request.reporter
    architecture = request.recipe.architecture
    source = RuntimeSource(request.packages, request.base, architecture, settings, store, reporter)
    with compile_job(settings) as job, working(reporter, "compiling modules"):
        runtime = make_runtime(source)
        request.packages.require(missing)

        def write(package: LockedPackage) -> list[Share]:
            return job.write(package, _sources(request, package))

        shares = in_parallel(write, missing, settings.jobs)
        tag = job.run(runtime, settings, store, reporter)
        found = {}
        for package, written in shares:
            pycs = {path: pyc for share in written for path, pyc in job.result(share).items()}
            _record(request, package, tag, pycs)
            found[package.key] = _known(request, package)
    return {key: bytecode for key, bytecode in found.items() if bytecode is not None}


def _sources(request: CompileRequest, package: LockedPackage) -> Iterator[tuple[str, bytes]]:
    """The image paths of a package's modules, and their content."""
    modules = _modules(request, package)
    paths = {entry.path for entry in request.packages.index(package).entries}
    sources: dict[str, bytes] = {}  # of a conda package, in which later paths may be hard links
    for entry in request.packages.entries(package, frozenset(paths - modules)):
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


def _record_path(request: CompileRequest, package: LockedPackage) -> Path:
    context = request.packages.context
    key = cache_key([*request.compiler, package.key, package.url, context.prefix, context.site_packages])
    return request.store.folders.bytecode / f"{key}.json"


def _record(request: CompileRequest, package: LockedPackage, tag: str, pycs: Mapping[str, bytes]) -> None:
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


def _known(request: CompileRequest, package: LockedPackage) -> PackageBytecode | None:
    """The compiled modules in the cache; None if they are not there."""
    data = request.store.recall(_record_path(request, package))
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
