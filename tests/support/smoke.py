"""What tests of the benchmark share: running it, what it says, and what a GPU machine's torch would say."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema

from tests.support.fake_torch import fake_torch

__all__ = [
    "BENCHMARK",
    "SCHEMA",
    "SMOKE",
    "Beginning",
    "Result",
    "ask",
    "fake_torch",
    "load",
    "run",
    "with_torch",
]

SMOKE = Path(__file__).parents[2] / "builder" / "smoke"
BENCHMARK = SMOKE / "benchmark.py"
SCHEMA = json.loads((SMOKE / "report.schema.json").read_text())


def load() -> ModuleType:
    """The benchmark as a module of its own, so that registries can be changed."""
    spec = importlib.util.spec_from_file_location("smoke_benchmark", BENCHMARK)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Result:
    """A finished run of the benchmark: its exit code, its report (checked against the schema) and its table."""

    def __init__(self, done: subprocess.CompletedProcess[str], *, valid: bool = True) -> None:
        self.code, self.table = done.returncode, done.stderr
        own = re.sub(
            r"(?m)^W\d{4} .*\n", "", done.stderr
        )  # torch logs what a worker's death interrupts, with a traceback
        assert "Traceback" not in own + done.stdout, done.stderr
        self.report = json.loads(done.stdout)
        assert not valid or jsonschema.validate(self.report, SCHEMA, jsonschema.Draft202012Validator) is None
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
) -> Result:
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTHONPATH", "PYTHONHOME", "SSL_CERT", "COV_"))
    }
    command = [sys.executable, *python, str(BENCHMARK), "--json", "-", *options]
    return Result(
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**clean, **(env or {})},
            preexec_fn=start,
            timeout=300,
        )
    )


def with_torch(folder: Path, source: str) -> dict[str, str]:
    """An environment in which ``import torch`` runs this source."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(source)
    return {"PYTHONPATH": str(folder)}


@dataclass
class Beginning:
    """A Python program that takes the benchmark apart before it runs; ``code`` sees it as ``b``."""

    code: str

    def command(self, *options: str, python: str = sys.executable, folder: str = str(SMOKE)) -> list[str]:
        head = f"import os, signal, sys, time\nsys.path.insert(0, {folder!r})\nimport benchmark as b\n"
        tail = '\nsys.exit(b.main(["--json", "-", *sys.argv[1:]]))\n'
        return [python, "-c", head + self.code + tail, *options]

    def run(self, *options: str, env: dict[str, str] | None = None) -> Result:
        done = subprocess.run(
            self.command(*options),
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **(env or {})},
        )
        return Result(done, valid=False)


def ask(bench: ModuleType, name: str, torch: Any = None, **options: Any) -> Any:
    """What one probe says."""
    place = options.pop("place", bench.Place())
    probing = bench.Run(
        argparse.Namespace(**{**vars(bench.parse([])), "architectures": [], **options}), place
    )
    probing.torch = torch
    function = next(p.look for p in bench.PROBES if p.id == name)
    return SimpleNamespace(**bench.found(name, lambda: {"seen": function(probing)}))
