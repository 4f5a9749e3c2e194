"""What tags name after a publish to docker-registry: races, damage, and publishing the same again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildResult
from builder.core.errors import RegistryError, TagExistsError
from builder.core.model import Lock, LockedBase
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.project import Project
from builder.deliver.publishing.destination import RegistryDestination
from builder.deliver.publishing.publish import Published, PublishOptions, publish
from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from builder.formats.registry.client import RegistryClient
from builder.lock.config.recipe import Recipe
from tests.support.images import make_layer, make_test_image, record_contents
from tests.support.parts import Registry

pytestmark = pytest.mark.registry

LOCK = Lock((), ("linux-64",), digest="sha256:" + "d" * 64)
#: Races for one tag, each with a repository of its own.
ROUNDS = 8


def project(folder: Path) -> Project:
    (folder / "recipes").mkdir(parents=True)
    settings = Settings.from_environment({"HOME": str(folder)}, cache=folder / "cache")
    record_contents(Store(settings.cache))
    return Project(folder, Workspace(settings, Store(settings.cache)))


def built(project: Project, label: str) -> BuildResult:
    """An image of two layers that passed its smoke test; the second layer and the config are the label's."""
    layers = [make_layer(project.root / "layers", name, 200_000) for name in ("common", label)]
    image = make_test_image(layers, label)
    source = project.root / "recipes/t.yaml"
    recipe = Recipe(name="t", base="oci:b", environment="e.yml", source=source, smoke="torch")
    SmokeRecord(project.work.settings.cache).update(SmokeReport("pass", {}, "userns", image.digest, 0.0))
    return BuildResult(recipe, LOCK, LockedBase("oci:b", "sha256:" + "e" * 64), image)


def named(registry: Registry, repository: str, tag: str) -> str:
    with RegistryClient(registry.host) as client:
        found = client.manifests.head(repository, tag)
    return found.digest if found else ""


def together(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads begin their first call of a function together, and both wait until both have succeeded.

    Args:
        owner: of the function.
        name: the function's.
        monkeypatch: of the test.
    """
    function, begin, end = getattr(owner, name), threading.Barrier(2), threading.Barrier(2)
    waited = set[tuple[int, threading.Barrier]]()

    def wait_once(barrier: threading.Barrier) -> None:
        here = (threading.get_ident(), barrier)
        if here not in waited:
            waited.add(here)
            barrier.wait(timeout=120)

    def wrapped(*args: Any, **more: Any) -> Any:
        wait_once(begin)
        result = function(*args, **more)
        wait_once(end)
        return result

    monkeypatch.setattr(owner, name, wrapped)


def test_two_publishers_of_one_tag(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two publishers write one tag before either looks again: one wins, the other is told and ends with 12.

    docker-registry 2.8 ignores conditions: after a pause between its look and its write a publisher would
    overwrite what the other one has looked at for the last time. So neither looks before both have written.
    """
    projects = [project(tmp_path / name) for name in ("one", "two")]
    results = [built(ours, f"of-{n}") for n, ours in enumerate(projects)]

    def run(n: int, options: PublishOptions) -> Published | TagExistsError:
        try:
            return publish(projects[n], results[n], options)
        except TagExistsError as e:
            return e

    for n in range(ROUNDS):
        options = PublishOptions(to=f"{registry.host}/race/r{n}", month="26.11")
        for i in range(2):
            run(i, replace(options, move_tags=False))
        with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
            together(RegistryDestination, "move_tag", patch)
            ended = [f.result() for f in [pool.submit(run, i, options) for i in range(2)]]
        (won,) = [end for end in ended if isinstance(end, Published)]
        (lost,) = [end for end in ended if isinstance(end, TagExistsError)]
        assert named(registry, f"race/r{n}", "26.11") == won.digest
        assert lost.exit_code == 12 and won.digest[:19] in lost.message, lost.message


def test_damaged_blob(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob that the registry's disk damaged is found before a tag moves, also by a later publish."""
    ours = project(tmp_path)
    result = built(ours, "damaged")
    place, repository = f"{registry.host}/damage/t", "damage/t"
    digest = result.image.layers[1].descriptor.digest  # type: ignore[union-attr]
    hexes = digest.removeprefix("sha256:")
    push = RegistryDestination.push

    def damage(self: RegistryDestination, image: Any) -> Any:
        report = push(self, image)
        path = registry.root / "docker/registry/v2/blobs/sha256" / hexes[:2] / hexes / "data"
        data = path.read_bytes()
        path.write_bytes(data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
        return report

    options = PublishOptions(to=place, month="26.11")
    with monkeypatch.context() as patch:
        patch.setattr(RegistryDestination, "push", damage)
        with pytest.raises(RegistryError, match="with the digest") as e:
            publish(ours, result, options)
    assert digest in e.value.message and not named(registry, repository, "26.11")
    with pytest.raises(RegistryError, match="with the digest"):  # nothing is sent, but it is read again
        publish(ours, result, options)
    assert not named(registry, repository, "latest")


def test_full_disk_of_the_registry(registry: Registry, tmp_path: Path) -> None:
    """A registry whose disk was full has empty files. Publishing again mends the one that names a blob.

    docker-registry keeps an empty blob, which no client can replace: the error says so, and no tag moves.
    """
    ours = project(tmp_path)
    result = built(ours, "empty")
    options = PublishOptions(to=f"{registry.host}/full/t", month="26.11")
    publish(ours, result, replace(options, move_tags=False))
    hexes = result.image.layers[1].descriptor.digest.removeprefix("sha256:")  # type: ignore[union-attr]
    storage = registry.root / "docker/registry/v2"
    (storage / "repositories/full/t/_layers/sha256" / hexes / "link").write_bytes(b"")
    done = publish(ours, result, options)
    assert named(registry, "full/t", "latest") == done.digest
    (storage / "blobs/sha256" / hexes[:2] / hexes / "data").write_bytes(b"")
    with pytest.raises(RegistryError, match=f"holds 0 bytes under the digest sha256:{hexes}") as e:
        publish(ours, result, replace(options, month="26.12"))
    assert "delete this blob" in e.value.hint and not named(registry, "full/t", "26.12")


def test_history(registry: Registry, tmp_path: Path) -> None:
    """A month later, the same again: what moves, what is read, and what is reported."""
    ours = project(tmp_path)
    first, second = built(ours, "first"), built(ours, "second")
    place = f"{registry.host}/history/t"

    def send(result: BuildResult, month: str, force: bool = False) -> Published:
        return publish(ours, result, PublishOptions(to=place, month=month, force=force))

    done = send(first, "26.10")
    assert done.before == {"26.10": None, "latest": None}
    assert done.verified and done.push and done.verified.blobs == done.push.blobs_sent == 3
    again = send(first, "26.10")
    assert again.verified and again.verified.blobs == 0
    done = send(second, "26.11")
    assert done.before == {"26.11": None, "latest": first.digest}
    assert done.verified and done.push and (done.verified.blobs, done.push.blobs_present) == (2, 1)
    with pytest.raises(TagExistsError, match=r"26\.10 exists"):
        send(second, "26.10")
    back = send(first, "26.10", force=True)
    assert back.before["latest"] == second.digest
    assert named(registry, "history/t", "latest") == first.digest
