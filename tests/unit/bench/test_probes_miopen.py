"""The probe of MIOpen's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask
from tests.unit.bench.conftest import WriteFile


@pytest.mark.parametrize(
    ("kind", "status"),
    [("lustre", "warn"), ("nfs4", "warn"), ("fuse.sshfs", "warn"), ("ext4", "pass"), ("tmpfs", "pass")],
)
def test_network_file_system(
    kind: str, status: str, root: WriteFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = f"1 0 8:1 / / rw - ext4 /dev/x rw\n2 1 0:9 / {tmp_path} rw,relatime shared:2 - {kind} x rw\n"
    root("/proc/self/mountinfo", mounts)
    monkeypatch.setenv("MIOPEN_USER_DB_PATH", str(tmp_path / "db"))
    monkeypatch.delenv("MIOPEN_CUSTOM_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = ask("miopen.cache", fake_torch("HIP"))
    assert found.status == status, found
    assert status == "pass" or (kind in found.seen and "MIOPEN_USER_DB_PATH" in found.advice)
    assert ask("miopen.cache", fake_torch("CUDA")).status == "skip"


def test_not_writable(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = ask("miopen.cache", fake_torch("HIP"))
    assert found.status == "warn" and "cannot be written" in found.seen
