from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.bytecode import compile as compile_module
from builder.build.bytecode.compile import CompileJob
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from tests.support.thispython import ThisPython


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The cache of :func:`settings`, empty."""
    return Store(tmp_path / "cache")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings without the variables of this machine."""
    return Settings.from_environment({"HOME": str(tmp_path), "BUILDER_CACHE": str(tmp_path / "cache")})


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of this machine names a proxy."""
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme}_proxy".upper(), raising=False)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> ThisPython:
    """This Python compiles, in place of one in a container."""
    python = ThisPython()
    monkeypatch.setattr(compile_module, "make_runtime", lambda source: (None, ""))
    monkeypatch.setattr(CompileJob, "run", lambda job, *args: python.run(job, *args))
    return python
