"""Precisions that a device has in hardware."""

from __future__ import annotations

import pytest

from builder.bench.measurements.precision import PRECISIONS, unsupported
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


@pytest.mark.parametrize(
    ("build", "arch", "missing"),
    [
        ("CUDA", "sm_90", []),
        ("CUDA", "sm_89", []),
        ("CUDA", "sm_80", ["fp8"]),
        ("CUDA", "sm_70", ["bf16", "fp8", "tf32"]),
        ("CUDA", "sm_60", ["bf16", "fp8", "tf32"]),
        ("HIP", "gfx90a", ["fp8", "tf32"]),
        ("HIP", "gfx906", ["bf16", "fp8", "tf32"]),
        ("HIP", "gfx942", []),
        ("HIP", "gfx1201", ["tf32"]),
    ],
)
def test_unsupported(build: str, arch: str, missing: list[str]) -> None:
    run = make_run(fake_torch(build, arch=arch))
    assert [name for name in sorted(PRECISIONS) if unsupported(run, name)] == missing


@pytest.mark.parametrize(
    ("build", "arch", "skipped"),
    [("CUDA", "sm_90", True), ("CUDA", "sm_75", False), ("HIP", "gfx942", False)],
)
def test_forced_tf32(build: str, arch: str, skipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this variable fp32 products are as inexact as TF32: that is no fault of the GPU."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    run = make_run(fake_torch(build, arch=arch))
    assert bool(unsupported(run, "fp32")) is skipped
    assert unsupported(run, "fp64") == ""
