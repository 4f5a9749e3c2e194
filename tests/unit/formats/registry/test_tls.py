"""Certificates, and hosts that may be used without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import RegistryError
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.tls import is_loopback


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("127.8.0.1:1", True),
        ("[::1]:5000", True),
        ("a.localhost", True),
        ("127.0.0.1.example", False),
        ("localhost.example", False),
        ("10.0.0.1:5000", False),
        ("[::2]:1", False),
    ],
)
def test_loopback(host: str, answer: bool) -> None:
    """Which hosts are this machine."""
    assert is_loopback(host) is answer


def test_missing_certificate_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SSL_CERT_FILE must name a file that exists."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(RegistryError, match="SSL_CERT_FILE names"):
        RegistryClient("ghcr.io")
