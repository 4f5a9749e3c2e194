"""A server, settings and a store for the tests of fetching."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

import builder.build.fetch.download
from builder.core.model import LockedPackage
from builder.core.progress import Reporter
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from tests.support.fileserver import Server

#: 640 kB without repeated parts.
DATA = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(20_000))


class PackageServer(Server):
    """A server whose files have the content DATA unless a test says otherwise."""

    def put(self, path: str, data: bytes = DATA) -> str:
        return super().put(path, data)


@pytest.fixture
def server():
    server = PackageServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch, tmp_path):
    """The pip configuration, netrc and proxies of this machine have no influence."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.fixture
def quick(monkeypatch):
    """Short pauses between attempts."""
    monkeypatch.setattr(builder.build.fetch.download, "pause", lambda error, tries: 0.01)


@pytest.fixture
def store(settings):
    return Store(settings.cache)


def package(url: str, data: bytes = DATA, manager="conda", **values) -> LockedPackage:
    values.setdefault("sha256", hashlib.sha256(data).hexdigest())
    return LockedPackage("some-package", "1.0", manager, "linux-64", url, **values)


def offline(settings: Settings) -> Settings:
    return replace(settings, offline=True)


def mirrored(settings: Settings, *mirrors: tuple[str, str]) -> Settings:
    return replace(settings, mirrors=mirrors)


def partials(store: Store) -> list[Path]:
    return list((store.root / "partial").glob("*"))


class Notes(Reporter):
    """A reporter that records."""

    def __init__(self) -> None:
        self.bytes, self.totals, self.doings, self.warnings = 0, [], [], []

    def start(self, task, total=None, unit="B"):
        self.totals.append(total)

    def advance(self, task, amount):
        self.bytes += amount

    def doing(self, task, what):
        self.doings.append(what)

    def warn(self, message):
        self.warnings.append(message)
