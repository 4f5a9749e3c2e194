"""The checks of a host, without a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.core.settings import Settings
from builder.deliver import doctor
from builder.deliver.doctor import Finding, examine_host


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of a host whose runners all work."""
    monkeypatch.setattr(doctor, "try_runner", lambda runner: None)
    return Settings(tmp_path / "cache", tmp_path / "tmp", jobs=1)


def found(settings: Settings) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine_host(settings)}


def test_little_space(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room for a CUDA image has to be fixed."""
    monkeypatch.setattr(doctor, "_ENOUGH", float("inf"))
    assert found(settings)["cache"].status == "bad"
    assert "BUILDER_CACHE to another disk" in found(settings)["cache"].hint


def test_debian(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that cannot make Debian bases has the reason and the hint of the build."""

    def refuse(reference: str) -> str:
        raise ImageError(f"{reference}: mmdebstrap is not installed", "apt-get install mmdebstrap")

    monkeypatch.setattr(doctor, "mmdebstrap_mode", refuse)
    finding = found(settings)["base: debian:SUITE"]
    assert (finding.status, finding.found) == ("missing", "mmdebstrap is not installed")
    assert finding.hint == "apt-get install mmdebstrap"


def test_no_gpu(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert found(settings)["GPU"].status == "missing"
