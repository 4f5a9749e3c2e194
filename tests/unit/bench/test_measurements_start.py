"""Starts in new processes, beside a GPU that allows one process only."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.examine import perform
from builder.bench.measurements import start
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run

REFUSED = (
    b"Traceback ...\ntorch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"
)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of the processes that were started. Those on a GPU end with ``REFUSED``."""
    started: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        started.append(command[-1])
        if command[-1] == "cpu":
            return SimpleNamespace(returncode=0, stdout=b"1.5 0.2 1048576.0 2.9", stderr=b"")
        return SimpleNamespace(returncode=1, stdout=b"", stderr=REFUSED)

    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_exclusive_mode(devices: list[str]) -> None:
    """The import is measured without the GPU, the first kernel is left out: no fault of the image (A9)."""
    run = make_run(fake_torch("CUDA"), expect="nvidia")
    item = perform("torch.import_time", lambda: start.measure_import(run))
    assert item["status"] == "pass" and item["median_s"] == 1.5
    assert devices[:2] == ["cuda:0", "cpu"] and devices.count("cuda:0") == 1
    item = perform("torch.first_kernel", lambda: start.measure_first_kernel(run))
    assert item["status"] == "skip" and "exclusive mode" in item["seen"]


def test_other_failure(devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that fails for another reason is a failure of the image."""
    failed = SimpleNamespace(returncode=1, stdout=b"", stderr=b"ImportError")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: failed)
    run = make_run(fake_torch("CUDA"), expect="nvidia")
    item = perform("torch.import_time", lambda: start.measure_import(run))
    assert item["status"] == "fail" and "exit code 1" in item["seen"]
