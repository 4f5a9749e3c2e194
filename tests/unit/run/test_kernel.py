"""Calls of the kernel."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path

import pytest

from builder.run.kernel import Refused, mount, mounts_below, must


def test_mounts_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mounts below /, and none that another mount hides."""
    monkeypatch.chdir("/proc")
    found = mounts_below("/")
    assert found[0] == "/" and "/proc" in found
    assert mounts_below("/proc")[0] == "/proc" and "/" not in mounts_below("/proc")
    assert all(Path(path).exists() for path in found)


def test_refusal() -> None:
    ctypes.set_errno(errno.EBUSY)
    with pytest.raises(Refused, match=r"the step: Device or resource busy"):
        must("the step", -1)
    must("the step", 0)
    assert mount("none", "/does/not/exist", "tmpfs", 0) == -1
