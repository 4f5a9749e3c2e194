"""The probe of the home directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.smoke import ask
from tests.unit.bench.conftest import WriteFile


@pytest.fixture
def home(root: WriteFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home directory that is mounted from elsewhere."""
    folder = tmp_path / "home"
    folder.mkdir()
    root("/proc/self/mountinfo", f"1 0 8:1 / / rw - overlay x rw\n2 1 0:9 / {folder} rw - nfs x rw\n")
    for name in ("CONDA_PREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", f"{folder}/.local/bin:/usr/bin")  # usual, and no evidence
    return folder


def test_mounted(home: Path) -> None:
    found = ask("system.home")
    assert found.status == "pass" and "(mounted)" in found.seen


def test_may_hide_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{home}/lib")
    found = ask("system.home")
    assert found.status == "warn" and f"LD_LIBRARY_PATH={home}/lib" in found.seen


def test_hides_the_environment(home: Path, root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDA_PREFIX", f"{home}/conda")
    found = ask("system.home")
    assert (
        found.status == "fail" and f"CONDA_PREFIX={home}/conda" in found.seen and "--no-home" in found.advice
    )
    root(
        "/proc/self/mountinfo", "1 0 8:1 / / rw - overlay x rw\n"
    )  # nothing is mounted, so nothing is hidden
    assert ask("system.home").status == "pass"


def test_python_from_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", f"{home}/venv")
    found = ask("system.home")
    assert found.status == "fail" and "python runs from" in found.seen


def test_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    found = ask("system.home")
    assert found.status == "warn" and "does not exist" in found.seen


def test_not_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = ask("system.home")
    assert found.status == "warn" and "cannot be written" in found.seen
