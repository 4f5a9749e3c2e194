"""Unpacked images in the cache."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import RunnerError
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, Layer, canonical_json
from builder.run.identity import Identity
from builder.run.rootfs import cached_lower, cached_rootfs
from builder.settings import Settings
from builder.store import unpacked
from builder.store.blobs import Store
from tests.support.image_kit import layer, member
from tests.support.images import make_layer, make_test_image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path, "a")])


def labelled(image: Image) -> Image:
    """The image with the label of a target."""
    config = json.loads(image.config)
    config["config"] = {"Labels": {"org.builder.target": "cpu"}}
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


def files_layer(folder: Path, text: str) -> Layer:
    """The topmost layer: a script, and a file that replaces one of the lower layers."""
    store = Store(folder / "cache")
    return layer(
        store,
        member("app/train.py", text.encode()),
        member("data/a", b"replaced"),
        member("data/" + text, b""),
    )


def test_only_the_topmost_layer(tmp_path: Path) -> None:
    """An image with another script shares all files but those of the topmost layer, and has none of its."""
    settings = Settings.from_environment(cache=tmp_path / "cache")
    store = Store(settings.cache)
    lower = [make_layer(tmp_path, "a"), make_layer(tmp_path, "b")]
    trees = []
    for text in ("one", "two", "three"):
        image = labelled(make_test_image([*lower, files_layer(tmp_path, text)]))
        trees.append(cached_rootfs(image, settings, store))
        assert (trees[-1] / "app/train.py").read_text() == text
        release()
    one, two, three = trees
    assert not one.exists() and two.exists(), "two images of a target are kept"
    assert (two / "data/b").samefile(three / "data/b")
    assert (three / "data/a").read_text() == "replaced" and not (three / "data/two").exists()
    (shared,) = (settings.cache / "rootfs").glob("cpu.*.lower-*")
    assert (shared / "data/a").stat().st_size == 1000, "the replaced file is another one"
    assert sorted(p.name for p in (settings.cache / "rootfs").iterdir()) == sorted(
        [two.name, three.name, shared.name]
    )


def test_forged_layers(tmp_path: Path) -> None:
    """A foreign image that lists the target and the diff_ids of another shares no file with it."""
    settings = Settings.from_environment(cache=tmp_path / "cache")
    store = Store(settings.cache)
    genuine, top = make_layer(tmp_path, "a"), files_layer(tmp_path, "one")
    evil = replace(make_layer(tmp_path, "a", size=10), diff_id=genuine.diff_id)
    theirs = cached_rootfs(labelled(make_test_image([evil, top])), settings, store)
    ours = cached_rootfs(labelled(make_test_image([genuine, files_layer(tmp_path, "two")])), settings, store)
    assert theirs != ours
    for tree in (settings.cache / "rootfs").glob("cpu.*.lower-*"):
        assert (tree / "data/a").stat().st_size == (10 if _lower(tree) == _lower(theirs) else 1000)
    assert _lower(theirs) != _lower(ours)


def _lower(tree: Path) -> str:
    return tree.name.split(".")[1]


def test_links_are_not_changed(tmp_path: Path) -> None:
    """No member of the topmost layer changes a file that it shares with another tree, or the host's."""
    settings = Settings.from_environment(cache=tmp_path / "cache")
    store = Store(settings.cache)
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
    tree = cached_rootfs(labelled(make_test_image([lower, top])), settings, store)
    (shared,) = (settings.cache / "rootfs").glob("cpu.*.lower-*")
    for name in ("a", "b"):
        assert (shared / "data" / name).read_bytes() == b"lower"
        assert (shared / "data" / name).stat().st_mode & 0o777 == 0o644
    assert (tree / "data/a").read_bytes() == b"top"
    for name in ("b", "c"):
        assert (tree / "data" / name).samefile(shared / "data/b")
    assert not list(outside.iterdir())


def test_chain_of_steps(tmp_path: Path) -> None:
    """Each image of a chain, and the image with one more layer, link to the files of the one below."""
    settings = Settings.from_environment(cache=tmp_path / "cache")
    store = Store(settings.cache)
    owner = Identity(os.getuid(), os.getgid())
    layers = [make_layer(tmp_path, "a"), make_layer(tmp_path, "b"), make_layer(tmp_path, "c")]
    first = cached_lower(labelled(make_test_image(layers[:2])), settings, store, owner=owner)
    second = cached_lower(labelled(make_test_image(layers)), settings, store, owner=owner)
    whole = labelled(make_test_image([*layers, files_layer(tmp_path, "script")]))
    third = cached_rootfs(whole, settings, store)
    assert len({first, second, third}) == 3
    for name in ("data/a", "data/b"):
        assert (first / name).samefile(second / name)
    assert (second / "data/c").samefile(third / "data/c") and not (first / "data/c").exists()
    assert cached_lower(labelled(make_test_image(layers)), settings, store, owner=owner) == second
    assert len(list((settings.cache / "rootfs").iterdir())) == 3
    release()


def test_no_half_tree(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner cannot be changed, nothing is left in the cache."""

    def chown(*args: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    settings = Settings.from_environment(cache=tmp_path / "cache")
    with pytest.raises(RunnerError):
        cached_rootfs(image, settings, Store(settings.cache), owner=Identity(4711, 4712))
    assert list((settings.cache / "rootfs").iterdir()) == []
