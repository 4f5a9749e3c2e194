"""One run of the compiler in a container, and the folder that it shares with builder."""

from __future__ import annotations

import json
import re
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.bytecode import worker
from builder.bytecode.runtime import JOB_FOLDER, Runtime
from builder.errors import LayerError, RunnerError
from builder.layers.entry import Entry, Inline, Range
from builder.model import LockedPackage
from builder.progress import Reporter
from builder.run.process import tail
from builder.run.select import find_runner
from builder.run.task import Task, run_task
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import read_foreign
from builder.text import visible

#: Modules, and bytes of source, from which on a file of the job is complete.
_MODULES = 200
_SOURCE = 4 << 20
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


@dataclass(frozen=True, slots=True)
class Share:
    """The modules of one file of the job."""

    package: LockedPackage
    file: Path
    """Without suffix."""
    paths: tuple[str, ...]


class CompileJob:
    """A folder of modules to compile: write the modules of each package, run the job, read the results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shares: list[Share] = []
        self._lock = threading.Lock()

    def write(self, package: LockedPackage, modules: Iterable[tuple[str, bytes]]) -> list[Share]:
        """Adds modules of a package: image paths and sources. Safe in any thread."""
        shares: list[Share] = []
        paths: list[str] = []
        data: list[bytes] = []
        size = 0
        for path, source in modules:
            name = f"/{path}".encode(errors="surrogateescape")
            data += [worker.LENGTHS.pack(len(name), len(source)), name, source]
            paths.append(path)
            size += len(source)
            if len(paths) == _MODULES or size >= _SOURCE:
                shares.append(self._share(package, paths, data))
                paths, data, size = [], [], 0
        if paths:
            shares.append(self._share(package, paths, data))
        return shares

    def _share(self, package: LockedPackage, paths: Sequence[str], data: Sequence[bytes]) -> Share:
        with self._lock:
            share = Share(package, self.folder / f"{len(self._shares):06}", tuple(paths))
            self._shares.append(share)
        share.file.with_suffix(".src").write_bytes(b"".join(data))
        return share

    def run(self, runtime: Runtime, settings: Settings, store: Store, reporter: Reporter) -> str:
        """Compile all modules; return the tag of the Python, ``cpython-311``.

        Raises:
            LayerError: the Python does not start, or did not survive a package.
            RunnerError: no runner works on this host.
        """
        (self.folder / "worker.py").write_bytes(Path(worker.__file__).read_bytes())
        program = [runtime.python, "-s", "-S", "-B", "-W", "ignore", f"{JOB_FOLDER}/worker.py"]
        command = [*program, JOB_FOLDER, str(settings.jobs)]
        task = Task(command, self.folder, JOB_FOLDER, env=_ENV, timeout_s=_LIMIT_S)
        try:
            done = run_task(task, runtime.image, find_runner(settings, store, reporter=reporter))
        except RunnerError as e:
            hint = f"{e.hint}; or {HINT}" if e.hint else HINT
            raise RunnerError(f"modules are compiled in a container: {e.message}", hint) from None
        if done.returncode:
            raise self._failure(tail(visible(done.stderr).splitlines(), _SHOWN_LINES), done.timed_out)
        return self._tag()

    def result(self, share: Share) -> dict[str, bytes]:
        """Returns the compiled modules of a share by path; empty ones do not compile.

        Raises:
            LayerError: the container left something else.
        """
        data = read_foreign(share.file.with_suffix(".pyc"), _MAX_PYC)
        try:
            return dict(zip(share.paths, _pycs(data, len(share.paths)), strict=True))
        except (ValueError, struct.error):
            raise LayerError(
                f"{share.package.filename}: compiling its modules left a damaged file", HINT
            ) from None

    def _failure(self, lines: str, timed_out: bool) -> LayerError:
        left = [share for share in self._shares if share.file.with_suffix(".taken").exists()]
        names = ", ".join(sorted({share.package.filename for share in left}))
        if timed_out:
            return LayerError(f"{names}: its modules were not compiled after {_LIMIT_S // 3600} hours", HINT)
        if names:
            return LayerError(f"{names}: Python ended while it compiled the modules:\n{lines}", HINT)
        return LayerError(f"the image's Python does not start, to compile modules:\n{lines}", HINT)

    def _tag(self) -> str:
        try:
            tag = json.loads(read_foreign(self.folder / "python.json", 4096))["tag"]
            if _TAG.fullmatch(tag):
                return str(tag)
        except (ValueError, TypeError, KeyError):
            pass
        raise LayerError("the image's Python names no tag for its compiled modules", HINT)


def source_of(entry: Entry) -> bytes:
    """Returns the content of an entry.

    Raises:
        LayerError: the archive is damaged.
    """
    content = entry.content
    if content is None:
        return b""
    if isinstance(content, Inline):
        return content.data
    with content.source.open("rb") as file:
        file.seek(content.offset)
        if isinstance(content, Range):
            data = file.read(entry.size)
        else:
            data = _inflated(file.read(content.compressed), entry.size)
    crc = content.crc32
    if len(data) != entry.size or (crc is not None and zlib.crc32(data) != crc):
        raise LayerError(f"/{entry.path}: the archive is damaged", "fetch it again: builder cache verify")
    return data


def _inflated(data: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(data, size + 1)
    except zlib.error:
        return b""


def _pycs(data: bytes, count: int) -> Iterator[bytes]:
    """The compiled modules of a file. Raises ValueError or struct.error if it holds something else."""
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
