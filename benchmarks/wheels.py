"""Real wheels: their versions, their download, and a server for them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.measure import CommandFailed

_HERE = Path(__file__).parent
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
#: What PyPI answers about wheels: pip and uv do not ask again for one that they have.
_CACHED = "max-age=365000000, immutable, public"
_CHUNK = 1 << 20
#: The small package that is updated: from the version in the lists to this one.
UPDATED = "prettytable==3.17.0"
_SMALL = (
    "click",
    "idna",
    "jinja2",
    "markupsafe",
    "packaging",
    "prettytable",
    "pyyaml",
    "six",
    "tqdm",
    "wcwidth",
)


def requirements(name: str) -> tuple[str, ...]:
    """The exact versions of a workload: ``small`` (ten of torch's), ``torch`` or ``cuda``."""
    file = _HERE / ("wheels-cuda.txt" if name == "cuda" else "wheels.txt")
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    if name == "small":
        return tuple(line for line in lines if line.partition("==")[0] in _SMALL)
    return tuple(lines)


def with_update(wanted: Sequence[str]) -> tuple[str, ...]:
    """The same requirements with another version of the small package."""
    name = UPDATED.partition("==")[0]
    return tuple(UPDATED if line.startswith(f"{name}==") else line for line in wanted)


def fetch_wheels(folder: Path, wanted: Sequence[str]) -> None:
    """Downloads the wheels that are missing in a folder.

    Raises:
        CommandFailed: pip cannot download them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    present = {requirement_of(wheel) for wheel in folder.glob("*.whl")}
    missing = [line for line in wanted if line not in present]
    if missing:
        print(
            f"bench: downloading {len(missing)} wheels into {folder}", file=sys.stderr, flush=True
        )
    for batch in batches(missing):
        try:
            _download(folder, batch)
        except CommandFailed:
            if not any("+cpu" in line for line in batch):
                raise
            _download(
                folder, batch, "--index-url", _TORCH_INDEX
            )  # pip's own indexes have none with +cpu


def batches(wanted: Sequence[str]) -> list[list[str]]:
    """Requirements for one ``pip download`` each: pip refuses two versions of a package at once.

    torch for CPU is alone, because it may come from another index.
    """
    out: list[list[str]] = []
    for line in wanted:
        name = line.partition("==")[0]
        free = (
            b
            for b in out
            if not any(o.partition("==")[0] == name for o in b) and "+cpu" not in b[0]
        )
        batch = None if "+cpu" in line else next(free, None)
        if batch is None:
            out.append([line])
        else:
            batch.append(line)
    return out


def _download(folder: Path, wanted: Sequence[str], *options: str) -> None:
    # "===": pip takes 2.13.0+cpu for ==2.13.0 where its find-links has it.
    exact = [line.replace("==", "===") for line in wanted]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*pip, "--dest", str(folder), *options, *exact], capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")][-5:]
        raise CommandFailed("\n".join([f"pip cannot download {', '.join(wanted[:3])} ...", *tail]))


def requirement_of(wheel: Path) -> str:
    """``NAME==VERSION`` of a wheel, as the lists spell it."""
    name, version, *_ = wheel.name.split("-")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


class FileServer(ThreadingHTTPServer):
    """Serves a folder on loopback over HTTP, and counts the bytes of files and listings that it sends."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.counts: list[int] = []

    def sent(self) -> int:
        """Return the bytes that it has sent so far."""
        return sum(self.counts)


class _Handler(SimpleHTTPRequestHandler):
    """Files of a folder. It answers ranges, with which uv reads the metadata of a wheel."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        with contextlib.suppress(ConnectionError):
            if found is None or found.group() == "bytes=-" or not path.is_file():
                super().do_GET()
                return
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                start, end = byte_range(found[1], found[2], size)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
                self.send_header("Content-Length", str(end - start + 1))
                self.end_headers()
                file.seek(start)
                self._send(file, end - start + 1)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a whole file; the base class calls it."""
        self._send(source, None)

    def _send(self, file: Any, count: int | None) -> None:
        """Send the rest of a file, or that many bytes of it."""
        assert isinstance(self.server, FileServer)
        while chunk := file.read(_CHUNK if count is None else min(count, _CHUNK)):
            self.server.counts.append(len(chunk))  # before the client has it, and asks for the sum
            self.wfile.write(chunk)
            if count is not None:
                count -= len(chunk)

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        if self.path.endswith(".whl"):
            self.send_header("Cache-Control", _CACHED)
        super().end_headers()


def byte_range(first: str, last: str, size: int) -> tuple[int, int]:
    """The first and the last byte of a Range header's two numbers, of which one may be empty."""
    if not first:
        return max(size - int(last), 0), size - 1
    return int(first), min(int(last or size), size - 1)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[FileServer]:
    """Serve a folder over HTTP: wheels for builder and its rivals, or a conda channel."""
    server = FileServer(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
