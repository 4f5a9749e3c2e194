"""Publishing to a real registry under faults: run it, check every tag, count what was sent again.

Used by ``tests/integration/test_registry_faults.py`` and, for longer, by ``tests/soak.py``.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.cli import cli, run
from builder.errors import RegistryError
from builder.model import OCI_INDEX, Descriptor
from builder.publishing.smoke_record import SmokeRecord
from builder.registry import transport
from builder.registry.client import RegistryClient
from builder.registry.pull import pull_image
from builder.store.blobs import Store
from tests.support.channel import serve
from tests.support.cli import Result, adopt
from tests.support.faultproxy import Exchange, Fault
from tests.support.parts import CLONE
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project
from tests.support.real_registries import RealRegistry

#: The size of the image's one large layer, in bytes before compression (which does not make it smaller).
BULK = 6 << 20
#: Blobs of at least this size are the large layer.
LARGE = 1 << 20
TAGS = ("26.11", "latest")
#: So many uploads are under way at once (builder.registry.push): what a kill can interrupt.
TRANSFERS = 4
#: The longest wait between attempts here, in seconds. builder waits longer, with the same number of attempts.
LONGEST_WAIT_S = 0.05
#: In trials of a stall, a connection without a byte for so long is given up, in seconds.
STALL_S = 8.0
#: In others: so long that no registry on a busy machine is given up. What would be sent again is counted.
PATIENCE_S = 240.0
#: Uploads of the large layer.
LARGE_UPLOAD = {"method": "PUT|PATCH", "path": "/blobs/uploads/", "least": LARGE}


@dataclass(frozen=True)
class Published:
    """How a publish ended, and what it sent and received."""

    result: Result
    exchanges: list[Exchange]

    @property
    def uploaded(self) -> int:
        """Bytes of blobs that were sent."""
        return sum(x.sent for x in self.exchanges if "/blobs/uploads" in x.path)

    @property
    def wasted(self) -> int:
        """Bytes of uploads except those of one PUT that the registry acknowledged. (What arrived wrong is not
        acknowledged in earnest, and a session of chunks may be lost with its registry.)
        """
        return sum(x.sent for x in self.exchanges if "/blobs/uploads" in x.path and not _is_stored(x))

    @property
    def met(self) -> list[str]:
        return [x.fault for x in self.exchanges if x.fault]


def _is_stored(exchange: Exchange) -> bool:
    return exchange.method == "PUT" and exchange.status == 201 and exchange.fault != "flip"


@dataclass(frozen=True)
class Image:
    """A built project: what a publish of it sends to an empty repository."""

    project: TinyProject
    digest: str


class Kit:
    """Two images that differ in one label, and the commands that publish them.

    Args:
        folder: everything that builder writes is below it.
        ours, theirs: the images; they share a cache.
    """

    def __init__(self, folder: Path, ours: Image, theirs: Image) -> None:
        self.folder = folder
        self.ours, self.theirs = ours, theirs
        self._count = 0
        self.last_log = folder
        """The output of the last publish in another process."""

    def login(self, registry: RealRegistry) -> Path:
        """The only file that may hold the registry's password."""
        file = self.folder / f"auth-{registry.name}.json"
        pair = f"{registry.user}:{registry.password}".encode()
        text = json.dumps({"auths": {registry.host: {"auth": base64.b64encode(pair).decode()}}})
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text)
        return file

    def environment(self, registry: RealRegistry, image: Image) -> dict[str, str]:
        login = {"REGISTRY_AUTH_FILE": str(self.login(registry)), "PYTHONPATH": str(CLONE)}
        return {**image.project.variables(), **login, "DOCKER_CONFIG": str(self.folder / "no-docker")}

    def repository(self, registry: RealRegistry) -> str:
        """One that was not used before, in a registry that has none of the blobs there."""
        registry.forget_blobs()
        self._count += 1
        return f"tests/r{self._count}"

    def command(self, registry: RealRegistry, repository: str, image: Image) -> list[str]:
        words = ["--project", str(image.project.root), "publish", "tiny", "--json"]
        return [*words, "--to", f"{registry.host}/{repository}", "--tag", TAGS[0]]

    def publish(self, registry: RealRegistry, repository: str, *faults: Fault) -> Published:
        """Publishes our image in this process, with these faults."""
        image = self.ours
        registry.proxy.begin(*faults)
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            adopt(image.project, patch)
            for name, value in self.environment(registry, image).items():
                patch.setenv(name, value)
            wait_less(patch, *faults)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(cli, self.command(registry, repository, image))
        result = Result(code, out.getvalue(), err.getvalue())
        self._keep(result)
        assert "Traceback" not in result.err, result.err
        return Published(result, list(registry.proxy.exchanges))

    def start(self, registry: RealRegistry, repository: str, image: Image) -> subprocess.Popen[bytes]:
        """Publishes in another process."""
        self._count += 1
        self.last_log = self.folder / f"run-{self._count}.log"
        with self.last_log.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "builder", *self.command(registry, repository, image)],
                env=self.environment(registry, image),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def _keep(self, result: Result) -> None:
        """Keeps the output of a command for the search for secrets."""
        self._count += 1
        (self.folder / f"run-{self._count}.log").write_text(result.out + result.err)


def wait_less(patch: pytest.MonkeyPatch, *faults: Fault) -> None:
    """Shortens every wait between attempts, and if a fault stalls a connection, the timeout of that."""
    start = transport.Transport.__init__

    def init(self: transport.Transport, host: str, access: transport.Access) -> None:
        def sleep(seconds: float) -> None:
            time.sleep(min(seconds, LONGEST_WAIT_S))

        start(self, host, replace(access, sleep=sleep))

    patch.setattr(transport.Transport, "__init__", init)
    stalls = any(fault.pause_s > STALL_S for fault in faults)
    timeout = httpx.Timeout(STALL_S if stalls else PATIENCE_S, connect=60, pool=None)
    patch.setattr(transport, "_TIMEOUT", timeout)


@contextlib.contextmanager
def make_kit(folder: Path) -> Iterator[Kit]:
    """Builds the two images."""
    with serve(tiny_channel(folder / "channel", bulk=BULK)) as server:
        ours = tiny_project(folder, server.url)
        theirs = TinyProject(folder / "theirs", ours.cache)
        shutil.copytree(ours.root, theirs.root, symlinks=True)
        for project in (ours, theirs):
            edit(project.recipe, layers={"own_layer_from": LARGE, "groups": 1})
        edit(theirs.recipe, labels={"whose": "theirs"})
        images = [Image(project, _build(project)) for project in (ours, theirs)]
        assert images[0].digest != images[1].digest
        yield Kit(folder, *images)


def _build(project: TinyProject) -> str:
    """Builds a project, and lets its smoke test count as passed; returns the image's digest."""
    with pytest.MonkeyPatch.context() as patch:
        adopt(project, patch)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert run(cli, ["build", "tiny", "--json"]) == 0
    digest = str(json.loads(out.getvalue())["digest"])
    SmokeRecord(project.cache).store(digest, "pass", "userns")
    return digest


# what must hold after every fault ---------------------------------------------------------------------------


def check_tags(registry: RealRegistry, repository: str, *digests: str) -> dict[str, str]:
    """Pulls what every tag names into an empty store; returns the tags of images and their digests.

    Args:
        registry: without faults from now on.
        repository: in it.
        digests: what the image tags may name.
    """
    registry.proxy.begin()
    found: dict[str, str] = {}
    with (
        RegistryClient(registry.host, registry.credentials) as client,
        tempfile.TemporaryDirectory(prefix="pulled-", dir="/var/tmp") as empty,
    ):
        try:
            tags = client.list_tags(repository)
        except RegistryError as e:
            assert e.status == 404, e
            return {}
        for tag in tags:
            if tag.startswith("sha256-"):
                _pull_everything(client, repository, tag, Store(Path(empty)))
            else:
                found[tag] = pull_image(client, repository, tag, "amd64", Store(Path(empty))).digest
                assert found[tag] in digests, f"{tag} names {found[tag]}"
    return found


def _pull_everything(client: RegistryClient, repository: str, ref: str, store: Store) -> None:
    """A manifest with its blobs, or an index with its manifests; each is verified."""
    data, media_type, _ = client.get_manifest(repository, ref)
    value: dict[str, Any] = json.loads(data)
    if media_type == OCI_INDEX:
        for entry in value["manifests"]:
            _pull_everything(client, repository, entry["digest"], store)
        return
    for blob in (value["config"], *value["layers"]):
        client.get_blob_to(repository, Descriptor.from_json(blob), store)


def skopeo_copies(registry: RealRegistry, repository: str, tag: str, folder: Path) -> None:
    """Another implementation pulls the whole image."""
    where = f"docker://{registry.host}/{repository}:{tag}"
    auth = folder / "skopeo.json"
    with open(os.open(auth, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        pair = base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
        f.write(json.dumps({"auths": {registry.host: {"auth": pair}}}))
    command = [
        "skopeo",
        "copy",
        "-q",
        "--src-tls-verify=false",
        "--authfile",
        auth,
        where,
        f"dir:{folder}/to",
    ]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    auth.unlink()
    assert done.returncode == 0, done.stderr


def basic(registry: RealRegistry) -> str:
    """The login as the Authorization header and auth files hold it."""
    return base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
