"""A fake registry and a client of it, a project and a build, for the tests of publishing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildResult
from builder.core.model import Lock, LockedBase, LockedPackage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.project import Project
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from builder.lock.config.recipe import Recipe
from tests.support.fakeregistry import FakeRegistry
from tests.support.images import make_layer, make_test_image, record_contents
from tests.support.reporters import Notes

PYTHON = LockedPackage(
    "python", "3.11.9", "conda", "linux-64", "https://c.example/python-3.11.9-0.conda", "a" * 64
)
LOCK = Lock((PYTHON,), ("linux-64",), digest="sha256:" + "d" * 64)
IMAGE_LOCK = "sha256:" + "c" * 64
SITE = {"title": "Tests", "runtime": {"kind": "podman"}, "slurm": {"account": "optional"}}


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def client(fake: FakeRegistry) -> Iterator[RegistryClient]:
    with RegistryClient(fake.host, ANONYMOUS, sleep=lambda s: None) as client:
        yield client


@pytest.fixture
def project(tmp_path: Path) -> Project:
    settings = Settings.from_environment({"HOME": str(tmp_path)}, cache=tmp_path / "cache")
    record_contents(Store(settings.cache))
    return Project(tmp_path, Workspace(settings, Store(settings.cache), Notes()))


def built(tmp_path: Path, **recipe: Any) -> BuildResult:
    """A build of a recipe with these keys."""
    values = {"name": "t", "base": "oci:b", "environment": "e.yml", "source": tmp_path / "t.yaml"}
    image = make_test_image([make_layer(tmp_path / "layers", "one")])
    made = Recipe.model_validate({**values, "root": tmp_path, **recipe})
    base = LockedBase("oci:b", "sha256:" + "e" * 64)
    return BuildResult(made, LOCK, base, image, image_lock=IMAGE_LOCK)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Returns what ``builder -v`` prints of this room. A command of an earlier test ends the propagation."""
    monkeypatch.setattr(logging.getLogger("builder"), "propagate", True)
    caplog.set_level(logging.INFO, "builder.deliver.publishing")
    room = "builder.deliver.publishing."
    return lambda: [record.message for record in caplog.records if record.name.startswith(room)]
