"""Variables that make a GPU slow, and those that the report holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.bench.machine.variables import variables
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask
from tests.unit.bench.conftest import WriteFile


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_slow(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that makes a GPU slow is named, with its effect; so is one in NCCL's file."""
    torch = fake_torch("CUDA")
    assert ask("gpu.variables", torch).status == "pass"
    assert ask("gpu.variables", fake_torch("CUDA", devices=0)).status == "skip"
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("HIP_LAUNCH_BLOCKING", "0")
    root("/etc/nccl.conf", "# ours\nNCCL_ALGO=Ring\nNCCL_SHM_DISABLE = 1\nPATH=/bad\n")
    monkeypatch.setenv("NCCL_SHM_DISABLE", "0")
    found = ask("gpu.variables", torch)
    assert found.status == "warn"
    assert found.seen == (
        "CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel; "
        "NCCL_ALGO=Ring: NCCL does not choose the fastest way by itself"
    )


def test_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What explains a figure is in the report; what could be a secret is not."""
    kept = {
        "NVIDIA_TF32_OVERRIDE": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "x",
        "PYTORCH_NO_HIP_MEMORY_CACHING": "1",
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "HIPBLASLT_ALLOW_TF32": "1",
        "TORCH_BLAS_PREFER_HIPBLASLT": "1",
        "NCCL_CROSS_NIC": "1",
        "FI_MR_CACHE_MONITOR": "userfaultfd",
        "SLURM_GPUS_ON_NODE": "4",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps",
        "HSA_XNACK": "1",
        "MIOPEN_FIND_ENFORCE": "3",
        "GPU_MAX_HW_QUEUES": "2",
    }
    dropped = {
        "NCCL_AUTH_TOKEN": "abc",
        "UCX_SECRET": "abc",
        "FI_OPX_PASSWORD": "abc",
        "NCCL_NET_PLUGIN": "https://me:abc@example.org/x",
        "SLURM_JWT": "abc",
        "HF_TOKEN": "abc",
        "TORCH_HOME": "/scratch/me",
        "AWS_SECRET_ACCESS_KEY": "abc",
    }
    for name, value in {**kept, **dropped}.items():
        monkeypatch.setenv(name, value)
    found = variables()
    assert {name: found.get(name) for name in kept} == kept
    assert set(found) - set(kept) == {"HOME"}
    assert "abc" not in str(found) and set(found) <= set(os.environ)
