"""Base images in the registry that an image is published to: their layers are mounted, not downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.model import Image
from builder.registry.client import RegistryClient
from builder.registry.pull import pull_image
from builder.store.blobs import Store
from tests.support import parts
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.machine import Machine, RequestLog
from tests.support.project import edit, tiny_channel, tiny_project

pytestmark = pytest.mark.registry


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_channel(tmp_path_factory.mktemp("channel"), bulk=1 << 12)


@pytest.fixture(scope="module")
def base(registry: parts.Registry, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A base of two layers in the shared registry, as ``bases/os:1``."""
    folder = tmp_path_factory.mktemp("base")
    image = make_test_image([make_layer(folder, f"os-{n}", 1 << 20) for n in range(2)])
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
    digests = [layer.descriptor.digest for layer in base.layers]
    return [line for line in log.lines() if line.startswith("GET") and line.endswith(tuple(digests))]


def has_base(machine: Machine, base: Image) -> bool:
    """Whether the machine's cache holds any layer of the base."""
    store = Store(machine.project.cache)
    return any(store.get(layer.descriptor.digest) for layer in base.layers)


def record_pass(machine: Machine) -> str:
    """Builds without the base, and records that the smoke test of the image passed; returns the digest."""
    digest: str = machine.json("publish", "tiny", "--to", "oci:nowhere", "--dry-run")["digest"]
    machine.passed(digest)
    return digest


def pulled(host: str, repository: str, digest: str, folder: Path) -> Image:
    with RegistryClient(host) as client:
        return pull_image(client, repository, digest, "amd64", Store(folder))


def test_base_is_mounted(machine: Machine, registry: parts.Registry, base: Image, tmp_path: Path) -> None:
    """An image that passed before is published without a transfer of its base."""
    log = RequestLog(registry, registry.log_size())
    digest = record_pass(machine)
    done = machine.json("publish", "tiny", "--to", f"{registry.host}/mounted/tiny")
    assert done["digest"] == digest and done["smoke"] == "pass"
    assert done["push"]["blobs_mounted"] == len(base.layers)
    assert downloads(log, base) == [] and not has_base(machine, base)
    image = pulled(registry.host, "mounted/tiny", digest, tmp_path / "other")
    layers = [layer.descriptor.digest for layer in image.layers]
    assert layers[: len(base.layers)] == [layer.descriptor.digest for layer in base.layers]


def test_without_tags(machine: Machine, registry: parts.Registry, base: Image) -> None:
    """--no-tags needs no smoke test, and so no base; a later build with the base has the same digest."""
    log = RequestLog(registry, registry.log_size())
    done = machine.json("publish", "tiny", "--to", f"{registry.host}/untagged/tiny", "--no-tags")
    assert done["push"]["blobs_mounted"] == len(base.layers)
    assert downloads(log, base) == [] and not has_base(machine, base)
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
