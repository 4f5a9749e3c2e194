"""Probes of the GPUs, with a stand-in for torch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from builder.bench.core import RankPosition
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask
from tests.unit.bench.conftest import WriteFile


def test_no_gpu() -> None:
    """A GPU image without a GPU fails, unless nobody expects one."""
    found = ask("gpu.visible", fake_torch("CUDA", devices=0), expect="nvidia")
    assert found.status == "fail" and "Found no NVIDIA driver" in found.seen and "--gpus all" in found.advice
    assert ask("gpu.visible", fake_torch("CPU", devices=0), expect="amd").status == "fail"
    assert ask("gpu.visible", fake_torch("CUDA", devices=0)).status == "skip"
    assert ask("gpu.visible", fake_torch("CUDA", devices=0), devices=1).status == "fail"


def test_gpu_is_hidden(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container has a GPU, and a variable names none of this node."""
    root("/dev/nvidia0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = ask("gpu.visible", fake_torch("CUDA", devices=0), expect="nvidia")
    assert "device files: /dev/nvidia0" in found.seen
    assert found.advice.startswith("CUDA_VISIBLE_DEVICES= must name a GPU of this node; else give")


def test_number_of_gpus() -> None:
    assert ask("gpu.visible", fake_torch("CUDA", devices=4), expect="nvidia", devices=4).status == "pass"
    found = ask("gpu.visible", fake_torch("CUDA", devices=3), expect="nvidia", devices=4)
    assert found.status == "fail" and found.seen.startswith("3: ") and "4 were expected" in found.advice


def test_one_gpu_per_rank() -> None:
    """Where each rank sees one GPU, the ranks of a node count."""
    unknown = RankPosition(5, 8, 1, 0)
    found = ask("gpu.visible", fake_torch("CUDA"), place=unknown, devices=4)
    assert found.status == "pass" and "for each of the ranks" in found.seen
    found = ask("gpu.visible", fake_torch("CUDA"), place=RankPosition(5, 8, 1, 4), devices=8)
    assert found.status == "fail" and "8 were expected" in found.advice


@pytest.mark.parametrize(
    ("build", "arch", "known", "status"),
    [
        ("CUDA", "sm_80", ["sm_70", "sm_80"], "pass"),
        ("CUDA", "sm_86", ["sm_70", "sm_80"], "pass"),  # code for 8.0 runs on 8.6
        ("CUDA", "sm_80", ["sm_70", "sm_86"], "fail"),  # but not the other way round
        ("CUDA", "sm_90", ["sm_80", "compute_80"], "warn"),
        ("CUDA", "sm_90", ["sm_90a"], "fail"),  # 9.0a runs on 9.0 only if it is named so
        ("HIP", "gfx90a", ["gfx90a:sramecc+:xnack-"], "pass"),
        ("HIP", "gfx908", ["gfx90a"], "fail"),
    ],
)
def test_architecture(build: str, arch: str, known: list[str], status: str) -> None:
    """torch must have code for the GPU, and for the recipe's architecture even where there is no
    GPU.
    """
    assert ask("gpu.architecture", fake_torch(build, arch=arch, known=known)).status == status
    without_gpu = fake_torch(build, devices=0, arch=arch, known=known)
    assert ask("torch.architectures", without_gpu, architectures=[arch]).status == status


@pytest.mark.parametrize(
    ("driver", "runtime", "status"),
    [(12040, "12.4", "pass"), (12080, "12.4", "pass"), (12020, "12.4", "pass"), (11080, "12.4", "fail")],
)
def test_driver_version(driver: int, runtime: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def cuDriverGetVersion(self, number: Any) -> int:
            number._obj.value = driver
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert ask("gpu.driver", fake_torch("CUDA", runtime=runtime), expect="nvidia").status == status


def refuse(message: str) -> Any:
    def load(name: str) -> None:
        raise OSError(message.format(name=name))

    return load


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", refuse("{name}: cannot open shared object file"))
    found = ask("gpu.driver", fake_torch("CUDA"), expect="nvidia")
    assert found.status == "fail" and "libcuda" in found.seen and "--nv" in found.advice
    if not Path("/dev/kfd").exists():
        assert ask("gpu.driver", fake_torch("HIP"), expect="amd").status == "fail"


def test_amd_device_file(root: WriteFile) -> None:
    found = ask("gpu.driver", fake_torch("HIP"), expect="amd")
    assert found.status == "fail" and found.seen == "there is no /dev/kfd" and "--rocm" in found.advice
    root("/dev/kfd")
    root("/sys/module/amdgpu/version", "6.3.6")
    found = ask("gpu.driver", fake_torch("HIP"), expect="amd")
    assert found.seen == "driver amdgpu 6.3.6, torch for HIP 6.2"
