"""The Python of a base image as a conda package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.fetch.packages import fetch_packages
from builder.build.fetch.venv import BasePython, locked_base_python, write_base_python
from builder.core.errors import FetchError
from builder.core.model import Fetched, Lock
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.conda_layout import python_of
from builder.formats.layers.entry import LinkContext
from builder.lock.file import write_lock
from tests.support.conda_reader import read
from tests.support.image_kit import settings

DEBIAN = BasePython("/usr/bin/python3.11", "3.11.2")
SITE = "/opt/venv/lib/python3.12/site-packages"
VENV = BasePython("/usr/bin/python3.12", "3.12", True, SITE)


@pytest.mark.parametrize(
    ("python", "platform", "url"),
    [
        (DEBIAN, "linux-64", "builder://base/usr/bin/python3.11/linux-64/python-3.11.2-venv_0.conda"),
        (VENV, "linux-aarch64", f"builder://base/usr/bin/python3.12/+{SITE}/linux-aarch64/python-3.12-site_0.conda"),
    ],
)  # fmt: skip
def test_fetched(tmp_path: Path, python: BasePython, platform: str, url: str) -> None:
    """A machine that has the lock alone makes the same package."""
    locked = locked_base_python(python, platform, tmp_path / "packages")
    assert (locked.url, locked.version, locked.manager) == (url, python.version, "conda")
    [fetched] = fetch_packages(
        [locked], Workspace(settings(tmp_path / "other"), Store(tmp_path / "other" / "cache"))
    )
    assert fetched.path.is_relative_to(tmp_path / "other")
    assert [p.suffix for p in fetched.path.parent.iterdir()] == [".conda"]


def test_read_by_conda_lock(tmp_path: Path) -> None:
    """conda-lock reads a lock with the package: docs/locking.md lets it render the lock for uv."""
    from conda_lock.lockfile import parse_conda_lock_file

    python = locked_base_python(DEBIAN, "linux-64", tmp_path)
    write_lock(Lock((python,), ("linux-64",)), tmp_path / "one.conda-lock.yml")
    (found,) = parse_conda_lock_file(tmp_path / "one.conda-lock.yml").package
    assert (found.url, found.hash.md5) == (python.url, python.md5)


def test_layout(tmp_path: Path) -> None:
    locked = locked_base_python(VENV, "linux-64", tmp_path)
    [path] = tmp_path.glob("*/*.conda")
    context = LinkContext("/opt/env", "3.12", "lib/python3.12/site-packages")
    found = read(Fetched(locked, path, 1), tmp_path, context)
    links = {name: entry.target for name, (entry, _) in found.items() if entry.kind == "symlink"}
    assert links == {
        "opt/env/bin/python": "python3.12",
        "opt/env/bin/python3": "python3.12",
        "opt/env/bin/python3.12": "/usr/bin/python3.12",
    }
    assert found["opt/env/pyvenv.cfg"][1].decode().splitlines() == [
        "home = /usr/bin",
        "include-system-site-packages = true",
        "version = 3.12",
        "executable = /usr/bin/python3.12",
    ]
    assert found["opt/env/lib/python3.12/site-packages/builder-base.pth"][1].decode() == f"{SITE}\n"


def test_free_threaded(tmp_path: Path) -> None:
    """The modules of a free-threaded Python are in a folder of their own."""
    python = replace(VENV, interpreter="/usr/bin/python3.13t", version="3.13.1")
    locked = locked_base_python(python, "linux-64", tmp_path)
    [path] = tmp_path.glob("*/*.conda")
    fetched = Fetched(locked, path, 1)
    assert python_of(fetched) == ("3.13", "lib/python3.13t/site-packages")
    found = read(fetched, tmp_path, LinkContext("/opt/env", *python_of(fetched)))
    assert found["opt/env/bin/python3.13"][0].target == "/usr/bin/python3.13t"
    assert "opt/env/lib/python3.13t/site-packages/builder-base.pth" in found


@pytest.mark.parametrize(
    "url",
    [
        "builder://base/linux-64/python-3.11.2-venv_0.conda",
        "builder://base/usr/../bin/python3.11/linux-64/python-3.11.2-venv_0.conda",
        "builder://base/usr/bin/a%20b/linux-64/python-3.11.2-venv_0.conda",
        "builder://base/usr/bin/python3.11/linux-64/python-3.11.2-other_0.conda",
        "builder://base/usr/bin/python3.11/linux-64/numpy-3.11.2-venv_0.conda",
        "builder://base/usr/bin/python3.11/osx-64/python-3.11.2-venv_0.conda",
    ],
)
def test_bad_url(tmp_path: Path, url: str) -> None:
    """A lock may contain anything."""
    with pytest.raises(FetchError, match="names no Python of a base image"):
        write_base_python(url, tmp_path)
    locked = replace(locked_base_python(DEBIAN, "linux-64", tmp_path), url=url)
    with pytest.raises(FetchError, match="names no Python of a base image"):
        fetch_packages([locked], Workspace(settings(tmp_path / "other"), Store(tmp_path / "other" / "cache")))
