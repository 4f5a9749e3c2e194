"""The registry client against real registries."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import RegistryError
from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.publishing.destination import open_destination
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS, Credentials
from builder.formats.registry.pull import pull_image
from builder.formats.registry.referrers import Artifact, AttachedFile, attach, referrers
from tests.support.image_kit import settings
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.parts import (
    CLONE,
    Registry,
    RegistryFactory,
    clean_environment,
    need,
    need_root,
    skopeo,
)
from tests.support.programs import run_program
from tests.support.releases import forget_settings

pytestmark = pytest.mark.registry

SBOM = "application/vnd.cyclonedx+json"
ROBOT, PASSWORD = "robot$m558+perlmutter-nersc-gov", "pa$$ w0rd:s3cret"


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image(
        [make_layer(tmp_path / "layers", f"{tmp_path.name}-{i}", 300_000 * (i + 1)) for i in range(4)]
    )


@pytest.fixture
def repo(request: pytest.FixtureRequest) -> str:
    """A repository of the shared registry that no other test uses."""
    return f"test/{request.node.name.lower().replace('[', '-').replace(']', '').replace('_', '-')[:80]}"


@pytest.fixture(autouse=True)
def no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_settings(monkeypatch, tmp_path / "home")


def publish(image: Image, to: str, tag: str, cache: Path) -> str:
    """Sends an image to a destination; returns the digest that the tag names there."""
    there = open_destination(to, Workspace(settings(cache.parent), Store(cache)))
    there.push(image)
    there.move_tag(tag, image)
    found = there.resolve(tag)
    assert found is not None
    return found.digest


def test_push_and_pull(host: str, image: Image, repo: str, tmp_path: Path) -> None:
    """An image is pushed, pushed again without transfers, pulled, and read by skopeo; files are attached."""
    with RegistryClient(host, ANONYMOUS) as client:
        first = push_tagged(image, client, repo, ["latest", "26.11"])
        assert (first.blobs_sent, first.blobs_present, first.blobs_mounted) == (5, 0, 0)
        assert first.bytes_sent == image.size + image.config_descriptor.size
        again = push_tagged(image, client, repo, ["latest"])
        assert (again.blobs_sent, again.bytes_sent, again.blobs_present) == (0, 0, 5)
        back = pull_image(client, repo, "26.11", "amd64", Store(tmp_path / "cache"))
        attached = set()
        for text in (b"1", b"2"):
            artifact = Artifact(SBOM, [AttachedFile("sbom.json", SBOM, text)])
            attached.add(attach(client, repo, image.manifest_descriptor, artifact))
        assert {found.digest for found in referrers(client, repo, image.digest, SBOM)} == attached
    assert back.digest == image.digest and back.manifest == image.manifest and back.config == image.config
    for layer, sent in zip(back.layers, image.layers, strict=True):
        assert layer.path is not None and sent.path is not None
        assert layer.path.read_bytes() == sent.path.read_bytes()
        assert (layer.diff_id, layer.origin, layer.title) == (sent.diff_id, f"{host}/{repo}", sent.title)
    seen = json.loads(skopeo(tmp_path, "inspect", "--tls-verify=false", f"docker://{host}/{repo}:latest"))
    assert seen["Digest"] == image.digest


def test_image_of_skopeo(registry: Registry, image: Image, repo: str, tmp_path: Path) -> None:
    """An image that skopeo pushed in Docker's format is pulled."""
    publish(image, f"oci:{tmp_path / 'layout'}", "t", tmp_path / "cache")
    options = ["--dest-tls-verify=false", "--format", "v2s2"]
    source, target = f"oci:{tmp_path / 'layout'}:t", f"docker://{registry.host}/{repo}:t"
    skopeo(tmp_path, "copy", *options, source, target)
    with RegistryClient(registry.host) as client:
        back = pull_image(client, repo, "t", "amd64", Store(tmp_path / "other"))
        assert [x.descriptor.digest for x in back.layers] == [x.descriptor.digest for x in image.layers]
        assert back.manifest_descriptor.media_type == "application/vnd.docker.distribution.manifest.v2+json"


def test_base_not_downloaded(
    registry: Registry, make_registry: RegistryFactory, image: Image, repo: str, tmp_path: Path
) -> None:
    """Base layers that are not on this machine are mounted, streamed to another registry, or downloaded for a
    layout.
    """
    own = make_layer(tmp_path / "layers", f"{repo}-own", 1000)
    with RegistryClient(registry.host) as client:
        push_tagged(image, client, f"{repo}/base", ["1"])
        base = [replace(layer, path=None, origin=f"{registry.host}/{repo}/base") for layer in image.layers]
        child = make_test_image([*base, own])
        report = push_tagged(child, client, f"{repo}/child", ["1"])
        assert (report.blobs_mounted, report.blobs_sent) == (4, 2)
        assert report.bytes_sent == own.descriptor.size + child.config_descriptor.size
    with RegistryClient(make_registry().host) as other:
        report = push_tagged(child, other, "x/child", ["1"])
        assert (report.blobs_mounted, report.blobs_sent) == (0, 6)
        assert pull_image(other, "x/child", "1", "amd64", Store(tmp_path / "c2")).digest == child.digest
    assert publish(child, f"oci:{tmp_path / 'layout'}", "1", tmp_path / "c3") == child.digest
    assert (tmp_path / "layout/blobs/sha256" / base[0].descriptor.digest[7:]).stat().st_size == base[
        0
    ].descriptor.size


def test_basic_authentication(
    make_registry: RegistryFactory, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REGISTRY_USER and REGISTRY_PASSWORD are for the registry of --to only."""
    registry = make_registry(htpasswd={ROBOT: PASSWORD})
    monkeypatch.setenv("REGISTRY_USER", ROBOT)
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    assert publish(image, f"{registry.host}/a/b", "latest", tmp_path / "cache") == image.digest
    with RegistryClient(registry.host) as client, pytest.raises(RegistryError, match="401") as caught:
        client.manifests.head("a/b", "latest")
    assert f"no credentials for {registry.host} were found" in caught.value.hint, (
        "the variables are for the registry that was named"
    )
    with RegistryClient(registry.host, Credentials(ROBOT, "wrong-s3cret", source="a test")) as client:
        with pytest.raises(RegistryError, match="401 Unauthorized") as caught:
            push_tagged(image, client, "c/d", ["latest"])
        assert "the credentials of a test were used" in str(caught.value) and "s3cret" not in str(
            caught.value
        )


def test_skopeo_login(
    make_registry: RegistryFactory, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login with skopeo is used."""
    registry = make_registry(htpasswd={ROBOT: PASSWORD})
    file = tmp_path / "auth.json"
    options = ["--tls-verify=false", "--authfile", file, "--username", ROBOT, "--password-stdin"]
    skopeo(tmp_path, "login", *options, registry.host, stdin=PASSWORD)
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    with RegistryClient(registry.host) as client:
        assert push_tagged(image, client, "a/b", ["latest"]).blobs_sent == 5


@pytest.mark.parametrize("program", ["podman", "skopeo"])
def test_login_of_root(make_registry: RegistryFactory, tmp_path: Path, program: str) -> None:
    """Without XDG_RUNTIME_DIR podman and skopeo write to /run/containers/UID, where builder finds it."""
    need_root()
    registry = make_registry(htpasswd={ROBOT: PASSWORD})
    ask = f"""
from builder.formats.registry.client import RegistryClient
with RegistryClient({registry.host!r}) as client:
    assert client.manifests.head("a/b", "latest") is None
print(client.credentials("a/b").source)
"""
    login = [*need(program), "login", "--tls-verify=false", "-u", ROBOT, "--password-stdin", registry.host]
    script = f"""
mkdir -p /run/containers && mount -t tmpfs none /run/containers
{shlex.join(login)} >&2 && exec {shlex.join([sys.executable, "-c", ask])}
"""
    command = ["unshare", "--mount", "--propagation=private", "sh", "-ec", script]
    done = run_program(command, clean_environment(HOME=tmp_path, PYTHONPATH=CLONE), stdin=PASSWORD)
    assert done.stdout.strip() == f"/run/containers/{os.getuid()}/auth.json ({registry.host})"


def test_own_authority(
    make_registry: RegistryFactory, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority of one's own in certs.d or SSL_CERT_FILE is trusted."""
    registry = make_registry(tls=True)
    with (
        RegistryClient(registry.host, ANONYMOUS) as client,
        pytest.raises(RegistryError, match="its certificate is not trusted") as caught,
    ):
        client.manifests.head("a/b", "t")
    assert "SSL_CERT_FILE" in caught.value.hint
    folder = tmp_path / "home/.config/containers/certs.d" / registry.host
    folder.mkdir(parents=True)
    assert registry.ca is not None
    shutil.copy(registry.ca, folder / "ca.crt")
    with RegistryClient(registry.host, ANONYMOUS) as client:
        client.manifests.head("a/b", "t")
    shutil.rmtree(folder)
    monkeypatch.setenv("SSL_CERT_FILE", str(registry.ca))
    with RegistryClient(registry.host, ANONYMOUS) as client:
        push_tagged(image, client, "a/b", ["latest"])
        assert pull_image(client, "a/b", "latest", "amd64", Store(tmp_path / "cache")).digest == image.digest


def test_memory(registry: Registry, tmp_path: Path) -> None:
    """256 MiB in four layers, pushed and pulled by a process of its own."""
    script = f"""
from pathlib import Path
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.pull import pull_image
from builder.formats.registry.referrers import Artifact, AttachedFile, attach, referrers
from builder.core.model import Descriptor, Layer, OCI_LAYER
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from tests.support.images import make_test_image, push_tagged
layers = []
for n in range(4):
    path = Path({str(tmp_path)!r}) / f"layer{{n}}"
    with path.open("wb") as f:
        for i in range(64):
            f.write(bytes([n, i]) * (1 << 19))
    digest = sha256_file(path)
    layers.append(Layer(Descriptor(OCI_LAYER, digest, path.stat().st_size), digest, path))
image = make_test_image(layers)
with RegistryClient({registry.host!r}) as client:
    assert push_tagged(image, client, "a/b", ["t"]).bytes_sent > 256 << 20
    store = Store(Path({str(tmp_path / "cache")!r}))
    assert pull_image(client, "a/b", "t", "amd64", store).digest == image.digest
# not ru_maxrss, which a child inherits from the process that started it
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert int(done.stdout) < 150, "MiB"
