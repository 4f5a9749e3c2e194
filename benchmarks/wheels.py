"""The wheels that bench_publish installs: their versions, their download, and a server for them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_REQUIREMENTS = Path(__file__).with_name("wheels.txt")
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
#: The small package that is updated: from the version in wheels.txt to this one.
UPDATED = "prettytable==3.17.0"
#: The packages of a short run.
_QUICK = ("markupsafe", "prettytable", "pyyaml", "six", "wcwidth")


def requirements(*, quick: bool = False) -> list[str]:
    """The exact versions in wheels.txt; of a short run a few small packages."""
    lines = [line for line in _REQUIREMENTS.read_text().split("\n") if line and not line.startswith("#")]
    if quick:
        return [line for line in lines if line.partition("==")[0] in _QUICK]
    return lines


def with_update(wanted: Sequence[str]) -> list[str]:
    """The same requirements with another version of the small package."""
    name = UPDATED.partition("==")[0]
    return [UPDATED if line.startswith(f"{name}==") else line for line in wanted]


def fetch_wheels(folder: Path, wanted: Sequence[str]) -> None:
    """Downloads the wheels that are missing in a folder, including the one of the update."""
    folder.mkdir(parents=True, exist_ok=True)
    present = {_requirement(wheel) for wheel in folder.glob("*.whl")}
    missing = [line for line in wanted if line not in present]
    torch = [line for line in missing if line.startswith("torch==")]
    others = [line for line in missing if line not in torch]
    if missing:
        print(f"bench: downloading {len(missing)} wheels into {folder}", file=sys.stderr, flush=True)
    if others:
        _download(folder, others)
    if UPDATED not in present:
        _download(folder, [UPDATED])  # its own command: pip refuses two versions of a package at once
    if torch:
        try:
            _download(folder, torch)
        except subprocess.CalledProcessError:  # pip's configured index has no version with +cpu
            _download(folder, torch, "--index-url", _TORCH_INDEX)


def _download(folder: Path, wanted: Sequence[str], *options: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", str(folder), *options, *wanted], check=True)


def _requirement(wheel: Path) -> str:
    """``NAME==VERSION`` of a wheel, as wheels.txt spells it."""
    name, version, *_ = wheel.name.split("-")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder over HTTP, so that RUN can install the wheels without copying them into the image."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
