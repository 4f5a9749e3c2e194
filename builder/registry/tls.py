"""Certificates for TLS, and the hosts that may be contacted without it."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import certifi

from builder.errors import RegistryError
from builder.settings import home_folder


def is_loopback(host: str) -> bool:
    """Return whether ``host[:port]`` names this machine; decided from the text, without a DNS
    query.
    """
    name = host[1 : host.index("]")] if host.startswith("[") else host.partition(":")[0]
    if name in ("localhost", "::1") or name.endswith(".localhost"):
        return True
    return re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None


def tls_context(host: str) -> ssl.SSLContext:
    """Return the TLS settings for a registry.

    Trusts SSL_CERT_FILE / SSL_CERT_DIR, else the system's authorities, and ``*.crt`` in
    ``certs.d/HOST`` of docker and podman. A ``*.cert`` with a ``*.key`` there is this client's own
    certificate.

    Raises:
        RegistryError: a certificate file cannot be read.
    """
    named = os.environ.get("SSL_CERT_FILE")
    if named and not Path(named).is_file():
        raise RegistryError(
            f"SSL_CERT_FILE names {named}, which does not exist",
            "correct or unset SSL_CERT_FILE",
            host=host,
        )
    system = ssl.get_default_verify_paths()
    has_system = system.cafile or system.capath
    authorities = None if has_system else certifi.where()
    context = ssl.create_default_context(cafile=authorities)
    for folder in _certificate_folders(host):
        if _may_exist(folder):
            _load_folder(context, folder, host)
    return context


def _certificate_folders(host: str) -> Iterator[Path]:
    home = home_folder()
    yield Path("/etc/docker/certs.d") / host
    yield Path("/etc/containers/certs.d") / host
    yield home / ".config/containers/certs.d" / host
    yield home / ".docker/certs.d" / host


def _may_exist(folder: Path) -> bool:
    """Return whether the folder exists; without the permission to look, :func:`_load_folder`
    reports the error.
    """
    try:
        return folder.is_dir()
    except OSError:
        return True


def _load_folder(context: ssl.SSLContext, folder: Path, host: str) -> None:
    try:
        for file in sorted(folder.glob("*.crt")):
            context.load_verify_locations(file)
        for file in sorted(folder.glob("*.cert")):
            context.load_cert_chain(file, file.with_suffix(".key"))
    except (OSError, ssl.SSLError) as e:
        raise RegistryError(
            f"cannot use a certificate in {folder}: {e}",
            "correct it, or let this user read it",
            host=host,
        ) from None
