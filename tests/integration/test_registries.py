"""What builder's client does with registries, against three real ones; without faults."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.model import Image
from builder.registry.client import RegistryClient
from builder.registry.credentials import Credentials
from builder.registry.pull import pull_image
from builder.registry.referrers import AttachedFile, attach, referrers
from builder.store.blobs import Store
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.parts import need
from tests.support.real_registries import RealRegistry

pytestmark = pytest.mark.registry

SBOM = "application/vnd.cyclonedx+json"


@pytest.fixture
def client(any_registry: RealRegistry) -> Iterator[RegistryClient]:
    any_registry.proxy.begin()
    with RegistryClient(any_registry.host, any_registry.credentials) as made:
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
    assert client.list_tags(repo) == ["26.11", "latest"]
    again = push_tagged(image, client, repo, ["latest"])
    assert (again.blobs_sent, again.bytes_sent, again.blobs_present) == (0, 0, 4)
    back = pull_image(client, repo, "26.11", "amd64", Store(tmp_path / "cache"))
    assert back.digest == image.digest and back.config == image.config


def test_changed_layer(client: RegistryClient, image: Image, repo: str, tmp_path: Path) -> None:
    """Only a changed layer and the config are sent, and the tag moves."""
    bumped = make_test_image([*image.layers[:2], make_layer(tmp_path / "layers", "bumped", 5000)])
    push_tagged(image, client, repo, ["latest"])
    report = push_tagged(bumped, client, repo, ["latest"])
    assert (report.blobs_sent, report.blobs_present) == (2, 2)
    found = client.head_manifest(repo, "latest")
    assert found is not None and found.digest == bumped.digest


def test_attach(client: RegistryClient, image: Image, repo: str) -> None:
    """Two files are attached and listed; what is attached is no tag of an image."""
    push_tagged(image, client, repo, ["latest"])
    texts = [b'{"one": 1}', b'{"two": 2}']
    digests = [
        attach(client, repo, image.manifest_descriptor, SBOM, [AttachedFile("sbom.json", SBOM, text)])
        for text in texts
    ]
    assert {d.digest for d in referrers(client, repo, image.digest, SBOM)} == set(digests)
    assert [tag for tag in client.list_tags(repo) if not tag.startswith("sha256-")] == ["latest"]


def test_wrong_password(any_registry: RealRegistry, image: Image, repo: str) -> None:
    if any_registry.login == "":
        pytest.skip("nobody logs in to crane's registry")
    wrong = Credentials(any_registry.user, "not-the-pa55word", source="a test")
    with RegistryClient(any_registry.host, wrong) as client, pytest.raises(RegistryError) as caught:
        push_tagged(image, client, repo, ["latest"])
    assert "not-the-pa55word" not in str(caught.value) and caught.value.status in (401, 403)


def test_skopeo(
    any_registry: RealRegistry, client: RegistryClient, image: Image, repo: str, tmp_path: Path
) -> None:
    """skopeo reads what builder pushed."""
    need("skopeo")
    push_tagged(image, client, repo, ["latest"])
    auth = tmp_path / "auth.json"
    pair = base64.b64encode(f"{any_registry.user}:{any_registry.password}".encode()).decode()
    auth.write_text(json.dumps({"auths": {any_registry.host: {"auth": pair}}}))
    where = f"docker://{any_registry.host}/{repo}:latest"
    command = ["skopeo", "inspect", "--tls-verify=false", "--authfile", str(auth), where]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert seen["Digest"] == image.digest
    assert seen["Layers"] == [layer.descriptor.digest for layer in image.layers]
