"""Variables that make a GPU slow, and those that the report holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.bench.machine.variables import variables
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that makes a GPU slow is named, with its effect."""
    torch = fake_torch("CUDA")
    assert ask("gpu.variables", torch).status == "pass"
    assert ask("gpu.variables", fake_torch("CUDA", devices=0)).status == "skip"
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("HIP_LAUNCH_BLOCKING", "0")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_SHM_DISABLE", "0")
    found = ask("gpu.variables", torch)
    assert found.status == "warn"
    assert found.seen == (
        "CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel; "
        "NCCL_ALGO=Ring: NCCL does not choose the fastest way by itself"
    )


def test_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What explains a figure is in the report; what could be a secret is not."""
    kept = dict.fromkeys(
        ("NVIDIA_TF32_OVERRIDE", "PYTORCH_ALLOC_CONF", "HIPBLASLT_ALLOW_TF32", "NCCL_CROSS_NIC"), "1"
    )
    secret = ("NCCL_AUTH_TOKEN", "UCX_SECRET", "FI_OPX_PASSWORD", "SLURM_JWT", "HF_TOKEN", "TORCH_HOME")
    dropped = {**dict.fromkeys(secret, "abc"), "NCCL_NET_PLUGIN": "https://me:abc@example.org/x"}
    for name, value in {**kept, **dropped}.items():
        monkeypatch.setenv(name, value)
    found = variables()
    assert {name: found.get(name) for name in kept} == kept
    assert set(found) - set(kept) == {"HOME"}
    assert "abc" not in str(found) and set(found) <= set(os.environ)
