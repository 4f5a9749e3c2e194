"""A fake registry and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.model import Image
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from tests.support.fakeregistry import FakeRegistry
from tests.support.images import make_layer, make_test_image


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """An image of five layers of different sizes."""
    return make_test_image([make_layer(tmp_path / "layers", f"l{i}", 1000 * (i + 1)) for i in range(5)])


@pytest.fixture
def waits() -> list[float]:
    """The waits between attempts, in seconds; nobody really waits."""
    return []


@pytest.fixture
def client(fake: FakeRegistry, waits: list[float]) -> Iterator[RegistryClient]:
    """A client that has reached the registry once; that request is not in ``fake.requests``."""
    with RegistryClient(fake.host, ANONYMOUS, sleep=waits.append) as client:
        client.manifests.head("a/b", "t")
        fake.requests.clear()
        yield client
