"""Power is cut while builder publishes, and right after it: on a real ext4, which then is mounted again.

An ext4 that is shut down without a flush of its journal has what a disk has after a power loss.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import BuilderError
from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.formats.oci.layout import list_tags, read_layout, write_layout
from tests.support.disk import PowerDisk, power_disk
from tests.support.image_kit import image, layer, member

pytestmark = pytest.mark.root

#: What ext4 does by default, and the mode in which names are on the disk long before the data.
OPTIONS = ["", "data=writeback,nodelalloc"]
#: Renames and syncs of one publish, and more: power is cut at each of them.
MOMENTS = 24


@pytest.fixture(params=OPTIONS, ids=["ordered", "writeback"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path / "disk", request.param) as disk:
        yield disk


def new_image(store: Store, number: int) -> Image:
    """An image with a layer of its own, of 200 kB."""
    return image(store, layer(store, member(f"file-{number}", os.urandom(200_000))))


def whole(dist: Path, tag: str) -> str:
    """The digest of a tag's image, of which every byte is right."""
    found = read_layout(dist, tag)
    for one in found.layers:
        assert one.path is not None
        assert sha256_file(one.path) == one.descriptor.digest, f"{tag} has a torn layer"
    return found.digest


@pytest.mark.parametrize("where", ["same disk", "other disk"])
def test_after_publishing(disk: PowerDisk, tmp_path: Path, where: str) -> None:
    """Every tag names a whole image after a power loss, the one that was just published too."""
    cache = disk.path / "cache" if where == "same disk" else tmp_path / "cache"
    dist, store, expected = disk.path / "dist", Store(cache), {}
    for month in ("24.02", "24.03", "24.04"):
        made = new_image(store, int(month[-1]))
        for tag in (month, "latest"):
            write_layout(made, dist, tag, store)
            expected[tag] = made.digest
    disk.commit_names()
    disk.cut_power()
    disk.restart()
    assert list_tags(dist) == expected
    assert {tag: whole(dist, tag) for tag in expected} == expected


@pytest.mark.parametrize("journal", ["committed", "not committed"])
def test_while_publishing(disk: PowerDisk, monkeypatch: pytest.MonkeyPatch, journal: str) -> None:
    """Power is cut at every rename and every sync: the old tag stays whole, the new one is whole or absent.

    Publishing again makes it whole.
    """
    dist, store = disk.path / "dist", Store(disk.path / "cache")
    write_layout(new_image(store, 0), dist, "old", store)
    old, published = whole(dist, "old"), 0
    for moment in range(MOMENTS):
        made = new_image(Store(disk.path / "cache"), moment + 1)
        with monkeypatch.context() as patch:
            cut_at(moment, disk, patch, commit=journal == "committed")
            try:
                write_layout(made, dist, "new", Store(disk.path / "cache"))
                published += 1
            except (OSError, BuilderError):
                assert not disk.has_power
        disk.restart()
        assert whole(dist, "old") == old
        if "new" in list_tags(dist):
            whole(dist, "new")
    assert 0 < published < MOMENTS, "some moments are before the end of a publish, and some after it"
    again = new_image(Store(disk.path / "cache"), 0)
    write_layout(again, dist, "new", Store(disk.path / "cache"))
    assert whole(dist, "new") == again.digest


def cut_at(moment: int, disk: PowerDisk, patch: pytest.MonkeyPatch, *, commit: bool) -> None:
    """Cuts the power before the nth rename or sync; ``commit``: after all names so far got to the disk."""
    left = [moment]
    sync, rename = os.fsync, Path.replace

    def count() -> None:
        left[0] -= 1
        if left[0] == -1:
            patch.undo()
            if commit:
                disk.commit_names()
            disk.cut_power()

    def counted_sync(fd: int) -> None:
        count()
        sync(fd)

    def counted_rename(path: Path, target: Path) -> Path:
        count()
        return rename(path, target)

    patch.setattr(os, "fsync", counted_sync)
    patch.setattr(Path, "replace", counted_rename)
