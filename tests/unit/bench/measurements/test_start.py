"""Starts of torch in new processes."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from builder.bench.examine import perform
from builder.bench.measurements import imports
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


@pytest.mark.parametrize(
    ("code", "output", "status", "seen"),
    [
        (0, b"warning\n1.5 2.9", "pass", ""),
        (0, b"1.5 2.8", "fail", "a new process imports the same version"),
        (1, b"", "fail", "exit code 1"),
    ],
)
def test_import(code: int, output: bytes, status: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process imports the same torch; one that fails is a failure of the image."""
    done = SimpleNamespace(returncode=code, stdout=output)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: done)
    run = make_run(fake_torch("CUDA"), expect="nvidia")
    item = perform("torch.import_time", lambda: imports.measure_torch(run))
    assert item["status"] == status and seen in item["seen"]
    assert status == "fail" or item["median_s"] == 1.5
