"""Precisions that a device has in hardware."""

from __future__ import annotations

import pytest

from builder.bench.measurements.precision import PRECISIONS, unsupported
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


@pytest.mark.parametrize(
    ("build", "arch", "missing"),
    [
        ("CUDA", "sm_80", []),
        ("CUDA", "sm_70", ["bf16", "tf32"]),
        ("CUDA", "sm_60", ["bf16", "tf32"]),
        ("HIP", "gfx90a", ["tf32"]),
        ("HIP", "gfx906", ["bf16", "tf32"]),
        ("HIP", "gfx942", []),
    ],
)
def test_unsupported(build: str, arch: str, missing: list[str]) -> None:
    run = make_run(fake_torch(build, arch=arch))
    assert [name for name in sorted(PRECISIONS) if unsupported(run, name)] == missing
