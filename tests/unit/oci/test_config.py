"""Image configs."""

from __future__ import annotations

import platform

import pytest

from builder.oci.config import host_architecture


@pytest.mark.parametrize(
    ("machine", "name"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("ppc64le", "ppc64le")]
)
def test_host_architecture(monkeypatch: pytest.MonkeyPatch, machine: str, name: str) -> None:
    """The kernel's name of the processor becomes the OCI's."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert host_architecture() == name
