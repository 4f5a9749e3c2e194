"""Wheels for the glibc of a base that no table knows: read from its files, and recorded in the lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.store.blobs import Store
from builder.formats.oci.layout import write_layout
from builder.lock.file import read_lock
from tests.support.cli import Cli
from tests.support.image_kit import image, layer, member
from tests.support.project import TinyProject, edit
from tests.support.wheels import make_wheel


@pytest.fixture
def project(tiny: TinyProject) -> TinyProject:
    """A project whose wheel ``pure`` has a version for glibc 2.39."""
    make_wheel(tiny.root / "wheels", "pure", "2.0", tag="py3-none-manylinux_2_39_x86_64", purelib=False)
    edit(tiny.recipe, virtual_packages={})
    return tiny


def write_base(project: TinyProject, version: str) -> None:
    """Give the project a base with this glibc."""
    store = Store(project.root.parent / f"store-{version}")
    text = f"GNU C Library (GNU libc) stable release version {version}.".encode()
    made = image(store, layer(store, member("usr/lib64/libc.so.6", text)))
    write_layout(made, project.root / "base", "latest", store)


def locked(lock: Path) -> tuple[str, str]:
    """The version of ``pure``, and the recorded glibc of the base."""
    found = read_lock(lock)
    [version] = [package.version for package in found.packages if package.name == "pure"]
    return version, found.record.inputs.get("base-glibc", "")


def test_read(do: Cli, project: TinyProject) -> None:
    """The lock is fresh without another look at the base. A base that is pinned again may be older."""
    write_base(project, "2.41")
    result = do("lock", "tiny")
    assert result.code == 0 and "glibc 2.41 of the base" in result.err
    assert locked(project.lock) == ("2.0", "2.41") and do("lock", "--check").code == 0
    assert do("lock", "tiny", "--update", "pure").code == 0 and locked(project.lock) == ("2.0", "2.41")
    write_base(project, "2.34")
    assert do("lock", "tiny", "--update-base").code == 0 and locked(project.lock) == ("1.0", "2.34")
    assert do("lock", "--check").code == 0


def test_declared(do: Cli, project: TinyProject) -> None:
    """The recipe's own value wins, and such a lock records nothing of the base."""
    write_base(project, "2.41")
    edit(project.recipe, virtual_packages={"__glibc": "2.36"})
    assert do("lock", "tiny").code == 0 and locked(project.lock) == ("1.0", "")
    edit(project.recipe, virtual_packages={})
    assert "virtual packages changed" in do("lock", "--check").out


def test_unknown(do: Cli, project: TinyProject) -> None:
    """A base without glibc is named; the lock is for glibc 2.28, as one of an earlier builder."""
    result = do("lock", "tiny")
    assert "oci:base has no glibc" in " ".join(result.err.split())
    assert locked(project.lock) == ("1.0", "") and do("lock", "--check").code == 0
