"""A network whose servers have certificates of an authority that only the system's store has."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from tests.support.channel import Server, serve
from tests.support.parts import make_certificates
from tests.support.programs import run_program

#: Where Debian keeps the system's store.
STORE = Path("/etc/ssl/certs/ca-certificates.crt")
#: Variables that name authorities to some program.
_VARIABLES = re.compile(r"SSL_CERT_\w+|\w*CA_(BUNDLE|CERTS\w*|INFO)|PIP_CERT|GIT_SSL\w+|\w*CA_CERTS?\w*")
_ENTER = 'mount --bind "$0" "$1"; shift; exec "$@"'


@dataclass(frozen=True)
class CompanyNetwork:
    """Runs commands as on a machine of that network; the machine of the tests does not change."""

    web: Server
    """Serves the folder ``root`` over https."""
    root: Path
    store: Path
    """The system's store with the authority."""

    def trust(self, authority: Path) -> None:
        """Adds an authority to the store."""
        self.store.write_text(self.store.read_text() + authority.read_text())

    def run(
        self, words: Sequence[str | Path], env: Mapping[str, str], cwd: Path, *, check: bool = True
    ) -> CompletedProcess[str]:
        """Runs a command in a mount namespace with the store in the system's place, without variables."""
        own = {name: value for name, value in env.items() if not _VARIABLES.fullmatch(name)}
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        enter = ["unshare", *user, "--mount", "sh", "-ec", _ENTER, self.store, STORE]
        return run_program([*enter, *words], own, cwd=cwd, check=check, timeout=300)


def make_server_tls(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Makes an authority, and the TLS settings of a server that it has signed (:func:`make_certificates`)."""
    authority, certificate, key = make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return authority, context


@contextlib.contextmanager
def company_network(folder: Path) -> Iterator[CompanyNetwork]:
    """Makes the authority and the server."""
    authority, context = make_server_tls(folder / "tls")
    store, root = folder / "store.pem", folder / "web"
    store.write_text(STORE.read_text())
    root.mkdir()
    with serve(root, context) as web:
        network = CompanyNetwork(web, root, store)
        network.trust(authority)
        yield network
