"""Unpacked images in the cache."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from builder.build.run import rootfs
from builder.build.run.identity import Identity
from builder.build.run.rootfs import cached_rootfs
from builder.core.errors import ImageError, RunnerError
from builder.core.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, Layer, canonical_json
from builder.core.progress import Reporter
from builder.core.settings import Settings
from builder.core.store import unpacked
from builder.core.store.blobs import Store
from builder.core.store.unpacked import keep_last
from builder.core.workspace import Workspace
from builder.formats.trees.rootfs import unpack_layer
from tests.support.image_kit import layer, member
from tests.support.images import make_layer, make_test_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path, "a")])


def labelled(image: Image, target: str = "cpu") -> Image:
    """The image with the label of a target."""
    config = json.loads(image.config)
    config["config"] = {"Labels": {"org.builder.target": target}}
    data = canonical_json(config)
    manifest = canonical_json(
        {**json.loads(image.manifest), "config": Descriptor.of(OCI_CONFIG, data).to_json()}
    )
    return Image(
        image.layers, data, Descriptor.of(OCI_CONFIG, data), manifest, Descriptor.of(OCI_MANIFEST, manifest)
    )


def release() -> None:
    """Ends the use of all images, as the end of this process does."""
    for fd in unpacked._held.values():
        os.close(fd)
    unpacked._held.clear()


class Killer(Reporter):
    """Kills its process when the first bytes were unpacked."""

    def advance(self, task: str, amount: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def unpack_pairs(layers: list[Layer], target: str, settings: Settings) -> set[int]:
    """Unpacks an image of each two neighbours, one after the other; returns the sizes of all files."""
    sizes = set()
    for pair in pairwise(layers):
        tree = cached_rootfs(
            labelled(make_test_image([*pair]), target), Workspace(settings, Store(settings.cache))
        )
        sizes |= {(tree / "data" / one.title).stat().st_size for one in pair}
        release()
    return sizes


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return Settings.from_environment(cache=tmp_path / "cache")


@pytest.fixture
def unpacked_now(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the layers that are unpacked from now on."""
    titles: list[str] = []

    def note(one: Layer, *more: Any) -> None:
        titles.append(one.title)
        unpack_layer(one, *more)

    monkeypatch.setattr(rootfs, "unpack_layer", note)
    return titles


def layers_of(settings: Settings) -> set[str]:
    """The unpacked layers in the cache, by digest."""
    return {
        f"sha256:{path.name[:64]}" for path in (settings.cache / "rootfs").iterdir() if "." not in path.name
    }


def test_changed_package(tmp_path: Path, own: Settings, unpacked_now: list[str]) -> None:
    """An image with another layer unpacks that alone. Old images go, with the layers that only they have."""
    store = Store(own.cache)
    torch, script = make_layer(tmp_path, "torch"), make_layer(tmp_path, "script")
    versions = [make_layer(tmp_path, f"package-{n}") for n in range(3)]
    trees = []
    for version in versions:
        trees.append(
            cached_rootfs(labelled(make_test_image([torch, version, script])), Workspace(own, store))
        )
        release()
    assert unpacked_now == ["torch", "package-0", "script", "package-1", "package-2"]
    assert [tree.exists() for tree in trees] == [False, True, True], "two images of a target are kept"
    assert not (trees[2] / "data/package-1").exists()
    assert layers_of(own) == {one.descriptor.digest for one in (torch, script, *versions[1:])}


def test_second_target(tmp_path: Path, own: Settings, unpacked_now: list[str]) -> None:
    """Targets share the files of their common layers; whiteouts and replaced files are each image's own."""
    store = Store(own.cache)
    lower = make_layer(tmp_path, "a"), make_layer(tmp_path, "b")
    top = layer(store, member("data/a", b"other"), member("data/.wh.b", b""), title="top")
    first = cached_rootfs(labelled(make_test_image([*lower])), Workspace(own, store))
    second = cached_rootfs(make_test_image([*lower, top]), Workspace(own, store))
    third = cached_rootfs(labelled(make_test_image([lower[1], lower[0]])), Workspace(own, store))
    assert unpacked_now == ["a", "b", "top"]
    assert (second / "data/a").read_bytes() == b"other" and not (second / "data/b").exists()
    for name in ("data/a", "data/b"):
        assert (first / name).samefile(third / name) and (first / name).stat().st_size == 1000
    release()


def test_forged_layers(tmp_path: Path, own: Settings) -> None:
    """A foreign image that lists the target and the diff_ids of another shares no file with it."""
    store = Store(own.cache)
    genuine = make_layer(tmp_path, "a")
    evil = replace(make_layer(tmp_path, "a", size=10), diff_id=genuine.diff_id)
    theirs = cached_rootfs(labelled(make_test_image([evil])), Workspace(own, store))
    ours = cached_rootfs(labelled(make_test_image([genuine])), Workspace(own, store))
    assert [(tree / "data/a").stat().st_size for tree in (theirs, ours)] == [10, 1000]
    release()


def test_links_are_not_changed(tmp_path: Path, own: Settings) -> None:
    """No member of a layer changes a file that it shares with another image, or the host's."""
    store = Store(own.cache)
    outside = tmp_path / "outside"
    outside.mkdir()
    lower = layer(
        store,
        member("data/a", b"lower", mode=0o644),
        member("data/b", b"lower", mode=0o644),
        member("data/out", target=str(outside)),
        member("data/up", target="../" * 40 + str(outside)),
    )
    top = layer(
        store,
        member("data/a", b"top", mode=0o777),
        member("data/c", kind=tarfile.LNKTYPE, target="data/b", mode=0o777),
        member("data/out/x", b"top"),
        member("data/up/y", b"top"),
    )
    below = cached_rootfs(labelled(make_test_image([lower])), Workspace(own, store))
    tree = cached_rootfs(labelled(make_test_image([lower, top])), Workspace(own, store))
    for name in ("a", "b"):
        assert (below / "data" / name).read_bytes() == b"lower"
        assert (below / "data" / name).stat().st_mode & 0o777 == 0o644
    assert (tree / "data/a").read_bytes() == b"top" and not list(outside.iterdir())
    assert all((tree / "data" / name).samefile(below / "data/b") for name in ("b", "c"))
    release()


def test_same_layers(tmp_path: Path, own: Settings) -> None:
    """Images that differ in their configs only are one tree. Its layers count as used whenever it is."""
    store = Store(own.cache)
    image = make_test_image([make_layer(tmp_path, "a")])
    tree = cached_rootfs(image, Workspace(own, store))
    for path in (own.cache / "rootfs").iterdir():
        os.utime(path, (0, 0))
    assert cached_rootfs(make_test_image([*image.layers], "other"), Workspace(own, store)) == tree
    assert all(path.stat().st_mtime > 0 for path in (own.cache / "rootfs").iterdir())
    release()


def test_damaged_layer(tmp_path: Path, own: Settings) -> None:
    """After an error nothing is left of the layer and of the image; layers below stay for the next time."""
    store = Store(own.cache)
    whole = make_layer(tmp_path, "a")
    damaged = layer(store, member("b", b"1"), member("c", kind=b"Z"))
    with pytest.raises(ImageError):
        cached_rootfs(make_test_image([whole, damaged]), Workspace(own, store))
    assert [path.name[:64] for path in (own.cache / "rootfs").iterdir()] == [whole.descriptor.digest[7:]]


def test_killed_while_unpacking(tmp_path: Path, own: Settings) -> None:
    """What a killed process left of a layer is not taken for whole; the next process removes it."""
    big = make_layer(tmp_path, "big", 3 << 20)
    with processes() as pool, pytest.raises(BrokenProcessPool):
        pool.submit(cached_rootfs, make_test_image([big]), Workspace.of(own, Killer())).result()
    (half,) = (own.cache / "rootfs").iterdir()
    assert half.name.startswith(".") and (half / "0").exists()
    tree = cached_rootfs(make_test_image([big]), Workspace(own, Store(own.cache)))
    assert (tree / "data/big").stat().st_size == 3 << 20 and not half.exists()
    release()


def test_two_processes(tmp_path: Path, own: Settings) -> None:
    """Processes that unpack images with common layers at the same time, and remove old ones, do not disturb
    each other."""
    layers = [make_layer(tmp_path, str(number), 100_000) for number in range(20)]
    with processes() as pool:
        runs = [pool.submit(unpack_pairs, layers, target, own) for target in ("cpu", "gpu")]
        assert [run.result() for run in runs] == [{100_000}, {100_000}]
    keep_last(own.cache / "rootfs", "other", os.getuid())
    assert layers_of(own) == {one.descriptor.digest for one in layers[-3:]}, "those of the last two pairs"


def test_no_half_tree(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner cannot be changed, nothing is left in the cache."""

    def chown(*args: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    settings = Settings.from_environment(cache=tmp_path / "cache")
    with pytest.raises(RunnerError):
        cached_rootfs(image, Workspace(settings, Store(settings.cache)), owner=Identity(4711, 4712))
    assert list((settings.cache / "rootfs").iterdir()) == []
