"""Certificates for TLS, and the hosts that may be contacted without it."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path

import certifi

from builder.core.errors import RegistryError
from builder.core.settings import home_folder


def is_loopback(host: str) -> bool:
    """Return whether ``host[:port]`` names this machine; decided from the text alone."""
    name = host_name(host)
    if name in ("localhost", "::1") or name.endswith(".localhost"):
        return True
    return re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None


def host_name(host: str) -> str:
    """Return the host of ``host[:port]``."""
    return host[1 : host.index("]")] if host.startswith("[") else host.partition(":")[0]


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
        message = f"SSL_CERT_FILE names {named}, which does not exist"
        raise RegistryError(message, "correct or unset SSL_CERT_FILE", host=host)
    system = ssl.get_default_verify_paths()
    has_system = system.cafile or system.capath
    authorities = None if has_system else certifi.where()
    context = ssl.create_default_context(cafile=authorities)
    users = (home_folder() / ".config/containers", home_folder() / ".docker")
    for parent in (Path("/etc/docker"), Path("/etc/containers"), *users):
        _load_folder(context, parent / "certs.d" / host, host)
    return context


def _load_folder(context: ssl.SSLContext, folder: Path, host: str) -> None:
    try:
        for file in sorted(folder.glob("*.crt")):
            context.load_verify_locations(file)
        for file in sorted(folder.glob("*.cert")):
            context.load_cert_chain(file, file.with_suffix(".key"))
    except (OSError, ssl.SSLError) as e:
        message = f"cannot use a certificate in {folder}: {e}"
        raise RegistryError(message, "correct it, or let this user read it", host=host) from None
