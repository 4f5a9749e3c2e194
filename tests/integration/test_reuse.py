"""A machine with an empty cache takes layers from the published image, and an attacker who may push.

Each attack is a program against docker-registry and against go-containerregistry's registry.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zstandard

from builder.deliver.publishing.release import LAYERS
from tests.integration.conftest import Builder, keep_base, new_project
from tests.support import parts
from tests.support.machine import Machine
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project, whole
from tests.support.releases import Attacker
from tests.support.signkeys import make_pair
from tests.support.wheels import make_wheel

pytestmark = [pytest.mark.registry, pytest.mark.usefixtures("own_settings")]


@dataclass(frozen=True)
class Place:
    """A project whose image is published, and then one of its packages changed."""

    project: TinyProject
    host: str
    repository: str
    first: str
    """The digest of the published image."""
    honest: str
    """The digest of the changed image, built without reuse."""

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"

    @property
    def attacker(self) -> Attacker:
        return Attacker(self.host, self.repository, self.project.root.parent / "attacker")

    @property
    def record(self) -> dict[str, Any]:
        """What is attached to the published image."""
        layers = self.artifact["layers"]
        text = zstandard.ZstdDecompressor().stream_reader(self.attacker.read(layers[0])).read()
        value: dict[str, Any] = json.loads(text)
        return value

    @property
    def artifact(self) -> dict[str, Any]:
        tag = self.first.replace(":", "-")
        try:
            listed = self.attacker.get(tag)["manifests"]
        except Exception:  # a registry with a list of referrers has no such tag
            found = self.attacker.client.manifests.get_referrers(self.repository, self.first)
            listed = [one.to_json() for one in found or ()]
        (digest,) = [one["digest"] for one in listed if one["artifactType"] == LAYERS]
        return self.attacker.get(digest)

    def replace(self, value: Any) -> None:
        """Attaches another record, newer than all."""
        data = value if isinstance(value, bytes) else zstandard.compress(json.dumps(value).encode())
        self.attacker.attach(self.first, LAYERS, data)

    def fresh(self, name: str = "fresh") -> Machine:
        """A machine with an empty cache, and the project in another folder."""
        folder = self.project.root.parent / name
        shutil.copytree(self.project.root, folder / "project")
        return Machine(TinyProject(folder / "project", folder / "cache"))


def publish(machine: Machine, *more: str) -> dict[str, Any]:
    done = machine.json("publish", "tiny", "--smoke", "auto", *more)
    return done[0] if isinstance(done, list) else done


@pytest.fixture(scope="module")
def prepared(module_folder: Path) -> tuple[TinyProject, Path, str]:
    """A project, its lock with one package changed, and the digest of that image without reuse."""
    channel = tiny_channel(module_folder / "channel", bulk=1 << 12)
    project = tiny_project(module_folder, channel.as_uri())
    edit(project.recipe, smoke={"none": "it has no Python"})
    machine = Machine(project)
    machine.run("lock", "tiny")
    first = project.lock.read_bytes()
    make_wheel(project.root / "wheels", "pure", "1.1", files={"pure.py": "x = 2\n"})
    machine.run("lock", "tiny", "--update", "pure")
    honest = machine.json("build", "tiny")["digest"]
    newer = module_folder / "newer.lock.yml"
    newer.write_bytes(project.lock.read_bytes())
    project.lock.write_bytes(first)
    return project, newer, honest


@pytest.fixture
def place(host: str, prepared: tuple[TinyProject, Path, str], tmp_path: Path) -> Place:
    made, newer, honest = prepared
    shutil.copytree(made.root, tmp_path / "project")
    project = TinyProject(tmp_path / "project", made.cache)
    repository = f"reuse/{tmp_path.name.replace('_', '-').strip('-')}"
    edit(project.recipe, registry={"host": host, "repository": repository, "reuse": True})
    first = publish(Machine(project))["digest"]
    shutil.copy(newer, project.lock)
    return Place(project, host, repository, first, honest)


@pytest.fixture
def no_channel(prepared: tuple[TinyProject, Path, str]) -> Iterator[None]:
    """No conda package can be read."""
    channel = prepared[0].root.parent / "channel"
    channel.rename(channel.with_name("gone"))
    yield
    channel.with_name("gone").rename(channel)


def records(cache: Path) -> list[str]:
    """The records of layers and packages that count for every build."""
    found = [path for name in ("layers", "index") for path in (cache / name).glob("*.json")]
    return [path.name for path in found if not path.name.startswith("base-libraries")]


def log_of(machine: Machine) -> str:
    """What the last command of a machine logged about layers of packages."""
    *_, newest = sorted((machine.project.cache / "logs").iterdir())
    return "\n".join(
        line for line in newest.read_text().splitlines() if "builder.formats.layers.build" in line
    )


@pytest.mark.usefixtures("no_channel")
def test_fresh_machine(place: Place) -> None:
    machine = place.fresh()
    done = publish(machine, "--only", "candidate")
    assert done["digest"] == place.honest
    assert done["push"]["blobs_sent"] <= 5, "the layer that changed, the prefix, the files, the config"
    again = place.fresh("again")
    assert again.json("build", "tiny")["digest"] == place.honest, "with all layers in dist/"
    assert not records(again.project.cache), "what a record says stays apart"


@pytest.mark.usefixtures("no_channel")
def test_named_image(place: Place) -> None:
    """``--reuse`` needs no key in the recipe, and takes any image; the key may name one, too."""
    machine = place.fresh()
    registry = {"host": place.host, "repository": f"{place.repository}-new"}
    edit(machine.project.recipe, registry=registry)
    built = machine.json("build", "tiny", "--reuse", f"{place.name}:latest")
    assert built["digest"] == place.honest
    error = machine.run("build", "tiny", "--reuse", "latest", check=False)
    assert error.returncode == 2 and "write HOST/REPOSITORY:TAG" in error.stderr
    missing = place.fresh("missing").run("build", "tiny", "--reuse", f"{place.name}:none", check=False)
    assert f"no image with a record of layers at {place.name}:none" in missing.stderr
    other = place.fresh("other")
    edit(other.project.recipe, registry={**registry, "reuse": f"{place.name}:latest"})
    assert publish(other)["digest"] == place.honest


@pytest.mark.usefixtures("no_channel")
def test_nonsense(place: Place) -> None:
    """A record of nonsense that somebody attaches does not hide the older one."""
    place.replace(b"no zstd")
    assert place.fresh().json("build", "tiny")["digest"] == place.honest


def swapped(place: Place) -> dict[str, Any]:
    """Another key for a layer of the image: the record says that a package is in another's layer."""
    value = place.record
    names = [n for n, r in value["records"].items() if n.startswith("layers/") and "diff_id" in r]
    first, second, *_ = names
    of = value["records"]
    of[first], of[second] = of[second], of[first]
    return value


def foreign(place: Place) -> dict[str, Any]:
    """Layers that the image does not have, but the repository."""
    evil = place.attacker.image().layers[0]
    place.attacker.push(place.attacker.image())
    value = place.record
    for record in value["records"].values():
        if isinstance(record, dict) and "diff_id" in record:
            record.update(descriptor=evil.descriptor.to_json(), diff_id=evil.diff_id)
    return value


def test_layers_of_others(place: Place) -> None:
    """Only layers of the image are taken."""
    place.replace(foreign(place))
    machine = place.fresh()
    assert machine.json("build", "tiny")["digest"] == place.honest
    assert " 0 of them in the cache" in log_of(machine)


def test_key_of_another_layer(place: Place) -> None:
    """Who trusts a repository gets what is written there, and no other build on this machine does."""
    place.replace(swapped(place))
    machine = place.fresh()
    done = publish(machine, "--only", "candidate")
    assert done["digest"] != place.honest, "the attack works where the recipe accepts it"
    edit(machine.project.recipe, registry={"host": place.host, "repository": place.repository})
    assert machine.json("build", "tiny")["digest"] == place.honest


@pytest.mark.parametrize("attack", [swapped, foreign], ids=["swapped", "foreign"])
def test_without_key(place: Place, attack: Callable[[Place], dict[str, Any]]) -> None:
    """With a policy only the record counts that a signature covers."""
    root = place.project.root
    make_pair(root / "recipes", "team")
    (root / "recipes/_policy.yaml").write_text("keys: [team.pub]\nrequire: [sbom, provenance]\n")
    edit(place.project.recipe, registry={"host": place.host, "repository": place.repository})
    sign = ["--sign", str(root / "recipes/team.key"), "--force"]
    unsigned = place.fresh("unsigned").run("build", "tiny")
    assert "is reused: " in unsigned.stderr and "no signature" in unsigned.stderr
    machine = place.fresh("signer")
    honest = publish(machine, *sign)
    assert honest["digest"] == place.honest
    signed = Place(place.project, place.host, place.repository, honest["digest"], place.honest)
    signed.replace(attack(signed))
    victim = place.fresh("victim")
    assert victim.json("build", "tiny")["digest"] == place.honest
    assert "made" not in log_of(victim), "the signed record counts, and it is enough"


#: Runs a command that kills itself before the n-th time that it gives a file its name.
_KILLED = """
import os, signal, sys
left = int(sys.argv.pop(1))
def hook(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from builder.__main__ import main
main()
"""


@pytest.mark.parametrize("host", ["distribution"], indirect=True)
def test_killed(place: Place) -> None:
    """What a killed build leaves names no layer that is missing, with and without reuse."""
    machine = place.fresh()
    project = machine.project
    for count in (2, 8, 24):
        command = [sys.executable, "-c", _KILLED, str(count), "--project", str(project.root), "build", "tiny"]
        env = {**project.variables(), "PYTHONPATH": str(parts.CLONE)}
        subprocess.run(command, env=env, capture_output=True, check=False)
        copy = place.fresh(f"plain{count}")
        shutil.copytree(project.cache, copy.project.cache)
        edit(copy.project.recipe, registry={"host": place.host, "repository": place.repository})
        assert copy.json("build", "tiny")["digest"] == place.honest
    assert machine.json("build", "tiny")["digest"] == place.honest
    whole(project.root / "dist", place.honest)


def test_modules(base_cache: Path, registry: parts.Registry, tmp_path: Path) -> None:
    """Modules of a changed package are compiled without the base and without archives of Python.

    Those of another package in its group are taken from the published layer, without its archive.
    """
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "pure", "1.0", files={"pure.py": "x = 1\n"})
    large = {"large/__init__.py": "y = 1\n", "large/data.bin": os.urandom(5 << 20)}
    archive = make_wheel(wheels, "large", "1.0", files=large)
    registry = {
        "host": registry.host,
        "repository": f"modules/{tmp_path.name.strip('-_').replace('_', '-')}",
        "reuse": True,
    }
    project = new_project(tmp_path / "first", "cpu")
    text = "dependencies: [python=3.11, pip, {pip: [large, pure]}]\nchannels: [conda-forge, nodefaults]\n"
    (project / "environments/cpu.yml").write_text(text)
    edit(
        project / "recipes/cpu.yaml",
        registry=registry,
        layers={"groups": 1},
        pip={"find_links": [str(wheels)]},
        smoke={"none": "x"},
    )
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    first = Builder(project, keep_base(base_cache, tmp_path / "cache"))
    first.run("lock", "cpu", env=env)
    first.run("publish", "cpu", env=env)
    make_wheel(wheels, "pure", "1.1", files={"pure.py": "x = 2\n"})
    first.run("lock", "cpu", "--update", "pure", env=env)
    archive.unlink()
    shutil.copytree(project, tmp_path / "second")
    fresh = Builder(tmp_path / "second", tmp_path / "empty")
    done = fresh.json("publish", "cpu", "--only", "candidate", env=env)
    assert done["digest"] == first.json("build", "cpu", env=env)["digest"]
    layers = sum(path.stat().st_size for path in (fresh.cache / "blobs/sha256").glob("*"))
    assert layers < 20 << 20, "Python that compiles, not the base and not the image"
