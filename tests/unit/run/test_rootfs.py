"""Unpacked images in the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.errors import RunnerError
from builder.model import Image
from builder.run.identity import Identity
from builder.run.rootfs import cached_rootfs
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.images import make_layer, make_test_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path, "a")])


def test_each_owner_has_a_tree(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree for another user belongs to them, with all its folders and files."""
    given: set[str] = set()

    def chown(path: str | Path, uid: int, gid: int, **more: object) -> None:
        assert (uid, gid) == (4711, 4712)
        given.add(Path(path).name)

    monkeypatch.setattr(os, "chown", chown)
    settings = Settings.from_environment(cache=tmp_path / "cache")
    store = Store(settings.cache)
    own = cached_rootfs(image, settings, store)
    assert given == set() and (own / "data/a").is_file()
    theirs = cached_rootfs(image, settings, store, owner=Identity(4711, 4712))
    assert {"data", "a"} < given and len(given) == 3, "the root folder under its temporary name, too"
    assert own.name.endswith(f"-{os.getuid()}") and theirs.name.endswith("-4711")
    given.clear()
    assert cached_rootfs(image, settings, store, owner=Identity(4711, 4712)) == theirs and given == set()


def test_no_half_tree(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner cannot be changed, nothing is left in the cache."""

    def chown(*args: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    settings = Settings.from_environment(cache=tmp_path / "cache")
    with pytest.raises(RunnerError):
        cached_rootfs(image, settings, Store(settings.cache), owner=Identity(4711, 4712))
    assert list((settings.cache / "rootfs").iterdir()) == []
