"""Images and containers of builder in the storage of an engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.build.run import leftovers
from builder.build.run.leftovers import is_left_behind, remove_loaded
from builder.build.run.storage import Storage
from builder.core.model import Image
from builder.core.store.temporary import temporary_name
from tests.support.images import make_layer, make_test_image

ELSEWHERE = f"blob-{'0' * 16}-1-{'0' * 16}"


class Engine(Storage):
    """An engine in memory."""

    program = "docker"

    def __init__(self) -> None:
        self.images: dict[str, list[str]] = {}
        self.loads = 0
        self.containers: list[str] = []

    def names(self, image_id: str) -> list[str] | None:
        return self.images.get(image_id)

    def id_of(self, name: str) -> str:
        return next((image_id for image_id, names in self.images.items() if name in names), "")

    def load(self, image: Image, name: str) -> str:
        self.loads += 1
        self.images[self.image_id(image)] = []
        self.tag(self.image_id(image), name)
        return self.image_id(image)

    def tag(self, image_id: str, name: str) -> bool:
        for names in self.images.values():
            names[:] = [other for other in names if other != name]
        self.images[image_id].append(name)
        return True

    def remove_image(self, name: str) -> None:
        for image_id, names in list(self.images.items()):
            if name in (image_id, *names):
                names[:] = [other for other in names if other != name]
                if not names:
                    del self.images[image_id]

    def remove_container(self, name: str) -> None:
        self.containers.remove(name)

    def own_containers(self) -> list[str]:
        return list(self.containers)

    def own_images(self) -> list[str]:
        return [name for names in self.images.values() for name in names]


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path, "a")])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(leftovers, "_loaded", {})
    yield Engine()
    remove_loaded()


@pytest.fixture
def killed() -> str:
    """The tag of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return temporary_name().replace(f"-{os.getpid()}-", f"-{ended.pid}-")


def test_left_behind(killed: str) -> None:
    """Only what a process that ended has made is left behind; another host's may be in use."""
    assert is_left_behind(f"builder-run:{killed}") and is_left_behind(f"builder-run-{killed}")
    assert not is_left_behind(f"builder-run:{temporary_name()}")
    assert not is_left_behind(f"builder-run:{ELSEWHERE}")


def test_for_a_run(engine: Engine, image: Image) -> None:
    """An image is loaded once for a process, which removes only its own name; the user's own stays."""
    image_id = engine.provide(image)
    assert engine.provide(image) == image_id and engine.loads == 1
    remove_loaded()
    assert engine.images == {}
    engine.images[image_id] = ["builder-run:other"]  # loaded by another process
    assert engine.provide(image) == image_id and len(engine.images[image_id]) == 2
    remove_loaded()
    assert engine.images == {image_id: ["builder-run:other"]}
    engine.images[image_id] = ["mine:1"]
    assert engine.provide(image) == image_id and engine.images == {image_id: ["mine:1"]}


def test_kept(engine: Engine, image: Image, tmp_path: Path) -> None:
    """A target's image stays, without the one before, and is loaded only if it is not there."""
    first = engine.keep(image, "cpu")
    assert engine.keep(image, "cpu") == first and engine.loads == 1
    assert engine.images == {first: ["builder/cpu:latest"]}
    engine.images["other"] = ["mine:1"]
    second = engine.keep(make_test_image([make_layer(tmp_path, "b")]), "cpu")
    assert engine.images == {"other": ["mine:1"], second: ["builder/cpu:latest"]}


def test_killed_processes(engine: Engine, killed: str) -> None:
    """Containers and images of killed processes are removed; what is in use, or of others, stays."""
    own = temporary_name()
    engine.containers = ["mine", *(f"builder-run-{tag}" for tag in (killed, own, ELSEWHERE))]
    engine.images = {"a": [f"builder-run:{killed}", "mine:1"], "b": [f"builder-run:{own}"]}
    engine.remove_leftovers()
    assert engine.containers == ["mine", f"builder-run-{own}", f"builder-run-{ELSEWHERE}"]
    assert engine.images == {"a": ["mine:1"], "b": [f"builder-run:{own}"]}


def test_engine_that_ended(engine: Engine, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that fails does not keep the others from removing their images."""
    other = Engine()
    other.program = "podman"

    def fail(name: str) -> None:
        raise RuntimeError("the engine has ended")

    engine.provide(image)
    other.provide(image)
    monkeypatch.setattr(engine, "remove_image", fail)
    remove_loaded()
    assert other.images == {}
