"""Whom builder trusts."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import certifi
import pytest

from builder.core.errors import FetchError
from builder.formats.net import trust
from builder.formats.net.trust import authorities, network_hint, tls_context, trusted, write_bundle
from builder.formats.registry.client import RegistryClient
from tests.support.parts import make_certificates

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable names an authority, and the system has one."""
    for name in (*VARIABLES, "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "system.pem").write_bytes(Path(certifi.where()).read_bytes())
    monkeypatch.setattr(trust, "_SYSTEM", (str(tmp_path / "missing.pem"), str(tmp_path / "system.pem")))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of a company's authority."""
    return make_certificates(tmp_path_factory.mktemp("company") / "tls")[0]


def names(context: ssl.SSLContext) -> set[str]:
    subjects = (dict(pair[0] for pair in found["subject"]) for found in context.get_ca_certs())
    return {str(subject.get("commonName")) for subject in subjects}


@pytest.mark.parametrize("variable", [*(v for v in VARIABLES if v != "SSL_CERT_DIR"), "pip.conf"])
def test_named_beside_the_system(
    variable: str, authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a variable or pip names is trusted in addition to the system's, by Python and in the bundle."""
    assert "builder tests CA" not in names(tls_context())
    if variable == "pip.conf":
        (tmp_path / "pip.conf").write_text(f"[global]\ncert = {authority}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    else:
        monkeypatch.setenv(variable, str(authority))
    found = names(tls_context())
    assert "builder tests CA" in found and len(found) > 100
    bundle = write_bundle(tmp_path)
    assert names(ssl.create_default_context(cafile=bundle)) == found
    assert authority.read_text().strip() in bundle.read_text()


def test_folder(authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SSL_CERT_DIR may name several folders; what is no certificate in them does not matter."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "README").write_text("no certificate")
    (folders[1] / "company.crt").write_text(authority.read_text())
    monkeypatch.setenv("SSL_CERT_DIR", ":".join(map(str, folders)))
    assert authority.read_text().strip() in write_bundle(tmp_path).read_text()
    tls_context()


def test_system_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is written where the system's file is all; certifi's only where there is no other."""
    assert write_bundle(tmp_path / "nowhere") == tmp_path / "system.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    assert [*authorities()] == [tmp_path / "system.pem"]
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setattr(trust, "_SYSTEM", ())
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: _Paths())
    assert [*authorities()] == [Path(certifi.where())]


class _Paths:
    openssl_cafile = "/nowhere/cert.pem"


@pytest.mark.parametrize("variable", VARIABLES)
def test_unusable(variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable that names nothing, or a file without certificates, is an error that names it."""
    monkeypatch.setenv(variable, str(tmp_path / "none.pem"))
    with pytest.raises(FetchError, match=f"{variable}.* names .*none.pem, but it does not exist"):
        RegistryClient("ghcr.io")
    if variable != "SSL_CERT_DIR":
        (tmp_path / "none.pem").write_text("no certificate")
        with pytest.raises(FetchError, match=f"{variable}.* names .*none.pem, but it cannot be used"):
            tls_context()


def test_registry(authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """certs.d is for one registry; a damaged file there is named."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".docker/certs.d/registry.site:5000"
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_text(authority.read_text())
    assert "builder tests CA" in names(tls_context("registry.site:5000"))
    assert "builder tests CA" not in names(tls_context("registry.site")) | names(tls_context())
    (folder / "client.cert").write_text("no certificate")
    with pytest.raises(FetchError, match="certs.d names .*client.cert, but it cannot be used"):
        tls_context("registry.site:5000")


@pytest.mark.parametrize("before", [None, "/before.pem"])
def test_for_a_library(before: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SSL_CERT_FILE is as before afterwards."""
    if before:
        monkeypatch.setattr(trust, "_VARIABLES", ())
        monkeypatch.setenv("SSL_CERT_FILE", before)
    with trusted(tmp_path):
        assert os.environ["SSL_CERT_FILE"] == str(tmp_path / "system.pem")
    assert os.environ.get("SSL_CERT_FILE") == before


@pytest.mark.parametrize(
    ("reason", "hinted"),
    [
        ("its certificate is not trusted: self-signed certificate", True),
        ("invalid peer certificate: UnknownIssuer", True),  # uv, rattler
        ("SSL certificate problem: unable to get local issuer certificate", True),  # git with OpenSSL
        ("server certificate verification failed. CAfile: none CRLfile: none", True),  # git with GnuTLS
        ("unknown host name", False),
    ],
)
def test_one_hint(reason: str, hinted: bool) -> None:
    """Whoever says that a certificate is not trusted, the hint is the same."""
    assert ("SSL_CERT_FILE" in network_hint(reason, "another")) == hinted
