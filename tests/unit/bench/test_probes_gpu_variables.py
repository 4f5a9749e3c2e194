"""Variables that make a GPU slow, and those that the report holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.bench.core import Place
from builder.bench.machine.variables import nccl_files, variables
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask
from tests.unit.bench.conftest import WriteFile

SEVERAL = Place(0, 8, 0, 4)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("name", "value", "effect"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "waits"),
        ("HIP_LAUNCH_BLOCKING", "1", "waits"),
        ("AMD_SERIALIZE_KERNEL", "3", "waits"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0", "every tensor"),  # torch up to 2.5 takes 0 for 1
        ("NVIDIA_TF32_OVERRIDE", "0", "speed of fp32"),
        ("NVIDIA_TF32_OVERRIDE", "1", "precision of tf32"),
        ("HSA_CU_MASK", "0:0-31", "a part"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", "a part"),
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8", "workspace"),
        ("MIOPEN_FIND_MODE", "NORMAL", "convolution"),
    ],
)
def test_slow(name: str, value: str, effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable, its value and its effect."""
    monkeypatch.setenv(name, value)
    found = ask("gpu.variables", fake_torch("CUDA"))
    assert found.status == "warn" and found.seen.startswith(f"{name}={value}: ") and effect in found.seen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("AMD_SERIALIZE_KERNEL", "0"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "all"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        ("MIOPEN_FIND_MODE", "FAST"),
        ("NCCL_P2P_DISABLE", "1"),  # a single process does not communicate
        ("CUDA_LAUNCH_BLOCKING_X", "1"),
    ],
)
def test_harmless(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert ask("gpu.variables", fake_torch("CUDA")).status == "pass"
    assert ask("gpu.variables", fake_torch("CUDA", devices=0)).status == "skip"


def test_between_ranks(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's variables count where ranks communicate; without InfiniBand, NCCL_IB_DISABLE is harmless."""
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    seen = ask("gpu.variables", fake_torch("CUDA"), place=SEVERAL).seen
    assert "NCCL_P2P_DISABLE=1: GPUs exchange data through the host's memory" in seen
    assert "NCCL_IB_DISABLE" not in seen
    root("/sys/class/infiniband/mlx5_0/x")
    assert "by TCP" in ask("gpu.variables", fake_torch("CUDA"), place=SEVERAL).seen
    assert "by TCP" not in ask("gpu.variables", fake_torch("CUDA"), place=Place(0, 4, 0, 4)).seen


def test_files_of_nccl(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL reads two files, too; the environment comes first."""
    assert nccl_files() == []
    root("/etc/nccl.conf", "# ours\nNCCL_ALGO=Ring\nNCCL_SHM_DISABLE = 1\nPATH=/bad\n")
    assert nccl_files() == ["/etc/nccl.conf"]
    seen = ask("gpu.variables", fake_torch("CUDA"), place=SEVERAL).seen
    assert "NCCL_ALGO=Ring" in seen and "NCCL_SHM_DISABLE=1" in seen
    monkeypatch.setenv("NCCL_SHM_DISABLE", "0")
    assert "NCCL_SHM" not in ask("gpu.variables", fake_torch("CUDA"), place=SEVERAL).seen


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
