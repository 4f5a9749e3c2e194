"""conda-lock's files through conda-lock's own parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.errors import LockError
from builder.lock.file import read_lock
from tests.unit.lock.formats.support import COMMIT, FILES, FORGE, MD5, A, B, names, read, written


def package(name: str, category: str = "main", platform: str = "linux-64", **more: Any) -> dict[str, Any]:
    """An entry as conda-lock writes it."""
    entry = {
        "name": name,
        "version": "1.0",
        "manager": "conda",
        "platform": platform,
        "dependencies": {},
        "url": f"{FORGE}/{platform}/{name}-1.0-h0_0.conda",
        "hash": {"md5": MD5, "sha256": A},
        "category": category,
        "optional": category != "main",
    }
    return entry | more


GIT = f"git+https://github.com/psf/requests.git@{COMMIT}"
REQUESTS = {
    "manager": "pip",
    "url": GIT,
    "hash": {"sha256": COMMIT},
    "source": {"type": "url", "url": GIT},
}
RICH = {"manager": "pip", "url": f"{FILES}/1/rich-1.0-py3-none-any.whl", "hash": {"sha256": B}}
#: As conda-lock 1 wrote it: without a hash that is one, and without ``optional``.
OSX = {
    "name": "__osx",
    "version": "11.0",
    "manager": "conda",
    "platform": "osx-64",
    "dependencies": {},
    "url": f"{FORGE}/noarch/__osx-11.0-0.tar.bz2",
    "hash": {"md5": "1" * 31 + "x"},
}


def lock_file(folder: Path, *packages: dict[str, Any], version: int = 1) -> Path:
    data = {
        "version": version,
        "metadata": {
            "content_hash": {"linux-64": "0" * 64},
            "channels": [{"url": "conda-forge", "used_env_vars": []}],
            "platforms": ["linux-64", "osx-64"],
            "sources": ["environment.yml"],
        },
        "package": list(packages),
    }
    return written(folder, "conda-lock.yml", yaml.safe_dump(data, sort_keys=False))


def test_categories(tmp_path: Path) -> None:
    """A dependency of main stays, though it carries another category; other platforms are not looked at."""
    path = lock_file(
        tmp_path,
        package("python", dependencies={"setuptools": ">=1", "__glibc": ""}),
        package("setuptools", "dev"),
        package("pytest", "dev", dependencies={"pluggy": ""}),
        package("pluggy", "dev"),
        package("pluggy", "test"),
        package("rich", **RICH),
        package("clang", platform="osx-64", hash={"md5": "x"}),
        OSX,
    )
    lock = read(path, python=None)
    assert sorted(names(lock)) == ["python 1.0", "rich 1.0", "setuptools 1.0"]
    assert lock.groups == ("dev", "main", "test") and lock.left_out == ("dev", "test")
    assert sorted(names(read(path, groups=["test"]))) == ["pluggy 1.0"]
    assert len(read(path, groups=["main", "dev"]).packages) == 5
    with pytest.raises(LockError, match="no category 'docs'"):
        read(path, groups=["docs"])


def test_git(tmp_path: Path) -> None:
    lock = read(lock_file(tmp_path, package("python"), package("requests", **REQUESTS)))
    (source,) = lock.sources
    assert names(lock) == ["python 1.0"]
    assert (source.kind, source.name, source.url, source.revision) == (
        "git",
        "requests",
        "https://github.com/psf/requests.git",
        COMMIT,
    )


def test_version_2(tmp_path: Path) -> None:
    entry = package("python")
    del entry["category"], entry["optional"]
    path = lock_file(tmp_path, entry | {"categories": ["main"]}, version=2)
    assert names(read(path)) == ["python 1.0"]
    assert [p.name for p in read_lock(path).for_platform("linux-64")] == ["python"]


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ([package("python", platform="osx-64")], "has no packages for linux-64"),
        ([package("python", version=1.0)], "conda-lock refuses this file"),
        ([package("python"), package("python")], "conda-lock refuses this file"),
        ([package("requests", **(REQUESTS | {"url": "git+https://h.example/x"}))], "has no commit"),
        ([package("python", hash={"md5": "x" * 32})], "is not a valid md5"),
    ],
)
def test_damage(tmp_path: Path, packages: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(LockError) as caught:
        read(lock_file(tmp_path, *packages))
    assert said in caught.value.message and caught.value.hint


def test_newer(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="version '7' of conda-lock's format"):
        read(lock_file(tmp_path, package("python"), version=7))


def test_fast_reader(tmp_path: Path) -> None:
    """builder's own reader passes over virtual packages and what is wrong with other platforms."""
    path = lock_file(
        tmp_path,
        package("python"),
        package("requests", **REQUESTS),
        package("clang", platform="osx-64", hash={"md5": "x"}, category="main"),
        OSX,
    )
    lock = read_lock(path)
    assert [p.name for p in lock.packages] == ["python", "requests"]
    assert lock.packages[1].sha256 is None and lock.packages[1].url == GIT
    with pytest.raises(LockError, match="package gcc: hash.md5"):
        read_lock(lock_file(tmp_path, package("gcc", hash={"md5": "x"})))
