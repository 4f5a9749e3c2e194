"""Small lock files of each format, written for these tests in the layout that the tools write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.lock.config.recipe import Recipe
from builder.lock.formats import ForeignLock, LockTarget, read_foreign

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
MD5 = "e" * 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FORGE = "https://conda.anaconda.org/conda-forge"
FILES = "https://files.example/packages"


def recipe(root: Path, **values: object) -> Recipe:
    """A recipe of a project, for a machine like RHEL 8."""
    given = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": root}
    given["virtual_packages"] = {"__glibc": "2.28"}
    return Recipe.model_validate({**given, **values})


def read(
    path: Path,
    *,
    platform: str = "linux-64",
    python: str | None = "3.11.9",
    groups: Sequence[str] = (),
    environment: str | None = None,
    glibc: int = 28,
) -> ForeignLock:
    """The lock as builder reads it for a machine like RHEL 8."""
    values = {"platform": platform, "groups": tuple(groups), "lock_environment": environment}
    values["virtual_packages"] = {"__glibc": f"2.{glibc}"}
    return read_foreign(path, LockTarget(recipe(path.parent, **values), python or ""))


def written(folder: Path, name: str, text: str) -> Path:
    """The path of a new file with this text."""
    path = folder / name
    path.write_text(text)
    return path


def names(lock: ForeignLock) -> list[str]:
    """``name version`` of all packages, in their order."""
    return [f"{package.name} {package.version}" for package in lock.packages]
