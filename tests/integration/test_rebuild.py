"""A published image is built again from what is attached to it, with an empty cache, and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.core.model import Descriptor, Image, canonical_json
from builder.core.settings import Settings
from builder.core.workspace import Workspace
from builder.deliver.publishing.published import PublishedImage, described_image, open_published
from builder.deliver.publishing.rebuild import Difference, Rebuilt, rebuild
from builder.deliver.publishing.release import LOCK, PROVENANCE
from builder.formats.registry.client import RegistryClient
from tests.integration.conftest import Builder
from tests.support import parts
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.machine import Machine
from tests.support.project import edit, tiny_channel, tiny_project

pytestmark = pytest.mark.registry
FILES = "builder: entry point, smoke test, files"


@dataclass(frozen=True)
class Release:
    """A published image, and the project that it was built from."""

    machine: Machine
    published: PublishedImage

    def rebuild(self, image: Image | None = None) -> Rebuilt:
        """Rebuilds the image, or compares with what somebody else put in its place."""
        lock, statement = (self.published.attached(kind) for kind in (LOCK, PROVENANCE))
        assert lock is not None and statement is not None
        work = self.published.work
        before = {path for path in work.settings.cache.rglob("*") if path.is_file()}
        root = self.machine.project.root
        done = rebuild(image or self.published.image, lock, statement, root, work)
        after = {path for path in work.settings.cache.rglob("*") if path.is_file()}
        assert after == before, "the private cache is removed, and nothing is stored"
        return done


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tiny_channel(tmp_path / "channel", bulk=1 << 12)


@pytest.fixture
def storage(registry: parts.Registry, tmp_path: Path) -> Path:
    """A base in the registry; returns the folder of its repository there."""
    image = make_test_image([make_layer(tmp_path / "base", "os")])
    with RegistryClient(registry.host) as client:
        push_tagged(image, client, "rebuild/os", ["1"])
    return registry.root / "docker/registry/v2/repositories/rebuild/os"


@pytest.fixture
def release(registry: parts.Registry, channel: Path, storage: Path, tmp_path: Path) -> Release:
    """A published image of the base, with a file of the project, source and revision."""
    machine = Machine(tiny_project(tmp_path, channel.as_uri()))
    (machine.project.root / "train.py").write_text("print('trained')\n")
    files = [{"source": "train.py", "target": "/app/train.py"}]
    edit(machine.project.recipe, base=f"docker://{registry.host}/rebuild/os:1", files=files)
    return publish(machine, f"{registry.host}/rebuild/{tmp_path.parent.name}-{tmp_path.name}".lower())


def publish(machine: Machine, to: str) -> Release:
    """Publishes the target by its digest, and reads the image on another machine."""
    origin = {"SOURCE": "https://host.example/x", "REVISION": "abc"}
    env = {f"BUILDER_{name}": value for name, value in origin.items()} | {"SOURCE_DATE_EPOCH": "1700000000"}
    machine.run("lock", "tiny")
    done = machine.json("publish", "tiny", "--to", to, "--no-tags", env=env)
    folder = machine.project.root.parent
    settings = Settings.from_environment({"HOME": str(folder)}, cache=folder / "verifier")
    return Release(machine, open_published(f"{to}@{done['digest']}", Workspace.of(settings)))


def tampered(image: Image, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Image:
    """The image that somebody else pushed: manifest and config are valid, and say something else."""
    manifest, config = json.loads(image.manifest), json.loads(image.config)
    change(manifest, config)
    text = canonical_json(config)
    manifest["config"] = Descriptor.of(image.config_descriptor.media_type, text).to_json()
    data = canonical_json(manifest)
    descriptor = Descriptor.of(image.manifest_descriptor.media_type, data)
    return described_image(data, descriptor, lambda _: text, "theirs")


def test_equal(release: Release) -> None:
    """The same lock, recipe and base become the same manifest; what the project has since does not count."""
    for path in (release.machine.project.environment, release.machine.project.lock):
        path.unlink()
    release.machine.project.recipe.write_text("nothing: of this counts\n")
    found = release.rebuild()
    assert found.equal and not found.problem and found.layers == found.config == found.causes == ()


@pytest.mark.parametrize("text", ["variables: {MORE: '1'}\n", "dependencies: [\n"], ids=["other", "damaged"])
def test_other_environment(release: Release, text: str) -> None:
    """The environment file of another month, which the recipe of this image does not fit."""
    release.machine.project.environment.write_text(text)
    found = release.rebuild()
    assert found.equal, found


def test_variables(release: Release) -> None:
    """A recipe that others signed sends no variable to a host that this project does not name."""
    machine, url = release.machine, "https://host.example/$HOME"
    lock, data = (release.published.attached(kind) for kind in (LOCK, PROVENANCE))
    assert lock is not None and data is not None
    value = json.loads(data)
    parameters = value["predicate"]["buildDefinition"]["externalParameters"]
    parameters["recipe"]["pip"]["find_links"].append(url)
    work, root = release.published.work, machine.project.root
    found = rebuild(release.published.image, lock, json.dumps(value).encode(), root, work)
    assert found.problem == f"recipe tiny of this project does not name {url}"
    edit(machine.project.recipe, pip={"find_links": ["wheels", url]})
    assert rebuild(release.published.image, lock, json.dumps(value).encode(), root, work).equal


def test_sif(release: Release) -> None:
    """A SIF is built again, too; its digest is that of the artifact's layer."""
    edit(release.machine.project.recipe, format="sif")
    sif = publish(release.machine, release.published.reference.partition("@")[0] + "-sif")
    assert sif.rebuild().equal
    (release.machine.project.root / "train.py").write_text("print('untrained')\n")
    found = sif.rebuild()
    (layer,) = found.layers
    assert layer.name == "tiny.sif" and layer.expected == sif.published.image.layers[0].descriptor.digest
    assert found.config == () and not found.equal


def test_tampered(release: Release) -> None:
    """A layer and a config of somebody else are named, with both digests."""

    def layer(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        manifest["layers"][-1]["digest"] = config["rootfs"]["diff_ids"][-1] = "sha256:" + "e" * 64

    def environment(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        config["config"]["Env"].append("LD_PRELOAD=/evil.so")

    found = release.rebuild(tampered(release.published.image, layer))
    ours = release.published.image.layers[-1].descriptor.digest
    assert not found.equal and found.layers == (Difference(FILES, "sha256:" + "e" * 64, ours),)
    assert found.config == ()
    found = release.rebuild(tampered(release.published.image, environment))
    assert not found.equal and found.layers == ()
    (value,) = found.config
    assert value.name.startswith("config.Env[") and (value.expected, value.found) == (
        "LD_PRELOAD=/evil.so",
        "",
    )


def test_changed_file(release: Release) -> None:
    """Files of the project are not attached: the layer and the file are named."""
    (release.machine.project.root / "train.py").write_text("print('untrained')\n")
    found = release.rebuild()
    assert not found.equal and [one.name for one in found.layers] == [FILES]
    assert any("train.py" in cause for cause in found.causes)


@pytest.mark.parametrize("part", ["base", "package", "file", "wheel"])
def test_missing(release: Release, channel: Path, storage: Path, part: str) -> None:
    """What is gone is named: the base in its registry, a package at its address, files of the project."""
    root = release.machine.project.root
    gone = {
        "base": storage,
        "package": channel / "linux-64",
        "file": root / "train.py",
        "wheel": root / "wheels",
    }
    named = {"base": "rebuild/os", "package": ".conda", "file": "train.py", "wheel": "pure 1.0"}
    path = gone[part]
    path.rename(path.with_name("gone"))
    found = release.rebuild()
    assert not found.equal and found.found == "" and named[part] in found.problem


def test_debian(cpu: Builder, tmp_path: Path) -> None:
    """Of a real environment the base is made again, and Python's modules are compiled again."""
    to = f"oci:{tmp_path / 'there'}"
    done = cpu.json("publish", "cpu", "--to", to, "--no-tags")
    settings = Settings.from_environment(cache=tmp_path / "verifier")
    published = open_published(f"{to}@{done['digest']}", Workspace.of(settings))
    lock, statement = (published.attached(kind) for kind in (LOCK, PROVENANCE))
    assert lock is not None and statement is not None
    found = rebuild(published.image, lock, statement, cpu.root, published.work)
    assert found.equal, found
