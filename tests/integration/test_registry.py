"""The registry client against real registries."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import RegistryError
from builder.model import Image
from builder.progress import NullReporter
from builder.publishing.places import open_place
from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS, Credentials
from builder.registry.pull import pull_image
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.parts import Registry, RegistryFactory

pytestmark = pytest.mark.registry

ROBOT, PASSWORD = "robot$m558+perlmutter-nersc-gov", "pa$$ w0rd:s3cret"
MIB = 1 << 20


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
    for name in (
        "REGISTRY_USER",
        "REGISTRY_PASSWORD",
        "REGISTRY_AUTH_FILE",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "DOCKER_CONFIG",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def settings(folder: Path) -> Settings:
    return Settings(cache=folder / "cache", tmpdir=folder / "cache/tmp", jobs=2)


def test_push_and_pull(registry: Registry, image: Image, repo: str, tmp_path: Path) -> None:
    """An image is pushed, pushed again without transfers, and pulled."""
    with RegistryClient(registry.host) as client:
        first = push_tagged(image, client, repo, ["latest", "26.11"])
        assert (first.blobs_sent, first.blobs_present, first.blobs_mounted) == (5, 0, 0)
        assert first.bytes_sent == image.size + image.config_descriptor.size
        assert client.list_tags(repo) == ["26.11", "latest"]
        again = push_tagged(image, client, repo, ["latest"])
        assert (again.blobs_sent, again.bytes_sent, again.blobs_present) == (0, 0, 5)
        store = Store(tmp_path / "cache")
        back = pull_image(client, repo, "26.11", "amd64", store)
    assert back.digest == image.digest and back.manifest == image.manifest and back.config == image.config
    for layer, sent in zip(back.layers, image.layers, strict=True):
        assert (
            layer.path is not None
            and sent.path is not None
            and layer.path.read_bytes() == sent.path.read_bytes()
        )
        assert (layer.diff_id, layer.origin, layer.title) == (
            sent.diff_id,
            f"{registry.host}/{repo}",
            sent.title,
        )


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo")
def test_skopeo_reads_what_was_pushed(registry: Registry, image: Image, repo: str, tmp_path: Path) -> None:
    with RegistryClient(registry.host) as client:
        push_tagged(image, client, repo, ["latest"])
    reference = f"docker://{registry.host}/{repo}:latest"
    done = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", reference], capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    assert seen["Digest"] == image.digest
    assert seen["Layers"] == [layer.descriptor.digest for layer in image.layers]
    subprocess.run(
        ["skopeo", "copy", "-q", "--src-tls-verify=false", reference, f"dir:{tmp_path / 'copy'}"], check=True
    )
    assert (tmp_path / "copy" / image.layers[0].descriptor.digest[7:]).exists()


def test_image_of_skopeo(registry: Registry, image: Image, repo: str, tmp_path: Path) -> None:
    """An image that skopeo pushed in Docker's format is pulled."""
    if shutil.which("skopeo") is None:
        pytest.skip("needs skopeo")
    there = open_place(f"oci:{tmp_path / 'layout'}", settings(tmp_path), Store(tmp_path / "cache"))
    there.push(image)
    there.move_tag("t", image)
    subprocess.run(
        [
            "skopeo",
            "copy",
            "-q",
            "--dest-tls-verify=false",
            "--format",
            "v2s2",
            f"oci:{tmp_path / 'layout'}:t",
            f"docker://{registry.host}/{repo}:t",
        ],
        check=True,
    )
    with RegistryClient(registry.host) as client:
        back = pull_image(client, repo, "t", "amd64", Store(tmp_path / "other"))
        assert [x.descriptor.digest for x in back.layers] == [x.descriptor.digest for x in image.layers]
        assert back.manifest_descriptor.media_type == "application/vnd.docker.distribution.manifest.v2+json"


def test_changed_layer(registry: Registry, image: Image, repo: str, tmp_path: Path) -> None:
    """Only a changed layer and the config are sent."""
    bumped = make_test_image([*image.layers[:3], make_layer(tmp_path / "layers", f"{repo}-bumped", 5000)])
    with RegistryClient(registry.host) as client:
        push_tagged(image, client, repo, ["latest"])
        report = push_tagged(bumped, client, repo, ["latest"])
        assert (report.blobs_sent, report.blobs_present) == (2, 3)
        assert report.bytes_sent == bumped.layers[3].descriptor.size + bumped.config_descriptor.size
        assert client.head_manifest(repo, "latest").digest == bumped.digest  # type: ignore[union-attr]


def test_mount_from(registry: Registry, image: Image, repo: str) -> None:
    """With --mount-from nothing is sent."""
    with RegistryClient(registry.host) as client:
        push_tagged(image, client, f"{repo}/base", ["1"])
        report = push_tagged(
            image, client, f"{repo}/child", ["1"], mount_from=["unknown/repo", f"{repo}/base"]
        )
    assert (report.blobs_sent, report.bytes_sent, report.blobs_mounted) == (0, 0, 5)


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
    there = open_place(f"oci:{tmp_path / 'layout'}", settings(tmp_path), Store(tmp_path / "c3"))
    there.push(child)
    there.move_tag("1", child)
    assert there.resolve("1").digest == child.digest  # type: ignore[union-attr]
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
    there = open_place(f"{registry.host}/a/b", settings(tmp_path), Store(tmp_path / "cache"))
    there.push(image)
    there.move_tag("latest", image)
    assert there.resolve("latest").digest == image.digest  # type: ignore[union-attr]
    with RegistryClient(registry.host) as client, pytest.raises(RegistryError, match="401") as caught:
        client.head_manifest("a/b", "latest")
    assert f"no credentials for {registry.host} were found" in caught.value.hint, (
        "the variables are for the registry that was named"
    )
    with RegistryClient(registry.host, Credentials(ROBOT, "wrong-s3cret", source="a test")) as client:
        with pytest.raises(RegistryError, match="401 Unauthorized") as caught:
            push_tagged(image, client, "c/d", ["latest"])
        assert "the credentials of a test were used" in str(caught.value) and "s3cret" not in str(
            caught.value
        )


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo")
def test_skopeo_login(
    make_registry: RegistryFactory, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login with skopeo is used."""
    registry = make_registry(htpasswd={ROBOT: PASSWORD})
    file = tmp_path / "auth.json"
    subprocess.run(
        [
            "skopeo",
            "login",
            "--tls-verify=false",
            "--authfile",
            str(file),
            "--username",
            ROBOT,
            "--password-stdin",
            registry.host,
        ],
        input=PASSWORD,
        text=True,
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    with RegistryClient(registry.host) as client:
        assert push_tagged(image, client, "a/b", ["latest"]).blobs_sent == 5


def test_own_authority(
    make_registry: RegistryFactory, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority of one's own in certs.d or SSL_CERT_FILE is trusted."""
    registry = make_registry(tls=True)
    with (
        RegistryClient(registry.host, ANONYMOUS) as client,
        pytest.raises(RegistryError, match="its certificate is not trusted") as caught,
    ):
        client.ping()
    assert "SSL_CERT_FILE" in caught.value.hint
    folder = tmp_path / "home/.config/containers/certs.d" / registry.host
    folder.mkdir(parents=True)
    assert registry.ca is not None
    shutil.copy(registry.ca, folder / "ca.crt")
    with RegistryClient(registry.host, ANONYMOUS) as client:
        client.ping()
    shutil.rmtree(folder)
    monkeypatch.setenv("SSL_CERT_FILE", str(registry.ca))
    with RegistryClient(registry.host, ANONYMOUS) as client:
        push_tagged(image, client, "a/b", ["latest"])
        assert pull_image(client, "a/b", "latest", "amd64", Store(tmp_path / "cache")).digest == image.digest


def test_read_only_registry(make_registry: RegistryFactory, image: Image) -> None:
    """A read-only registry is an error with a hint."""
    with (
        RegistryClient(make_registry(readonly=True).host) as client,
        pytest.raises(RegistryError, match="405") as caught,
    ):
        push_tagged(image, client, "a/b", ["latest"])
    assert "read-only" in caught.value.hint


def test_missing_image(registry: Registry, repo: str, tmp_path: Path) -> None:
    """A missing image and a missing repository are errors with their codes."""
    with RegistryClient(registry.host) as client:
        with pytest.raises(RegistryError, match="MANIFEST_UNKNOWN"):
            pull_image(client, repo, "latest", "amd64", Store(tmp_path))
        with pytest.raises(RegistryError, match="NAME_UNKNOWN"):
            client.list_tags(repo)


# a registry that dies


class Mortal:
    """A registry of the test's own that can be killed and started again in the same place."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.host = registry.host
        self.start = registry.start

    def kill(self) -> None:
        os.kill(self.registry.pid, signal.SIGKILL)
        self.registry.stop()


@pytest.fixture
def mortal(make_registry: RegistryFactory) -> Iterator[Mortal]:
    registry = make_registry()
    yield Mortal(registry)
    registry.stop()


class After(NullReporter):
    """Calls something once, when ``amount`` bytes have gone out."""

    def __init__(self, amount: int, call: Any) -> None:
        self.left, self.call, self.lock = amount, call, threading.Lock()

    def advance(self, task: str, amount: int) -> None:
        with self.lock:
            before, self.left = self.left, self.left - amount
        if before > 0 >= self.left:
            self.call()


@pytest.fixture
def large(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path / "layers", f"large-{i}", 4 * MIB) for i in range(12)])


def test_killed_registry(mortal: Mortal, large: Image) -> None:
    """A registry that dies is an error, and a second push sends only the rest."""
    with RegistryClient(mortal.host, sleep=lambda s: time.sleep(0.01)) as client:
        with pytest.raises(RegistryError, match=rf"cannot reach {mortal.host}") as caught:
            push_tagged(large, client, "a/b", ["latest"], reporter=After(46 * MIB, mortal.kill))
        assert "registry running" in caught.value.hint or "run the same command again" in caught.value.hint
    mortal.start()
    with RegistryClient(mortal.host) as client:
        assert client.head_manifest("a/b", large.digest) is None
        report = push_tagged(large, client, "a/b", ["latest"])
        assert report.blobs_present >= 4, "what was whole is not sent again"
        assert report.blobs_sent + report.blobs_present == 13
        assert client.head_manifest("a/b", "latest").digest == large.digest  # type: ignore[union-attr]


def test_restarted_registry(mortal: Mortal, large: Image, tmp_path: Path) -> None:
    """A registry that comes back in time does not fail the push."""
    reached, killed, back = threading.Event(), threading.Event(), threading.Event()

    def halfway() -> None:
        reached.set()
        assert killed.wait(240)

    def sleep(seconds: float) -> None:
        assert back.wait(240)

    with RegistryClient(mortal.host, sleep=sleep) as client, ThreadPoolExecutor(1) as pool:
        push = pool.submit(push_tagged, large, client, "a/b", ["latest"], reporter=After(20 * MIB, halfway))
        assert reached.wait(240)
        mortal.kill()
        killed.set()
        mortal.start()  # by this thread: a part ends with the thread that started it
        back.set()
        push.result()
        assert pull_image(client, "a/b", "latest", "amd64", Store(tmp_path / "cache")).digest == large.digest


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_push(mortal: Mortal, tmp_path: Path, number: int) -> None:
    """A push that was killed is finished by the next one."""
    layers = [make_layer(tmp_path / "layers", f"large-{i}", 4 * MIB) for i in range(12)]
    script = f"""
import os, signal, sys
from pathlib import Path
from builder.progress import NullReporter
from builder.registry.client import RegistryClient
from tests.integration.test_registry import After
from tests.support.images import make_layer, make_test_image, push_tagged
folder = Path({str(tmp_path / "layers")!r})
image = make_test_image([make_layer(folder, f"large-{{i}}", {4 * MIB}) for i in range(12)])
die = After({44 * MIB}, lambda: os.kill(os.getpid(), {int(number)}))
push_tagged(image, RegistryClient({mortal.host!r}), "a/b", ["latest"], reporter=die)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.returncode in (-number, 130, 1)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in done.stderr
    image = make_test_image(layers)
    with RegistryClient(mortal.host) as client:
        assert client.head_manifest("a/b", "latest") is None
        report = push_tagged(image, client, "a/b", ["latest"])
        assert report.blobs_present >= 1 and report.blobs_sent + report.blobs_present == 13
        assert pull_image(client, "a/b", "latest", "amd64", Store(tmp_path / "cache")).digest == image.digest


def test_memory(mortal: Mortal, tmp_path: Path) -> None:
    """256 MiB in four layers, pushed and pulled by a process of its own."""
    script = f"""
from pathlib import Path
from builder.registry.client import RegistryClient
from builder.registry.pull import pull_image
from builder.model import Descriptor, Layer, OCI_LAYER
from builder.store.blobs import Store
from builder.store.files import sha256_file
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
with RegistryClient({mortal.host!r}) as client:
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
