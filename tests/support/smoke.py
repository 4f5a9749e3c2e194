"""Running the benchmark in tests: as images carry it, changed on purpose, or one probe alone."""

from __future__ import annotations

import argparse
import atexit
import compileall
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from builder.bench.core import RankPosition, Run
from builder.bench.examine import perform
from builder.bench.options import parse
from builder.bench.probes import PROBES
from builder.build.image.files import smoke_program
from tests.support.fake_torch import fake_torch
from tests.support.schema import check_report

__all__ = [
    "Modified",
    "Result",
    "ask",
    "ask_run",
    "fake_torch",
    "make_run",
    "program",
    "run",
    "with_torch",
]


@functools.cache
def program() -> Path:
    """The file that images carry as /opt/builder/smoke.py, in a folder of its own."""
    folder = tempfile.mkdtemp(prefix="builder-smoke-program-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "smoke.py"
    path.write_bytes(smoke_program())
    return path


@functools.cache
def unpacked() -> Path:
    """The same program as a folder with compiled modules: Python starts it faster than the file."""
    folder = program().with_name("unpacked")
    with zipfile.ZipFile(program()) as archive:
        archive.extractall(folder)
    compileall.compile_dir(folder, quiet=1)
    return folder


class Result:
    """A finished run of the benchmark: its exit code, its report and its table."""

    def __init__(self, done: subprocess.CompletedProcess[str], *, valid: bool = True) -> None:
        """``valid``: check the report against the schema."""
        self.code, self.table = done.returncode, done.stderr
        # torch logs with a traceback what the death of a worker interrupts
        own = re.sub(r"(?m)^W\d{4} .*\n", "", done.stderr)
        assert "Traceback" not in own + done.stdout, done.stderr
        self.report = json.loads(done.stdout)
        if valid:
            check_report(self.report)
        self.verdict = self.report["verdict"]
        assert self.code == {"pass": 0, "warn": 0, "fail": 1, "error": 2}[self.verdict]

    def probe(self, name: str) -> Any:
        return next(p for p in self.report["probes"] if p["id"] == name)

    def measurement(self, name: str) -> Any:
        return next(m for m in self.report["measurements"] if m["id"] == name)

    @property
    def failed(self) -> set[str]:
        items = [*self.report["probes"], *self.report["measurements"]]
        return {i["id"] for i in items if i["status"] == "fail"}


def run(
    *options: str,
    python: Sequence[str] = (),
    env: dict[str, str] | None = None,
    start: Callable[[], None] | None = None,
    file: Path | None = None,
) -> Result:
    """Runs the benchmark.

    Args:
        options: of the benchmark.
        python: options of Python.
        env: further variables.
        start: called in the new process before Python starts.
        file: of the program, by default :func:`unpacked`.
    """
    outside = ("PYTHONPATH", "PYTHONHOME", "SSL_CERT", "COV_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(outside)}
    command = [sys.executable, *python, str(file or unpacked()), "--json", "-", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**clean, **(env or {})}, preexec_fn=start, timeout=300
    )
    return Result(done)


def with_torch(folder: Path, source: str) -> dict[str, str]:
    """An environment in which ``import torch`` runs this source."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(source)
    return {"PYTHONPATH": str(folder)}


@dataclass
class Modified:
    """The benchmark with changes: ``code`` runs before it and finds it as the package ``bench``."""

    code: str

    def command(self, *options: str, python: str = sys.executable, file: str = "") -> list[str]:
        """The command line. ``file``: where ``python`` finds the benchmark, by default on this machine."""
        file = file or str(unpacked())
        head = f"import os, signal, sys, time\nsys.path.insert(0, {file!r})\nimport bench.main\n"
        tail = '\nsys.exit(bench.main.main(["--json", "-", *sys.argv[1:]]))\n'
        return [python, "-c", head + self.code + tail, *options]

    def run(self, *options: str, env: dict[str, str] | None = None) -> Result:
        done = subprocess.run(
            self.command(*options),
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **(env or {})},
        )
        return Result(done, valid=False)


def make_run(torch: Any = None, place: RankPosition | None = None, **options: Any) -> Run:
    """What a rank's probes and measurements share, with this torch."""
    made = Run(argparse.Namespace(**{**vars(parse([])), **options}), place or RankPosition())
    made.torch = torch
    return made


def ask(name: str, torch: Any = None, place: RankPosition | None = None, **options: Any) -> Any:
    """The result of one probe: an object with ``status``, ``seen`` and ``advice``."""
    return ask_run(name, make_run(torch, place, **options))


def ask_run(name: str, made: Run) -> Any:
    """The result of one probe of a prepared rank."""
    probe = next(p for p in PROBES if p.id == name)
    return SimpleNamespace(**perform(name, lambda: {"seen": probe.look(made)}))
