"""Whom builder trusts."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
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
    """SSL_CERT_DIR may name several folders; what is no certificate in them does not matter.

    Neither do missing folders, and names that OpenSSL does not look for.
    """
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "missing"]
    for folder in folders[:2]:
        (folder / "below").mkdir(parents=True)
        (folder / "README").write_text("no certificate")
        damaged = "-----BEGIN CERTIFICATE-----\nMIIBdamaged\n-----END CERTIFICATE-----\n"
        (folder / "damaged.pem").write_text(damaged)
    (folders[1] / "company.crt").write_text(authority.read_text())
    monkeypatch.setenv("SSL_CERT_DIR", ":".join(map(str, folders)))
    bundle = write_bundle(tmp_path)
    assert authority.read_text().strip() in bundle.read_text()
    assert names(ssl.create_default_context(cafile=bundle)) == names(tls_context())


@pytest.mark.parametrize(
    ("written", "is_trusted"),
    [
        ("x509 -trustout", True),
        ("x509 -addreject serverAuth", False),
        ("x509 -addtrust emailProtection", False),
        ("x509 -text", True),
        ("", True),
    ],
)
def test_kinds_of_pem(
    written: str, is_trusted: bool, authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of what OpenSSL reads, the bundle has what other programs should trust, as they read it."""
    file, text = tmp_path / "company.pem", authority.read_text().replace(" CERT", " X509 CERT")
    if written:
        command = ["openssl", *written.split(), "-in", str(authority)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    file.write_text(f"\ufeff# A comment\r\n{text}".replace("\n", "\r\n"))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert (authority.read_text().strip() in write_bundle(tmp_path).read_text()) == is_trusted


def test_mode(authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """mmdebstrap's apt reads the bundle as another user."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    before = os.umask(0o077)
    try:
        assert write_bundle(tmp_path).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_empty_store(authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A store without content, as before ca-certificates is configured, is none."""
    (tmp_path / "empty.pem").touch()
    monkeypatch.setattr(trust, "_SYSTEM", (str(tmp_path / "empty.pem"), str(authority)))
    assert [*authorities()] == [authority]


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
    match = "certs.d names .*client.cert, which needs a .key beside it, but it cannot be used"
    with pytest.raises(FetchError, match=match):
        tls_context("registry.site:5000")


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_closed_folders(authority: Path, tmp_path: Path) -> None:
    """Folders of others are skipped, and a file in one is an error that names its variable."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder.parent != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    closed = tmp_path / "home/.docker"
    (closed / "certs.d/registry.site").mkdir(parents=True)
    (closed / "ca.crt").write_text(authority.read_text())
    (tmp_path / "open").mkdir()
    (tmp_path / "open/ca.crt").symlink_to(closed / "ca.crt")
    closed.chmod(0o700)
    code = """if True:
        import os, sys
        from builder.core.errors import FetchError
        from builder.formats.net.trust import authorities, tls_context, write_bundle
        tls_context()  # imports what only root may read
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        tls_context("registry.site")
        os.environ["SSL_CERT_DIR"] = f"{sys.argv[1]}:{sys.argv[2]}"
        assert len(authorities()) == 1 == len({write_bundle(None): 0})
        os.environ["SSL_CERT_FILE"] = f"{sys.argv[1]}/ca.crt"
        try:
            tls_context()
        except FetchError as e:
            assert "SSL_CERT_FILE names" in e.message and "not readable" in e.message
        else:
            raise AssertionError
    """
    own = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    env = {**own, "HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, closed, tmp_path / "open"], env=env, check=True)


@pytest.mark.parametrize("before", [None, "/before.pem"])
def test_for_a_library(before: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Variables are as before afterwards."""
    monkeypatch.setattr(trust, "_VARIABLES", ())
    for name in ("SSL_CERT_FILE", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, before) if before else monkeypatch.delenv(name, raising=False)
    with trusted(tmp_path):
        assert os.environ["SSL_CERT_FILE"] == str(tmp_path / "system.pem")
        assert "localhost" in os.environ["NO_PROXY"]
    assert os.environ.get("SSL_CERT_FILE") == os.environ.get("no_proxy") == before


@pytest.mark.parametrize(
    ("reason", "hinted"),
    [
        ("its certificate is not trusted: self-signed certificate, through the proxy p:1 of ALL_PROXY", True),
        ("invalid peer certificate: UnknownIssuer", True),  # uv, rattler
        ("SSL certificate problem: unable to get local issuer certificate", True),  # git with OpenSSL
        ("server certificate verification failed. CAfile: none CRLfile: none", True),  # git with GnuTLS
        ("its certificate is not trusted: certificate has expired", False),
        ('invalid peer certificate: certificate not valid for name "127.0.0.1"', False),  # uv
        ("SSL: no alternative certificate subject name matches target host name", False),  # git
        ("TLS failed: tlsv13 alert certificate required", False),
        ("unknown host name", False),
    ],
)
def test_one_hint(reason: str, hinted: bool) -> None:
    """Whoever says that a certificate is not trusted, the hint is the same."""
    assert ("SSL_CERT_FILE" in network_hint(reason, "another")) == hinted


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("Failed to fetch: https://a.example/x/\nclient error (Connect)\ntunnel error: unsuccessful", True),
        ("error sending request for url (https://a.example/x.zst)\nCaused by: tcp connect error", True),
        ("unable to access 'https://a.example/x/': CONNECT tunnel failed, response 407", True),
        ("E: Failed to fetch http://a.example/InRelease  403  Forbidden [IP: 192.0.2.1 3128]", True),
        ("unable to access 'https://direct.example/x/': Failed to connect to direct.example", False),
        ("ssh: connect to host a.example port 22: Connection refused", False),
        ("https://a.example/x/: HTTP 404 Not Found", False),
    ],
)
def test_a_proxy_that_others_do_not_name(reason: str, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv, rattler, git and apt do not say that they asked a proxy: the hint does, without its password."""
    monkeypatch.setenv("ALL_PROXY", "http://me:s3cret@p.example:3128")
    monkeypatch.setenv("NO_PROXY", "direct.example")
    hint = network_hint(reason, "correct the address")
    expected = "check the proxy p.example:3128 of ALL_PROXY, its user and password, and NO_PROXY; or "
    assert hint == (expected if named else "") + "correct the address"
