"""Probes of torch itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, with_torch

UseTorch = Callable[[str], None]


@pytest.fixture
def use_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[UseTorch]:
    """``use_torch(source)``: ``import torch`` runs this source."""
    before = sys.modules.pop("torch", None)

    def use(source: str) -> None:
        monkeypatch.syspath_prepend(with_torch(tmp_path, source)["PYTHONPATH"])

    yield use
    sys.modules.pop("torch", None)
    if before is not None:
        sys.modules["torch"] = before


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("raise OSError('libcudart.so.12: cannot open shared object file: No such file')", "libcudart.so.12"),
        ("", "AttributeError"),
    ],
)
def test_import_fails(source: str, seen: str, use_torch: UseTorch) -> None:
    use_torch(source)
    found = ask("torch.import", expect="nvidia")
    assert found.status == "fail" and seen in found.seen and found.advice


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("libcuda.so.1: cannot open shared object file", "--nv"),
        ("libamdhip64.so.6: cannot open shared object file", "--rocm"),
        ("/lib/libc.so.6: version `GLIBC_2.38' not found (required by libtorch.so)", "newer base"),
        ("libmkl.so: undefined symbol: x", "lock"),
    ],
)
def test_missing_library(message: str, advice: str, use_torch: UseTorch) -> None:
    """The advice depends on the library that torch misses."""
    use_torch(f"raise OSError({message!r})")
    found = ask("torch.import")
    assert found.status == "fail" and message in found.seen and advice in found.advice


@pytest.mark.parametrize(
    ("build", "expect", "status"),
    [
        ("CPU", "nvidia", "fail"),
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
