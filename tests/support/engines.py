"""Build requests for tests of engines, with packages that exist by name only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.build.engines.base import BuildRequest
from builder.core.model import Lock, LockedBase, LockedPackage
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe

HASH = "a" * 64


def package(
    name: str, manager: Any = "conda", version: str = "1.0", url: str = "", **more: Any
) -> LockedPackage:
    """A noarch package of conda-forge, or a wheel."""
    where = f"https://conda.anaconda.org/conda-forge/noarch/{name}-{version}-py_0.conda"
    if manager == "pip":
        where = f"https://files.example/{name}-{version}-py3-none-any.whl"
    return LockedPackage(name, version, manager, "linux-64", url or where, HASH, **more)


def request(tmp_path: Path, packages: Sequence[LockedPackage] = (), **recipe: Any) -> BuildRequest:
    """A request for target ``t``; ``recipe`` has further fields of the recipe."""
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    data: dict[str, Any] = {
        "name": "t",
        "base": "debian:bookworm",
        "environment": "environments/t.yml",
        "root": tmp_path,
    }
    made = Recipe.model_validate({**data, "source": tmp_path / "recipes/t.yaml", **recipe})
    lock = Lock(
        tuple(packages),
        ("linux-64",),
        base=LockedBase("debian:bookworm", f"sha256:{HASH}"),
        digest="sha256:lock",
        text=b"version: 1\n",
    )
    return BuildRequest(made, lock, Workspace(settings, Store(settings.cache)), lambda packages: [])
