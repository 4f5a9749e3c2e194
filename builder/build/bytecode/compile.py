"""Compiles the modules of packages, each package once.

Modules are compiled by the Python of the image itself, in a container without network: another
Python of the same minor version writes other bytes for some modules (16 of 4,793 between 3.11.2 and
3.11.7). Nothing of a package is imported or run.

A record in the cache names the blob with the compiled modules of a package. Its key holds the
archives of the package and of the Python, and the path of the environment, which is in the modules
for tracebacks.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from builder.build.bases.registry import fetch_layer
from builder.build.bytecode import worker
from builder.build.run.base import Mount, RunOptions
from builder.build.run.process import tail
from builder.build.run.select import find_runner
from builder.build.run.task import run_in_folder
from builder.core.errors import LayerError, RunnerError
from builder.core.model import Image, Layer, LockedPackage
from builder.core.parallel import in_parallel
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.store.reading import read_foreign
from builder.core.store.temporary import temporary_folder
from builder.core.text import visible
from builder.formats.layers.cache import recorded_layer
from builder.formats.layers.content import read_whole
from builder.formats.layers.entry import Entry, Range
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import layer_source

from .inputs import BytecodeRequest, RecordedModules, modules_of, modules_record
from .runtime import JOB_FOLDER, make_runtime

log = logging.getLogger(__name__)

#: Bytes of sources from which on a file of the job is complete.
_SOURCE = 1 << 20
#: Bytes of a module's source. No larger module is compiled.
MAX_SOURCE = 16 << 20
#: Bytes of a .pyc: a source of n bytes compiles to less than 20 n, but for constructed ones.
_MAX_PYC = 256 << 20
#: Seconds for all modules: 60,000 modules of an emulated processor take about an hour.
_LIMIT_S = 4 * 3600
_SHOWN_LINES = 10
_ENV = {
    "PYTHONHASHSEED": "0",
    # x ** 0.5 is computed by the C library, whose last bit may depend on the processor
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX2_Usable,-FMA_Usable,-FMA4_Usable",
}
_TAG = re.compile(r"[a-z0-9][A-Za-z0-9._-]{0,40}")
HINT = "write in the recipe: bytecode: none"


#: The compiled modules of a package, in the order of paths: the image path of the module, and the
#: entry of what Python reads in its place, ``.../site-packages/__pycache__/six.cpython-311.pyc``.
Bytecode = Sequence[tuple[str, Entry]]


def compile_packages(
    request: BytecodeRequest, chosen: Sequence[LockedPackage]
) -> dict[str, Bytecode]:
    """Return the compiled modules by package key; compile those that are not in the cache.

    Like pip, it leaves out those that do not compile.

    Raises:
        LayerError: a package is damaged, or Python did not survive its modules.
        RunnerError: no runner works on this host.
        ImageError, RegistryError: the base is damaged or not available.
        SpaceError: the disk is full.
    """
    found = {package.key: _known(request, package) for package in chosen}
    ways = (_reuse, _compile) if request.work.store.reuse else (_compile,)
    for make in ways:
        missing = [package for package in chosen if found[package.key] is None]
        if missing:
            make(request, missing)
            found |= {package.key: _known(request, package) for package in missing}
    return {key: bytecode or () for key, bytecode in found.items()}


def _compile(request: BytecodeRequest, missing: Sequence[LockedPackage]) -> None:
    """Compile packages in one container, and record the results."""
    log.info("compiling the modules of %d packages", len(missing))
    request.packages.fetch(missing)
    settings, reporter = request.work.settings, request.work.reporter
    with temporary_folder(settings.tmpdir, 0o755) as folder, working(reporter, "compiling modules"):
        job = CompileJob(folder)
        image, python = make_runtime(request)

        def write(package: LockedPackage) -> list[Share]:
            return job.write(package, _sources(request, package))

        shares = in_parallel(write, missing, settings.jobs)
        tag = job.run(image, python, request)
        for package, written in shares:
            pycs = (pyc for share in written for pyc in job.result(share).items())
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
            source = read_whole(entry) if entry.kind == "file" else None
        if source is None:
            continue
        if package.manager == "conda":
            sources[entry.path] = source
        yield entry.path, source


# the cache ----------------------------------------------------------------------------------------


def _record(
    request: BytecodeRequest, package: LockedPackage, tag: str, pycs: Iterable[tuple[str, bytes]]
) -> None:
    """Store the compiled modules of a package as they come. An empty one did not compile."""
    files, offset = [], 0
    with request.work.store.writer() as blob:
        for path, pyc in pycs:
            if pyc:
                blob.write(pyc)
                files.append((path, offset, len(pyc), hashlib.sha256(pyc).hexdigest()))
                offset += len(pyc)
        digest, size = blob.commit()
    modules_record(request, package).write(RecordedModules(tag, digest, size, sorted(files)))


def _known(request: BytecodeRequest, package: LockedPackage) -> Bytecode | None:
    """Return the compiled modules in the cache; None if they are not there."""
    known = modules_record(request, package).read()
    blob = None if known is None else request.work.store.get(known.digest, known.size)
    if known is None or blob is None:
        return None
    found = []
    for source, offset, size, sha256 in known.files:
        content = Range(blob, offset, sha256=sha256)
        path = _pyc_path(source, known.tag)
        found.append((source, Entry(path, "file", 0o644, size, content=content)))
    return found


def _pyc_path(source: str, tag: str) -> str:
    folder, _, name = source.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc"


def _reuse(request: BytecodeRequest, missing: Sequence[LockedPackage]) -> None:
    """Take compiled modules from layers of the image that is reused.

    A package that has not changed may be in a group with one that has: without its archive, which
    may be large, the old layer of the group has its modules.
    """
    store = request.work.store
    assert store.reuse is not None
    records = [(p.name, modules_record(request, p).read()) for p in missing]
    for name, data in store.reuse.records.items():
        if not name.startswith("layers/bytecode-"):
            continue
        known = [found for package, found in records if found and package in data["packages"]]
        layer = recorded_layer(data, store) if known else None
        if layer is not None:
            _take(known, fetch_layer(layer, request.work), store)


def _take(records: Sequence[RecordedModules], layer: Layer, store: Store) -> None:
    """Store the compiled modules that records name and a layer has."""
    pycs: dict[str, bytes] = {}
    for member, content in Merge([layer_source(layer, store)]):
        if member.path.endswith(".pyc"):
            pycs[member.path] = b"".join(map(bytes, content))
    for record in records:
        files = sorted(record.files, key=itemgetter(1))  # by offset
        paths = [_pyc_path(source, record.tag) for source, *_ in files]
        if pycs.keys() >= set(paths):
            store.add(b"".join(map(pycs.__getitem__, paths)))


# one run of the compiler in a container, and the folder that it shares with builder ---------------


@dataclass(frozen=True, slots=True)
class Share:
    """The modules of one file of the job."""

    package: LockedPackage
    file: Path
    """Without suffix."""
    paths: tuple[str, ...]


class CompileJob:
    """A folder of modules to compile: write them, run the job, read the results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shares: list[Share] = []
        self._numbers = itertools.count()

    def write(self, package: LockedPackage, modules: Iterable[tuple[str, bytes]]) -> list[Share]:
        """Add modules of a package: image paths and sources. Safe in any thread."""
        shares: list[Share] = []
        paths: list[str] = []
        data = bytearray()
        for path, source in modules:
            name = f"/{path}".encode(errors="surrogateescape")
            data += worker.LENGTHS.pack(len(name), len(source)) + name + source
            paths.append(path)
            if len(data) >= _SOURCE:
                shares.append(self._share(package, paths, data))
                paths, data = [], bytearray()
        if paths:
            shares.append(self._share(package, paths, data))
        return shares

    def _share(self, package: LockedPackage, paths: Sequence[str], data: bytearray) -> Share:
        share = Share(package, self.folder / f"{next(self._numbers):06}", tuple(paths))
        self._shares.append(share)
        share.file.with_suffix(".src").write_bytes(data)
        return share

    def run(self, image: Image, python: str, request: BytecodeRequest) -> str:
        """Compile all modules; return the tag of the Python, ``cpython-311``.

        Raises:
            LayerError: the Python does not start, or did not survive a package.
            RunnerError: no runner works on this host.
        """
        (self.folder / "worker.py").write_bytes(Path(worker.__file__).read_bytes())
        program = [python, "-s", "-S", "-B", "-W", "ignore", f"{JOB_FOLDER}/worker.py"]
        command = [*program, JOB_FOLDER, str(request.work.settings.jobs)]
        mounts = [Mount(self.folder, JOB_FOLDER, readonly=False)]
        options = RunOptions(env=_ENV, mounts=mounts, timeout_s=_LIMIT_S)
        try:
            runner = find_runner(request.work)
            done = run_in_folder(runner, image, command, options)
        except RunnerError as e:
            hint = f"{e.hint}; or {HINT}" if e.hint else HINT
            raise RunnerError(f"modules are compiled in a container: {e.message}", hint) from None
        if done.returncode:
            lines = tail(visible(done.stderr).splitlines(), _SHOWN_LINES)
            raise self._failure(lines, done.timed_out)
        return self._tag()

    def result(self, share: Share) -> dict[str, bytes]:
        """Return the compiled modules of a share by path; empty ones do not compile.

        Raises:
            LayerError: the container left something else.
        """
        data = read_foreign(share.file.with_suffix(".pyc"), _MAX_PYC)
        try:
            return dict(zip(share.paths, _pycs(data, len(share.paths)), strict=True))
        except (ValueError, struct.error):
            what = f"{share.package.filename}: compiling its modules left a damaged file"
            raise LayerError(what, HINT) from None

    def _failure(self, lines: str, timed_out: bool) -> LayerError:
        left = [share for share in self._shares if share.file.with_suffix(".taken").exists()]
        names = ", ".join(sorted({share.package.filename for share in left}))
        if timed_out:
            what = f"{names}: its modules were not compiled after {_LIMIT_S // 3600} hours"
        elif names:
            what = f"{names}: Python ended while it compiled the modules:\n{lines}"
        else:
            what = f"the image's Python does not start, to compile modules:\n{lines}"
        return LayerError(what, HINT)

    def _tag(self) -> str:
        with suppress(ValueError, TypeError, KeyError):
            tag = json.loads(read_foreign(self.folder / "python.json", 4096))["tag"]
            if _TAG.fullmatch(tag):
                return str(tag)
        raise LayerError("the image's Python names no tag for its compiled modules", HINT)


def _pycs(data: bytes, count: int) -> Iterator[bytes]:
    """Yield the compiled modules of a file. Raises ValueError or struct.error for others."""
    at = 0
    for _ in range(count):
        (size,) = worker.LENGTH.unpack_from(data, at)
        at += worker.LENGTH.size
        pyc = data[at : at + size]
        if len(pyc) != size or (pyc and pyc[4:8] != worker.UNCHECKED):
            raise ValueError
        yield pyc
        at += size
    if at != len(data):
        raise ValueError
