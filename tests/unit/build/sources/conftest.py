"""Settings, a store, a repository and servers for the tests of sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from builder.build.sources import SourceTree, open_source
from builder.core.model import LockedSource
from builder.core.progress import QUIET, Reporter
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.lock.spec import SourceSpec
from tests.support.fileserver import Server
from tests.support.gitserver import GitServer, Repo

Open = Callable[..., AbstractContextManager[SourceTree]]


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The settings of pip and git, netrc and proxies of this machine have no influence."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "GIT_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def opened(tmp_path: Path, settings: Settings) -> Open:
    """Opens a source of the project ``tmp_path / "project"``."""

    def open_it(
        spec: SourceSpec,
        pinned: LockedSource | None = None,
        settings: Settings = settings,
        reporter: Reporter = QUIET,
    ) -> AbstractContextManager[SourceTree]:
        return open_source(
            spec, tmp_path / "project", Workspace(settings, Store(settings.cache), reporter), pinned=pinned
        )

    return open_it


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository of a package, served as ``/tool``."""
    repo = Repo(tmp_path / "served/tool")
    repo.commit(pyproject_toml="[project]\nname='tool'\n", tool__init_py="")
    return repo


@pytest.fixture
def git_server(tmp_path: Path) -> Iterator[GitServer]:
    server = GitServer(tmp_path / "served")
    yield server
    server.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
