"""Whom builder trusts: the authorities that sign the certificates of servers."""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.datafiles import read_beside, table
from builder.core.errors import FetchError
from builder.core.settings import expand_home, home_folder
from builder.core.store.files import write_atomic

from .pipconfig import pip_configuration
from .proxies import exclusions, proxy_for

if TYPE_CHECKING:  # slow to import, and not needed if nothing is downloaded
    import ssl

#: How uv 0.13, rattler 0.28, git and apt say that they did not reach a server; they do not name the proxy.
_UNREACHED = re.compile(r"(?i)tunnel|connect|resolv|lookup|timed out|E: Failed to fetch")
#: Where distributions keep their authorities (truststore 0.10 has the same list).
_SYSTEM = tuple(read_beside(__file__, "stores.txt").split())
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CERTIFICATE = re.compile(
    r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END", re.DOTALL
)


def network_hint(reason: str, otherwise: str = "") -> str:
    """Return the hint for a server that cannot be reached.

    Args:
        reason: in the words of builder, uv, rattler, git or apt.
        otherwise: the hint if it is not about certificates or proxies; empty: the usual one.
    """
    hints = table(__file__, "hints.yaml") | ({"": otherwise} if otherwise else {})
    pattern = next(pattern for pattern in hints if re.search(pattern, reason))
    hint: str = hints[pattern]
    url = re.search(r"https?://[^\s'\"()]+", reason) if _UNREACHED.search(reason) else None
    if not pattern and url and (proxy := proxy_for(url[0])):
        return f"check {proxy}, its user and password, and NO_PROXY; or {hint}"
    return hint


def authorities() -> dict[Path, str]:
    """Return files with authorities, with who names them: the system is the first.

    The system's are those of the distribution, else of this Python, else of certifi. Further ones
    are named by SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, and PIP_CERT or
    ``cert`` in pip's configuration. All files of a folder count, as for Go, whatever their names;
    nobody (an empty text) names them, so they may be something else.

    Raises:
        FetchError: a variable names nothing that exists.
    """
    import ssl

    import certifi

    own = ssl.get_default_verify_paths().openssl_cafile
    # os.path, as Path.exists and Path.is_file raise what they are not permitted to see
    known = filter(os.path.isfile, (*_SYSTEM, own, certifi.where()))
    system = Path(next(filter(os.path.getsize, known))).resolve()
    found, text = {system: "the system"}, system.read_text(errors="replace")
    named = [(name, os.environ.get(name, "").split(os.pathsep)) for name in _VARIABLES]
    named.append(("PIP_CERT, or cert of pip's configuration,", [pip_configuration().cert or ""]))
    for name, values in named:
        paths = [*map(expand_home, filter(None, values))]
        existing = [*filter(os.path.exists, paths)]
        if paths and not existing:
            raise _unusable(f"{name} names {paths[0]}", "it does not exist, or is not readable")
        for path in existing:
            for file in filter(os.path.isfile, sorted(path.glob("*")) or [path]):
                if file == path:
                    found.setdefault(file.resolve(), name)
                elif not _is_in(file, text):  # Debian's folder has the system's, one by one
                    found.setdefault(file.resolve(), "")
    return found


def _is_in(file: Path, text: str) -> bool:
    """Return whether a text has all that a file has, or the file cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_text(errors="replace").strip() in text
    return True


def write_bundle(folder: Path) -> Path:
    """Return a file with all authorities, for programs that take one file.

    Args:
        folder: gets the file ``authorities.pem``, if they are in more than one.

    Raises:
        FetchError: see :func:`authorities`; or a file that a variable names has no certificates.
    """
    import ssl

    files = authorities()
    if len(files) == 1:
        return next(iter(files))
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)  # or the error that names a file
    texts = [file.read_text(errors="replace") for file in files if os.access(file, os.R_OK)]
    blocks = dict.fromkeys(block for text in texts for block in _certificates(text))
    bundle = folder / "authorities.pem"
    write_atomic(bundle, "".join(blocks).encode())
    bundle.chmod(0o644)  # independent of the umask: apt may run as another user
    return bundle


def _certificates(text: str) -> Iterator[str]:
    """Yield the certificates of a file, as every program reads them.

    Only OpenSSL reads what ``openssl x509 -trustout`` writes: purposes follow the certificate.
    """
    import ssl

    check = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for block in _CERTIFICATE.findall(text):
        with contextlib.suppress(ValueError, OSError):  # a folder has anything
            content = base64.b64decode(block)
            end = 4 + int.from_bytes(content[2:4]) if content[1] == 0x82 else len(content)
            check.load_verify_locations(cadata=content[:end])
            if len(content) <= end + 2:  # else for some purposes only
                yield ssl.DER_cert_to_PEM_cert(content[:end])


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
    context.set_ciphers("DEFAULT")  # as curl; those of Python leave out what old servers have
    trusted = authorities()
    users = [home_folder() / name for name in (".config/containers", ".config/docker", ".docker")]
    parents = (Path("/etc/docker"), Path("/etc/containers"), *users) if host else ()
    folders = (parent / "certs.d" / host for parent in parents)
    for folder in filter(os.path.exists, folders):  # like skopeo without those of other users
        trusted |= dict.fromkeys(sorted(folder.glob("*.crt")), "certs.d")
        for file in sorted(folder.glob("*.cert")):
            with _named(f"certs.d names {file}, which needs a .key beside it"):
                context.load_cert_chain(file, file.with_suffix(".key"))
    _load(context, trusted)
    return context


def _load(context: ssl.SSLContext, files: Mapping[Path, str]) -> None:
    """Add the authorities in files; an error is that of a file which somebody names."""
    for path, name in files.items():
        with _named(f"{name} names {path}") if name else contextlib.suppress(OSError):
            context.load_verify_locations(path)


def network_variables(folder: Path) -> dict[str, str]:
    """Return variables by which other programs trust all authorities, and ask the same proxies.

    Args:
        folder: see :func:`write_bundle`.
    """
    bundle = str(write_bundle(folder))
    return {"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, **exclusions()}


@contextlib.contextmanager
def trusted(folder: Path) -> Iterator[None]:
    """Set :func:`network_variables` in this process, for a library that reads them."""
    before = os.environ.copy()
    os.environ.update(network_variables(folder))
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:  # includes ssl.SSLError
        raise _unusable(what, f"it cannot be used: {e}") from None


def _unusable(what: str, reason: str) -> FetchError:
    hint = "correct or unset it; a file must be in PEM form, and readable for this user"
    return FetchError(f"{what}, but {reason}", hint)
