"""Three real registries behind fault proxies, with one interface: Debian's docker-registry (distribution 2.8,
Basic passwords), crane (go-containerregistry, no login, manifests in memory) and Pulp (tokens, PostgreSQL).

Clients use the proxy's address. Without faults it changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from builder.registry.credentials import ANONYMOUS, Credentials
from tests.support import parts
from tests.support.debs import NotInstalled
from tests.support.faultproxy import FaultProxy
from tests.support.httpwire import Address
from tests.support.install_registries import install_crane
from tests.support.ports import free_ports

NAMES = ("distribution", "crane", "pulp")
#: Of the disk that holds a registry's blobs; it grows in memory.
DISK = "3g"
USER = "publisher"


class RealRegistry(ABC):
    """A registry with its files in ``folder``, and its blobs in ``folder/disk``."""

    name: str
    user = USER
    #: Whether an image is known after kill -9 and a restart.
    keeps_manifests = True
    #: Whether it keeps blobs (Pulp 2.30, also cut ones) or manifests (crane) that do not match their digest.
    keeps_wrong = False

    #: Faults of the soak test that it cannot have.
    impossible: frozenset[str] = frozenset()
    #: How clients log in: ``basic``, ``token`` or not at all.
    login = ""
    #: Where blobs are downloaded from, as a pattern of paths.
    blobs = "^/v2/.*/blobs/"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.log = folder / "log"
        self.password = secrets.token_hex(16)
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", self.disk]
        self.mounted = os.geteuid() == 0 and not subprocess.run(mount, capture_output=True).returncode
        self.proxy = FaultProxy(self.address)

    @property
    def host(self) -> str:
        return self.proxy.host

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.user, self.password, source="a test")

    @abstractmethod
    def address(self, path: str) -> Address:
        """Where the proxy finds what answers a request path."""

    @abstractmethod
    def start(self) -> None:
        """Starts it, also again, and waits until it answers."""

    @abstractmethod
    def kill(self) -> None:
        """Ends all its processes with kill -9."""

    @abstractmethod
    def lose_blobs(self) -> None:
        """Removes every blob that is stored, as a disk that is lost does."""

    def empty_links(self, repository: str) -> None:  # noqa: B027  nothing to do for some
        """Empties the files that note which blobs a repository has, in a registry that has such files."""

    def forget_blobs(self) -> None:  # noqa: B027  nothing to do for some
        """Makes an unused repository empty, in a registry that shares blobs among all."""

    def remove_wrong(self) -> None:  # noqa: B027  nothing to do for some
        """Does what its owner would do about content that does not match its digest."""

    def leave_free(self, size: int) -> None:
        """Makes the disk so small that ``size`` bytes are free."""
        if not self.mounted:
            parts.part_missing("only root can mount a tmpfs")
        usage = shutil.disk_usage(self.disk)
        self._resize(str(usage.used + size))

    def enlarge(self) -> None:
        """Gives the disk its size back."""
        if self.mounted:
            self._resize(DISK)

    def _resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.disk], check=True, capture_output=True)

    def answers(self) -> bool:
        """Whether the registry is up, asked through the proxy."""
        try:
            urllib.request.urlopen(f"http://{self.host}/v2/", timeout=10).close()
        except urllib.error.HTTPError as e:
            return e.code == 401
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Ends it; its folder may be removed."""
        self.kill()


class Distribution(RealRegistry):
    """Debian's docker-registry with a password."""

    name = "distribution"
    login = "basic"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._registry: parts.Registry | None = None

    def address(self, path: str) -> Address:
        assert self._registry is not None
        host, _, port = self._registry.host.rpartition(":")
        return host, int(port)

    def start(self) -> None:
        if self._registry is None:
            users = {self.user: self.password}
            self._registry = parts.start_registry(self.folder, users, root=self.disk)
        else:
            self._registry.start()

    def kill(self) -> None:
        if self._registry is not None and self._registry.process is not None:
            self._registry.process.kill()
            self._registry.stop()

    def lose_blobs(self) -> None:
        for data in self.disk.glob("docker/registry/v2/blobs/sha256/*/*/data"):
            data.unlink()

    def empty_links(self, repository: str) -> None:
        layers = self.disk / "docker/registry/v2/repositories" / repository / "_layers"
        links = list(layers.glob("sha256/*/link"))
        assert links
        for link in links:
            link.write_bytes(b"")


class Crane(RealRegistry):
    """``crane registry serve``: nobody has to log in, and manifests are in memory."""

    name = "crane"
    keeps_manifests = False
    keeps_wrong = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            self._program = install_crane(parts.CLONE / ".cache/parts/crane")
        except NotInstalled as e:
            parts.part_missing(str(e))
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def credentials(self) -> Credentials:
        return ANONYMOUS

    def address(self, path: str) -> Address:
        return "127.0.0.1", self._port

    def start(self) -> None:
        command = [self._program, "registry", "serve", "--address", f"127.0.0.1:{self._port}"]
        env = parts.clean_environment(HOME=self.folder)
        self._process = parts.start([*command, "--disk", self.disk], self.log, env)
        parts.wait_for(self.answers, self._process, self.log, "crane registry serve")

    def kill(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def lose_blobs(self) -> None:
        for blob in self.disk.rglob("*"):
            if blob.is_file():
                blob.unlink()

    def forget_blobs(self) -> None:
        self.lose_blobs()

    def remove_wrong(self) -> None:
        self.kill()
        self.start()


def make(name: str, folder: Path) -> RealRegistry:
    """A registry of this name that does not run yet."""
    from tests.support.pulp import Pulp

    kinds: dict[str, type[RealRegistry]] = {k.name: k for k in (Distribution, Crane, Pulp)}
    return kinds[name](folder)


@contextlib.contextmanager
def real_registry(name: str) -> Iterator[RealRegistry]:
    """Starts one of :data:`NAMES`."""
    with parts.part_folder(name[:4]) as folder:
        registry = make(name, folder)
        with registry.proxy:
            try:
                registry.start()
                yield registry
            finally:
                registry.stop()
