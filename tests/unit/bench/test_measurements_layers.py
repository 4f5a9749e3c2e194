"""Attention: which kernel torch chose, and whether a better one exists for the GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.core import skip
from builder.bench.examine import perform
from builder.bench.measurements import layers
from tests.support.fake_cuda import FakeGpu
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


class Tensor:
    """A tensor whose gradient is wanted."""

    def detach(self) -> Tensor:
        return self

    def requires_grad_(self) -> Tensor:
        return self


@pytest.mark.parametrize(
    ("choice", "backend"),
    [(0, "math"), (1, "flash"), (2, "efficient"), (3, "cudnn"), (4, "other"), (-1, ""), (None, "")],
)
def test_backend(choice: int | None, backend: str) -> None:
    """torch's choice by name; torch 1.13 does not have the function."""
    torch: Any = SimpleNamespace()
    if choice is not None:
        torch._fused_sdp_choice = lambda q, k, v, mask, dropout, causal: choice
    assert layers._backend(torch, [Tensor()] * 4) == backend


@pytest.mark.parametrize(
    ("build", "arch", "fused", "advice"),
    [
        ("CUDA", "sm_75", False, "flash attention"),
        ("CUDA", "sm_80", True, "flash attention"),
        ("HIP", "gfx908", False, "AOTriton"),
        ("HIP", "gfx90a", True, "AOTriton"),
        ("HIP", "gfx942", True, "AOTriton"),
        ("HIP", "gfx1030", False, ""),
        ("HIP", "gfx1100", True, "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1"),
    ],
)
def test_math_is_a_warning_where_it_is_avoidable(build: str, arch: str, fused: bool, advice: str) -> None:
    run = make_run(fake_torch(build, arch=arch))
    assert layers._has_fused(run) is fused
    assert advice in layers._math_advice(run)


@pytest.mark.parametrize(("gigabytes", "small"), [(16, True), (24, True), (34, False), (141, False)])
def test_sizes_by_memory(gigabytes: int, small: bool) -> None:
    """GPUs with less than 32 GB get smaller tensors."""
    torch = fake_torch("CUDA")
    torch.cuda.mem_get_info = lambda index: (gigabytes * 10**9, gigabytes * 10**9)
    assert layers._is_small(make_run(torch, expect="nvidia")) is small


def test_device_bound() -> None:
    """The large sizes keep an H200 (some 400 TFLOP/s here) busy for 5 ms; the host needs 0.3 ms (B1)."""
    batch, channels, size = layers.CONVOLUTIONS["gpu"]
    assert 5 * 2.0 * batch * size * size * channels * channels * 9 / 400e12 > 5e-3
    batch, heads, length, width = layers.ATTENTIONS["gpu"]
    assert 3.5 * 4.0 * batch * heads * length * length * width / 400e12 > 5e-3


def test_search_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """MIOpen searches kernels for the small convolution, too: the budget does not count it (A7)."""
    gpu = FakeGpu()
    gpu.use_clock(monkeypatch)
    run = make_run(fake_torch("HIP", arch="gfx90a"), expect="amd")

    def search(*_: Any) -> list[Any]:
        gpu.host_s += 15.0
        return []

    def end(run: Any) -> bool:
        raise skip("far enough")

    monkeypatch.setattr(layers, "_convolve", search)
    monkeypatch.setattr(layers, "_convolution_tensors", lambda *_: [])
    monkeypatch.setattr(layers, "_is_small", end)
    before = run.left_s
    assert perform("conv.training", lambda: layers.measure_convolutions(run))["seen"] == "far enough"
    assert gpu.host_s >= 15 and run.left_s == pytest.approx(before)
