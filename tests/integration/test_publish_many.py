"""``builder publish`` of many targets: what they share is fetched, made and sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core.store.blobs import Store
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.pull import pull_image
from tests.support import parts
from tests.support.channel import Server, index_channel, make_package, serve
from tests.support.machine import Machine, RequestLog
from tests.support.project import edit, noise, tiny_channel, tiny_project

pytestmark = pytest.mark.registry
#: Targets, each with a package of its own.
TARGETS = 6
#: Bytes of the package that all share.
BULK = 8 << 20


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("channel")
    tiny_channel(folder, bulk=BULK)
    for number in range(TARGETS):
        content = {f"share/own{number}": noise(f"own{number}", 30_000)}
        make_package(folder, f"own{number}", "1.0", files=content)
    index_channel(folder)
    with serve(folder) as server:
        yield server


@pytest.fixture
def machine(channel: Server, tmp_path: Path) -> Machine:
    """A project with those targets, each with a repository of its own; nothing is locked or fetched yet."""
    project = tiny_project(tmp_path, channel.url)
    project.recipe.rename(project.recipe.with_name("_tiny.yaml"))
    for number in range(TARGETS):
        name = f"t{number}"
        environment = project.environment.with_name(f"{name}.yml")
        text = project.environment.read_text().replace("- greeter\n", f"- greeter\n  - own{number}\n")
        environment.write_text(text)
        recipe = project.recipe.with_name(f"{name}.yaml")
        recipe.write_text("extends: _tiny\n")
        edit(recipe, environment=f"environments/{name}.yml", registry={"repository": f"many/{name}"})
    return Machine(project)


def blobs(place: Path, answers: list[dict[str, Any]], host: str) -> list[dict[str, int]]:
    """Pulls the images; returns the sizes of the blobs of each, by digest."""
    found = []
    for answer in answers:
        repository = answer["reference"].partition("/")[2]
        with RegistryClient(host) as client:
            image = pull_image(client, repository, answer["digest"], "amd64", Store(place))
        parts_of = [*(layer.descriptor for layer in image.layers), image.config_descriptor]
        found.append({descriptor.digest: descriptor.size for descriptor in parts_of})
    return found


def test_shared_is_sent_once(
    machine: Machine, make_registry: parts.RegistryFactory, channel: Server, tmp_path: Path
) -> None:
    """The bytes of each blob go to the registry once, into whichever repository comes first."""
    registry = make_registry()
    log = RequestLog(registry, registry.log_size())
    channel.requests.clear()
    names = [f"t{number}" for number in range(TARGETS)]
    answers = machine.json("publish", *names, "--to", f"{registry.host}/", "--no-tags")
    requests = log.lines()
    downloaded = Counter(path for path in channel.requests if path.endswith(".conda"))
    assert len(downloaded) == 9 + TARGETS and set(downloaded.values()) == {1}

    images = blobs(tmp_path / "other", answers, registry.host)
    each = {digest: size for image in images for digest, size in image.items()}
    pushes = [answer["push"] for answer in answers]
    assert sum(push["bytes_sent"] for push in pushes) == sum(each.values())
    assert sum(push["blobs_sent"] for push in pushes) == len(each)
    assert pushes[0]["bytes_sent"] == sum(images[0].values()) > BULK
    known: set[str] = set()
    for image, push in zip(images, pushes, strict=True):
        assert push["blobs_mounted"] == len(known & set(image)) and push["blobs_present"] == 0
        known |= set(image)
    attempts = sum("mount=" in line for line in requests)
    assert attempts == sum(push["blobs_mounted"] for push in pushes), "no mount is tried in vain"
