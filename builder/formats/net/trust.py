"""Whom builder trusts: the authorities that sign the certificates of servers."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.errors import FetchError
from builder.core.settings import expand_home, home_folder
from builder.core.store.files import write_atomic

from .pipconfig import pip_configuration

if TYPE_CHECKING:  # slow to import, and not needed if nothing is downloaded
    import ssl

_HINT = (
    "if your network has an authority of its own, name the file with its certificate in "
    "SSL_CERT_FILE, or install it on this machine (docs/offline.md)"
)
_NO_SOCKS = (
    "py-rattler 0.28 reads no channel through a SOCKS proxy: name one for http in HTTPS_PROXY, "
    "or lock on a machine that needs none; a build from the lock works through SOCKS"
)
#: Where distributions keep their authorities (truststore 0.10 has the same list).
_SYSTEM = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def network_hint(reason: str, otherwise: str) -> str:
    """Return the hint for a server that cannot be reached.

    Args:
        reason: in the words of builder, uv, rattler or git.
        otherwise: the hint if it is not about certificates or proxies.
    """
    if "unsupported scheme socks" in reason:
        return _NO_SOCKS
    return _HINT if "certificate" in reason else otherwise


def authorities() -> dict[Path, str]:
    """Return files and folders with authorities, with who names them: the system is the first.

    The system's are those of the distribution, else of this Python, else of certifi. Further ones
    are named by SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, and PIP_CERT or
    ``cert`` in pip's configuration.

    Raises:
        FetchError: one of them names nothing that exists.
    """
    import ssl

    import certifi

    own = ssl.get_default_verify_paths().openssl_cafile
    known = (path for path in map(Path, (*_SYSTEM, own, certifi.where())) if path.is_file())
    found = {next(known).resolve(): "the system"}
    named = [(name, os.environ.get(name, "").split(os.pathsep)) for name in _VARIABLES]
    named.append(("PIP_CERT, or cert of pip's configuration,", [pip_configuration().cert or ""]))
    for name, values in named:
        for path in map(expand_home, filter(None, values)):
            if not path.exists():
                raise _unusable(f"{name} names {path}", "it does not exist")
            found.setdefault(path.resolve(), name)
    return found


def write_bundle(folder: Path) -> Path:
    """Return a file with all authorities, for programs that take one file.

    Args:
        folder: gets the file ``authorities.pem``, if they are in more than one.

    Raises:
        FetchError: see :func:`authorities`.
    """
    places = [*authorities()]
    if len(places) == 1:
        return places[0]
    files = [file for place in places for file in (sorted(place.glob("*")) or [place])]
    readable = (file for file in files if file.is_file() and os.access(file, os.R_OK))
    texts = [file.read_text(errors="replace") for file in readable]
    blocks = dict.fromkeys(block for text in texts for block in _CERTIFICATE.findall(text))
    bundle = folder / "authorities.pem"
    write_atomic(bundle, "".join(f"{block}\n" for block in blocks).encode())
    return bundle


def tls_context(host: str = "") -> ssl.SSLContext:
    """Return the TLS settings for servers, or for a registry.

    Args:
        host: ``host[:port]`` of a registry: ``*.crt`` in ``certs.d/HOST`` of docker and podman are
            trusted, too, and a ``*.cert`` with a ``*.key`` there is this client's certificate.

    Raises:
        FetchError: a file has no certificates.
    """
    import ssl

    # Like truststore and httpx2, not create_default_context: since Python 3.13 it refuses
    # authorities that lack some extensions (VERIFY_X509_STRICT), as those of companies do.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as curl and Go
    trusted = authorities()
    users = (home_folder() / ".config/containers", home_folder() / ".docker")
    parents = (Path("/etc/docker"), Path("/etc/containers"), *users) if host else ()
    for folder in (parent / "certs.d" / host for parent in parents):
        trusted |= dict.fromkeys(sorted(folder.glob("*.crt")), "certs.d")
        for file in sorted(folder.glob("*.cert")):
            with _certificates(f"certs.d names {file}"):
                context.load_cert_chain(file, file.with_suffix(".key"))
    for path, name in trusted.items():
        with _certificates(f"{name} names {path}"):
            is_folder = path.is_dir()
            context.load_verify_locations(
                cafile=None if is_folder else path, capath=path if is_folder else None
            )
    return context


@contextlib.contextmanager
def trusted(folder: Path) -> Iterator[None]:
    """Name all authorities in SSL_CERT_FILE of this process, for a library that reads it.

    Args:
        folder: see :func:`write_bundle`.
    """
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(write_bundle(folder))
    try:
        yield
    finally:
        del os.environ["SSL_CERT_FILE"]
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


@contextlib.contextmanager
def _certificates(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:  # includes ssl.SSLError
        raise _unusable(what, f"it cannot be used: {e}") from None


def _unusable(what: str, reason: str) -> FetchError:
    return FetchError(f"{what}, but {reason}", "correct or unset it, or let this user read it")
