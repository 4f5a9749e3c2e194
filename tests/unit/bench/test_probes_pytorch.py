"""Probes of torch itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.smoke import ask, fake_torch, run, with_torch


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("libcuda.so.1: cannot open shared object file", "--nv"),
        ("libamdhip64.so.6: cannot open shared object file", "--rocm"),
        ("/lib/libc.so.6: version `GLIBC_2.38' not found (required by libtorch.so)", "newer base"),
        ("libmkl.so: undefined symbol: x", "lock"),
    ],
)
def test_missing_library(message: str, advice: str, tmp_path: Path) -> None:
    """The advice depends on the library that torch misses."""
    found = run(env=with_torch(tmp_path, f"raise OSError({message!r})")).probe("torch.import")
    assert found["status"] == "fail" and message in found["seen"] and advice in found["advice"]


@pytest.mark.parametrize(
    ("build", "expect", "status"),
    [
        ("CPU", "nvidia", "fail"),
        ("CPU", "amd", "fail"),
        ("HIP", "nvidia", "fail"),
        ("CUDA", "amd", "fail"),
        ("CUDA", "nvidia", "pass"),
        ("HIP", "amd", "pass"),
        ("CPU", "none", "pass"),
        ("CUDA", "none", "warn"),
        ("CUDA", "auto", "pass"),
    ],
)
def test_build(build: str, expect: str, status: str) -> None:
    """torch must be built for the GPUs of the recipe."""
    found = ask("torch.build", fake_torch(build), expect=expect)
    assert found.status == status and build in found.seen
    assert bool(found.advice) == (status != "pass")


def test_architectures_unknown() -> None:
    found = ask("torch.architectures", fake_torch("CUDA", known=[]), architectures=["sm_80"])
    assert found.status == "warn" and "does not report" in found.seen
    assert ask("torch.architectures", fake_torch("CUDA")).status == "skip"
    assert ask("torch.architectures", fake_torch("CPU"), architectures=["sm_80"]).status == "skip"
