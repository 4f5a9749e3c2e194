"""A fake registry and a client of it, for the tests of publishing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from tests.support.fakeregistry import FakeRegistry


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def client(fake: FakeRegistry) -> Iterator[RegistryClient]:
    with RegistryClient(fake.host, ANONYMOUS, sleep=lambda s: None) as client:
        yield client
