"""Base images in the registry that an image is published to: their layers are mounted, and only those that
name the system and its packages are downloaded, for the SBOM.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.model import Image
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.publishing.pull import find_attached
from builder.deliver.publishing.release import SBOM
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.pull import pull_image
from tests.support import parts
from tests.support.image_kit import layer, member
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.machine import Machine, RequestLog
from tests.support.project import edit, tiny_channel, tiny_project

pytestmark = pytest.mark.registry


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_channel(tmp_path_factory.mktemp("channel"), bulk=1 << 12)


@pytest.fixture(scope="module")
def base(registry: parts.Registry, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A base of four layers in the shared registry, as ``bases/os:1``: the system, data, the list of packages
    and data again.
    """
    folder = tmp_path_factory.mktemp("base")
    store = Store(folder / "store")
    release = member("etc/os-release", b"ID=debian\nVERSION_ID=12\n")
    system = layer(
        store, release, member("usr/lib64/libc.so.6", b"GNU C Library stable release version 2.36.")
    )
    listed = layer(
        store, member("var/lib/dpkg/status", b"Package: libc6\nVersion: 2.36-9\nArchitecture: amd64\n")
    )
    data = [make_layer(folder, f"os-{n}", 1 << 20) for n in range(2)]
    image = make_test_image([system, data[0], listed, data[1]])
    with RegistryClient(registry.host) as client:
        push_tagged(image, client, "bases/os", ["1"])
    return image


@pytest.fixture
def machine(channel: Path, registry: parts.Registry, base: Image, tmp_path: Path) -> Machine:
    """A machine whose target is built on that base."""
    machine = Machine(tiny_project(tmp_path, channel.as_uri()))
    edit(machine.project.recipe, base=f"docker://{registry.host}/bases/os:1")
    return machine


def downloads(log: RequestLog, base: Image) -> list[str]:
    """The requests for the content of the base's layers."""
    digests = [one.descriptor.digest for one in base.layers]
    return [line for line in log.lines() if line.startswith("GET") and line.endswith(tuple(digests))]


def has_base(machine: Machine, base: Image) -> bool:
    """Whether the machine's cache holds the layer of the base that no SBOM needs."""
    return Store(machine.project.cache).get(base.layers[1].descriptor.digest) is not None


def record_pass(machine: Machine) -> str:
    """Builds without the base, and records that the smoke test of the image passed; returns the digest."""
    digest: str = machine.json("publish", "tiny", "--to", "oci:nowhere", "--dry-run")["digest"]
    machine.passed(digest)
    return digest


def pulled(host: str, repository: str, digest: str, folder: Path) -> Image:
    with RegistryClient(host) as client:
        return pull_image(client, repository, digest, "amd64", Store(folder))


def attached_sbom(registry: parts.Registry, repository: str, digest: str) -> str:
    work = Workspace.of(Settings.from_environment())
    (found,) = find_attached(f"{registry.host}/{repository}@{digest}", SBOM, work)
    return found.files[0].data.decode()


def test_base_is_mounted(machine: Machine, registry: parts.Registry, base: Image, tmp_path: Path) -> None:
    """An image that passed before is published without a transfer of its base, except for the SBOM."""
    log = RequestLog(registry, registry.log_size())
    digest = record_pass(machine)
    done = machine.json("publish", "tiny", "--to", f"{registry.host}/mounted/tiny")
    assert done["digest"] == digest and done["smoke"] == "pass"
    assert done["push"]["blobs_mounted"] == len(base.layers)
    assert len(downloads(log, base)) == 3 and not has_base(machine, base)
    sbom = attached_sbom(registry, "mounted/tiny", digest)
    assert "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12" in sbom
    assert machine.json("publish", "tiny", "--to", f"{registry.host}/mounted/tiny")["digest"] == digest
    assert len(downloads(log, base)) == 3, "what was found in the base is recorded"
    image = pulled(registry.host, "mounted/tiny", digest, tmp_path / "other")
    layers = [one.descriptor.digest for one in image.layers]
    assert layers[: len(base.layers)] == [one.descriptor.digest for one in base.layers]


def test_without_tags(machine: Machine, registry: parts.Registry, base: Image) -> None:
    """--no-tags needs no smoke test, and so no base; a later build with the base has the same digest."""
    done = machine.json("publish", "tiny", "--to", f"{registry.host}/untagged/tiny", "--no-tags")
    assert done["push"]["blobs_mounted"] == len(base.layers)
    assert not has_base(machine, base)
    built = machine.json("build", "tiny")
    assert built["digest"] == done["digest"] and has_base(machine, base)


def test_smoke_test_downloads_the_base(machine: Machine, registry: parts.Registry, base: Image) -> None:
    """An image that was not tested on this machine is downloaded before its test; this one has no Python."""
    log = RequestLog(registry, registry.log_size())
    place = f"{registry.host}/untested/tiny"
    done = machine.run("publish", "tiny", "--to", place, "--runner", "userns", check=False)
    assert done.returncode in (10, 11), done.stderr
    assert len(downloads(log, base)) == len(base.layers) and has_base(machine, base)
    assert not any(line.startswith(("PUT", "POST")) for line in log.lines()), (
        "nothing is sent before the test"
    )


def test_lock_reads_glibc(machine: Machine, registry: parts.Registry, base: Image) -> None:
    """A lock downloads the lowest layer alone, which has glibc; the next one downloads nothing."""
    log = RequestLog(registry, registry.log_size())
    edit(machine.project.recipe, virtual_packages={})
    for _ in range(2):
        machine.run("lock", "tiny")
    assert len(downloads(log, base)) == 1 and downloads(log, base)[0].endswith(
        base.layers[0].descriptor.digest
    )
    assert "builder.base-glibc: '2.36'" in machine.project.lock.read_text()
    machine.run("lock", "--check")
