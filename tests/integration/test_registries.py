"""What builder's client does with another implementation than Debian's docker-registry."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.model import Image
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from builder.registry.pull import pull_image
from builder.registry.referrers import Artifact, AttachedFile, attach, referrers
from builder.store.blobs import Store
from tests.support import parts
from tests.support.debs import NotInstalled
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.install_registries import install_crane
from tests.support.parts import need
from tests.support.ports import free_ports

pytestmark = pytest.mark.registry

SBOM = "application/vnd.cyclonedx+json"


@pytest.fixture(scope="module")
def crane() -> Iterator[str]:
    """The address of ``crane registry serve`` (go-containerregistry)."""
    try:
        program = install_crane(parts.CLONE / ".cache/parts/crane")
    except NotInstalled as e:
        parts.part_missing(str(e))
    host = f"127.0.0.1:{free_ports(1)[0]}"
    with parts.part_folder("cran") as folder:
        command = [program, "registry", "serve", "--address", host, "--disk", folder]
        process = parts.start(command, folder / "log", parts.clean_environment(HOME=folder))
        parts.wait_for(lambda: _answers(host), process, folder / "log", "crane registry serve")
        yield host
        process.kill()
        process.wait()


def _answers(host: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{host}/v2/", timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture
def client(crane: str) -> Iterator[RegistryClient]:
    with RegistryClient(crane, ANONYMOUS) as made:
        yield made


@pytest.fixture
def image(tmp_path: Path) -> Image:
    sizes = (300_000, 1000, 2_000_000)
    return make_test_image([make_layer(tmp_path / "layers", f"{tmp_path}{n}", n) for n in sizes])


@pytest.fixture
def repo(request: pytest.FixtureRequest) -> str:
    return f"test/{request.node.originalname.replace('_', '-')}"


def test_push_and_pull(client: RegistryClient, image: Image, repo: str, tmp_path: Path) -> None:
    """An image is pushed, pushed again without transfers, and pulled."""
    first = push_tagged(image, client, repo, ["latest", "26.11"])
    assert (first.blobs_sent, first.blobs_present, first.blobs_mounted) == (4, 0, 0)
    assert first.bytes_sent == image.size + image.config_descriptor.size
    again = push_tagged(image, client, repo, ["latest"])
    assert (again.blobs_sent, again.bytes_sent, again.blobs_present) == (0, 0, 4)
    back = pull_image(client, repo, "26.11", "amd64", Store(tmp_path / "cache"))
    assert back.digest == image.digest and back.config == image.config


def test_attach(client: RegistryClient, image: Image, repo: str) -> None:
    """Two files are attached and listed."""
    push_tagged(image, client, repo, ["latest"])
    texts = [b'{"one": 1}', b'{"two": 2}']
    digests = [
        attach(
            client, repo, image.manifest_descriptor, Artifact(SBOM, [AttachedFile("sbom.json", SBOM, text)])
        )
        for text in texts
    ]
    assert {d.digest for d in referrers(client, repo, image.digest, SBOM)} == set(digests)


def test_skopeo(client: RegistryClient, image: Image, repo: str) -> None:
    """skopeo reads what builder pushed."""
    need("skopeo")
    push_tagged(image, client, repo, ["latest"])
    command = ["skopeo", "inspect", "--tls-verify=false", f"docker://{client.host}/{repo}:latest"]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert seen["Digest"] == image.digest
    assert seen["Layers"] == [layer.descriptor.digest for layer in image.layers]
