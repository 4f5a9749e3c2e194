"""The probe of the C library."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support.smoke import ask
from tests.unit.bench.conftest import WriteFile


def use_libc(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: (name, version))


@pytest.mark.parametrize(
    ("name", "version", "status"), [("glibc", "2.31", "pass"), ("glibc", "2.17", "warn"), ("", "", "fail")]
)
def test_own_version(
    name: str, version: str, status: str, root: WriteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_libc(monkeypatch, name, version)
    assert ask("system.glibc").status == status


def test_libraries_of_the_host(root: WriteFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library of the host must not need a newer glibc than the image has."""
    library = tmp_path / ".singularity.d" / "libs" / "libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF" + bytes(60) + b"\0GLIBC_2.17\0GLIBC_2.2.5\0GLIBC_2.34\0")
    use_libc(monkeypatch, "glibc", "2.31")
    found = ask("system.glibc")
    assert found.status == "fail" and "libcuda.so.1 needs 2.34" in found.seen
    assert "glibc 2.34 or newer" in found.advice
    use_libc(monkeypatch, "glibc", "2.36")
    assert ask("system.glibc").seen == "glibc 2.36; 1 libraries of the host fit"
