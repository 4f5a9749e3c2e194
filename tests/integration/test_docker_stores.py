"""Docker 20.10, and Docker 28.5 with its two image stores: graph drivers, and containerd's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.build.engines import docker as docker_build
from builder.build.image.archive import docker_load, has_containerd_store, write_docker_archive
from builder.build.image.config import layer_limit
from builder.build.run import docker as docker_run
from builder.build.run import leftovers
from builder.build.run.docker import DockerRunner, DockerStorage
from builder.build.run.trial import trial_image
from builder.core.errors import ImageError
from builder.core.model import Compression, Image
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Inline
from tests.support.engines import request as build_request
from tests.support.image_kit import base, image_above, plain_layer, settings
from tests.support.parts import DockerEngine

pytestmark = pytest.mark.docker

MakeImage = Callable[..., Image]


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return Workspace.of(settings(tmp_path))


@pytest.fixture
def make(work: Workspace) -> MakeImage:
    """``make(name, ..., compression=)``: an image of ``/trial``, which ends with 42, and a layer per name."""
    below = base(*trial_image(work).layers)

    def made(*names: str, compression: Compression = "gzip") -> Image:
        entries = [
            Entry(f"srv/{name}", "file", size=9000, content=Inline(b"builder! " * 1000)) for name in names
        ]
        layers = [make_layer([entry], "", work, compression=compression) for entry in entries]
        return image_above(below, layers, entrypoint=[])

    return made


@pytest.fixture
def loads(any_docker: DockerEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the names of the images that builder sends to the engine."""
    monkeypatch.setenv("DOCKER_HOST", any_docker.host)
    monkeypatch.setattr(leftovers, "_loaded", {})
    sent: list[str] = []

    def load(image: Image, repo_tag: str, client: Any) -> str:
        sent.append(repo_tag)
        return docker_load(image, repo_tag, client)

    for module in (docker_run, docker_build):
        monkeypatch.setattr(module, "docker_load", load)
    return sent


def ids(engine: DockerEngine) -> set[str]:
    return {image.id for image in engine.client.images.list(all=True)}


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_loaded_once(
    any_docker: DockerEngine, loads: list[str], make: MakeImage, work: Workspace, compression: Compression
) -> None:
    """A target's image is sent once, one with a changed layer again, and the image before is removed."""
    before, runner = ids(any_docker), DockerRunner(work)
    first, second = (make("same", name, compression=compression) for name in ("first", "second"))
    name = f"stores-{compression}"
    kept = runner.keep(first, name)
    assert (runner.keep(first, name), len(loads)) == (kept, 1)
    is_containerd = has_containerd_store(any_docker.client)
    assert kept == (first.digest if is_containerd else first.config_descriptor.digest)
    assert runner.run(first, ["/trial"]).returncode == 42 and len(loads) == 1

    changed = runner.keep(second, name)
    assert (runner.keep(second, name), len(loads)) == (changed, 2)
    assert any_docker.client.images.get(f"builder/{name}").id == changed
    assert runner.run(second, ["/trial"]).returncode == 42 and len(loads) == 2
    assert ids(any_docker) - before == {changed}
    any_docker.client.images.remove(f"builder/{name}")
    assert ids(any_docker) == before


def test_not_unpacked(any_docker: DockerEngine, work: Workspace) -> None:
    """An image that the engine cannot unpack is refused; containerd's store says so beside "Loaded image"."""
    broken = image_above(base(*trial_image(work).layers), [plain_layer(work.store, b"no tar" * 1000)])
    with pytest.raises(ImageError, match="refused builder/broken:latest: .*invalid tar header"):
        docker_load(broken, "builder/broken:latest", any_docker.client)
    assert not any_docker.client.images.list("builder/broken")


def test_of_this_process(
    any_docker: DockerEngine, loads: list[str], make: MakeImage, work: Workspace
) -> None:
    """An image that no target keeps is sent once in a process, which removes it at its end."""
    before, image = ids(any_docker), make("once")
    for _ in range(2):
        assert DockerRunner(work).run(image, ["/trial"]).returncode == 42
    assert len(loads) == 1
    leftovers.remove_loaded()
    assert ids(any_docker) == before


def test_base_of_a_build(any_docker: DockerEngine, loads: list[str], make: MakeImage, tmp_path: Path) -> None:
    """The docker engine loads a base once."""
    image = make("base")
    below = base(*image.layers)
    names = [docker_build.provide_base(build_request(tmp_path), below, any_docker.client) for _ in "12"]
    assert names == [loads[0]] * 2 and len(loads) == 1
    any_docker.client.images.remove(names[0])


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_archive(
    any_docker: DockerEngine, make: MakeImage, work: Workspace, tmp_path: Path, compression: Compression
) -> None:
    """``docker load`` reads an archive of builder, and builder reads what ``docker save`` makes of it."""
    image, tag = make("archived", compression=compression), f"stores/archive:{compression}"
    write_docker_archive(image, tmp_path / "a.tar", tag)
    any_docker.docker("load", "--input", tmp_path / "a.tar")
    found = any_docker.client.images.get(tag)
    if compression == "gzip":
        assert found.id == DockerStorage(any_docker.client).image_id(image)
    output = any_docker.docker("run", "--network=none", "--rm", tag, "/trial", check=False)
    assert output.returncode == 42, output.stderr
    with (tmp_path / "saved.tar").open("wb") as out:
        out.writelines(found.save(named=tag))
    any_docker.client.images.remove(tag)
    wanted = WantedBase("amd64")
    locked = resolve_base(f"docker-archive:{tmp_path}/saved.tar", wanted, work)
    read = open_base(locked, wanted, work)
    assert [layer.diff_id for layer in read.layers] == [layer.diff_id for layer in image.layers]


def test_most_layers(any_docker: DockerEngine, loads: list[str], make: MakeImage, work: Workspace) -> None:
    """The largest image that builder makes runs; a graph driver takes no layer more."""
    most = layer_limit()["layers"]
    largest = make(*(f"many-{n}" for n in range(most - 1)))
    assert len(largest.layers) == most
    assert DockerRunner(work).run(largest, ["/trial"]).returncode == 42
    leftovers.remove_loaded()
    if not has_containerd_store(any_docker.client):
        larger = make(*(f"many-{n}" for n in range(most)))
        with pytest.raises(ImageError, match="max depth exceeded"):
            docker_load(larger, "stores/larger:1", any_docker.client)
