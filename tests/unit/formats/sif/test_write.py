"""SIFs written by builder: their files, their bytes, and what is made again."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

import builder.formats.sif.assign
import builder.formats.sif.partition
import builder.formats.sif.write
from builder.core.errors import ImageError
from builder.core.model import Compression
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Inline
from builder.formats.sif.partitions import MAX_OVERLAYS
from builder.formats.sif.read import open_sif, read_sif
from builder.formats.sif.singularity import FOLDER, container_environment, container_files
from builder.formats.sif.write import Layout
from builder.formats.trees.member import Kind
from builder.formats.trees.squashfs.reader import Squashfs
from tests.support import image_kit as kit
from tests.support.compare import compare_trees, image_tree
from tests.support.disk import flip
from tests.support.layers import random_layers
from tests.support.sif_place import Place, make_above_sif, partition_names


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> int:
    """The size of a large package, in bytes: the threshold is lowered, so that tests are fast."""
    monkeypatch.setattr(builder.formats.sif.assign, "LARGE", 1 << 20)
    return (1 << 20) + 1


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_same_files_as_image(place: Place, layout: Layout, compression: Compression) -> None:
    """A SIF has the files of its image, in both layouts and compressions."""
    image = place.image()
    sif = place.sif(image, layout=layout, compression=compression)
    assert compare_trees(image_tree(image, place.store), image_tree(sif, place.store)) == []
    tree = image_tree(sif, place.store)
    assert tree[""].mode == 0o751, "of the base, whatever lies above"
    assert not {"opt/conda/old", "opt/conda/bin/python"} & tree.keys()
    assert tree["opt/conda"].mode == 0o755
    assert tree["tmp"].mode == 0o1777
    assert tree["singularity"].target == ".singularity.d/runscript"
    expected = {
        "flat": ["root"],
        "layered": ["base", "bottom", "packages-groups-2", "packages-own-2", "top"],
    }
    assert partition_names(sif) == expected[layout]


def test_reproducible(tmp_path: Path) -> None:
    """The bytes depend on the image and the epoch, not on threads, cache or file name."""
    for layout in ("flat", "layered"):
        digests = set()
        for number, jobs in enumerate((1, 4)):
            one = Place(tmp_path / f"{layout}-{number}")
            sif = one.sif(
                one.image(), f"name-{number}.sif", layout, settings=replace(one.settings, jobs=jobs)
            )
            digests.add(sif.digest)
            assert sif.digest == open_sif(sif.path, Store(tmp_path / "elsewhere")).digest
        assert len(digests) == 1
    other = Place(tmp_path / "time")
    assert other.sif(other.image(), settings=replace(other.settings, epoch=1)).digest not in digests


def test_not_written_twice(place: Place) -> None:
    """A SIF that is there is left alone, unless somebody changed it."""
    image = place.image()
    sif = place.sif(image)
    before = sif.path.stat()
    (place.folder / "link.sif").hardlink_to(sif.path)  # as a build does, into dist
    assert place.sif(image) == sif
    assert sif.path.stat().st_ino == before.st_ino
    with sif.path.open("r+b") as f:  # somebody changes it
        f.seek(-1, os.SEEK_END)
        f.write(b"x")
    assert place.sif(image) == sif
    assert sif.path.stat().st_ino != before.st_ino


def test_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the partitions that are made, those of the cache, and a SIF that is up to date."""
    caplog.set_level("INFO", "builder.formats.sif")

    def messages() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name.startswith("builder.formats.sif")]

    image = place.image()
    sif = place.sif(image, layout="layered")
    names = partition_names(sif)
    made = [f"not in the cache: partition {name}; made sha256" for name in names]
    assert [x.rpartition(":")[0] for x in messages()[:5]] == made
    assert messages()[5:] == [f"writing {sif.path}: layered, 5 partitions"]
    caplog.clear()
    place.sif(image, layout="layered")
    found = [f"partition {name} is in the cache: sha256" for name in names]
    assert [x.rpartition(":")[0] for x in messages()[:5]] == found
    assert messages()[5:] == [f"{sif.path} has this content: it is not written again"]


def test_changed_package(place: Place, large: int) -> None:
    """A new version of a package makes its own partition again, and the one with the labels."""
    torch = place.package("pip torch 2.0", "torch", size=large)
    place.sif(place.image(torch), layout="layered")
    first = place.partition_records()
    assert len(first) == 6  # base, bottom, torch, numpy, zlib, top
    changed = place.image(torch, place.package("pip group 9: a", "new"))
    place.sif(changed, "b.sif", "layered")
    second = place.partition_records()
    assert sorted(second[name]["name"] for name in second.keys() - first.keys()) == [
        "packages-groups-2",
        "top",
    ]
    # numpy 2.0: its layer has the same stable name.
    image = place.image(torch)
    layers = [*image.layers[1:2], place.package("pip numpy 2.0", "numpy", b"2"), *image.layers[3:]]
    bumped = kit.image_above(kit.base(image.layers[0], env=["PATH=/usr/bin:/bin", "LANG=C.UTF-8"]), layers)
    sif = place.sif(bumped, "c.sif", "layered")
    third = place.partition_records()
    assert sorted(third[name]["name"] for name in third.keys() - second.keys()) == ["packages-own-2", "top"]
    assert compare_trees(image_tree(bumped, place.store), image_tree(sif, place.store)) == []
    assert first.items() <= third.items(), "nothing that is there is made again"


@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_forged_layers(place: Place, layout: Layout) -> None:
    """An image that lists the diff_ids of another one gets its own partitions."""
    genuine = place.package("pip numpy 1.0", "torch", b"genuine")
    evil = replace(place.package("pip numpy 1.0", "torch", b"evil"), diff_id=genuine.diff_id)
    place.sif(place.image(evil), layout=layout)
    image = place.image(genuine)
    sif = place.sif(image, "b.sif", layout)
    assert compare_trees(image_tree(image, place.store), image_tree(sif, place.store)) == []


@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_flipped_bit_in_a_partition(place: Place, layout: Layout) -> None:
    """A cached partition in which a bit has flipped is noticed when it is copied, and made again."""
    image = place.image()
    sif = place.sif(image, layout=layout)
    data = sif.path.read_bytes()
    sif.path.unlink()
    for record in place.partition_records().values():
        flip(place.store.path(record["digest"]))
        place.store = Store(place.store.root)  # another process, which has not hashed anything
        assert place.sif(image, layout=layout).path.read_bytes() == data
        assert place.store.rehash(place.store.path(record["digest"]), record["digest"])
        sif.path.unlink()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_flipped_bit_in_a_layer(place: Place, compression: str) -> None:
    """A layer in which a bit has flipped goes into no partition, also where the format has no checksum."""
    content = bytes(range(256)) * 50
    entry = Entry("etc/file", "file", size=len(content), content=Inline(content))
    one = make_layer([entry], "", Workspace(place.settings, place.store), compression=compression)  # type: ignore[arg-type]
    image = place.image(one)
    assert one.path is not None
    flip(one.path)
    place.store = Store(place.store.root)
    with pytest.raises(ImageError, match=f"{one.path.name} is corrupt") as e:
        place.sif(image)
    assert "run the command again" in e.value.hint
    assert not one.path.exists() and not (place.folder / "a.sif").exists()


@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_flipped_bit_in_a_base_sif(place: Place, layout: Layout) -> None:
    """A base SIF in which a bit has flipped since its digest was recorded is refused, and stays."""
    base = place.sif(place.image(), "base.sif", "layered")
    image = make_above_sif(place, base)
    flip(base.path)
    place.store = Store(place.store.root)
    with pytest.raises(ImageError, match=r"base\.sif is corrupt"):
        place.sif(image, "new.sif", layout, base=base)
    assert base.path.exists() and not (place.folder / "new.sif").exists()


def test_overlays_hide(place: Place) -> None:
    """An overlay partition hides what its layers hide of the base."""
    hidden = 0
    for seed in range(60):
        layers = random_layers(random.Random(seed), place.store)
        image = kit.image_above(kit.base(layers[0]), [replace(x, title="anything") for x in layers[1:]])
        sif = place.sif(image, f"{seed}.sif", "layered")
        assert partition_names(sif) == ["base", "top"]
        assert compare_trees(image_tree(image, place.store), image_tree(sif, place.store)) == [], (
            f"seed {seed}"
        )
        part = read_sif(sif.path).partitions[1]
        with Squashfs(sif.path, part.offset) as squashfs:
            hidden += sum(m.kind is Kind.WHITEOUT for m, _ in squashfs.members())
    assert hidden > 20


def test_compiled_modules_replace_records(place: Place) -> None:
    """A layer of compiled modules replaces files of packages, in whatever partition these are."""
    names = ("numpy", "scipy", "six", "torch")
    packages = [place.package(f"pip {name} 1.0", name) for name in names]
    pycs = [place.package(f"bytecode of pip {name} 1.0", name, b"new") for name in names]
    image = place.image(*packages, *pycs)
    sif = place.sif(image, layout="layered")
    assert {"bytecode-own-1", "bytecode-own-2"} & set(partition_names(sif))
    found = image_tree(sif, place.store)
    assert compare_trees(image_tree(image, place.store), found) == []
    older = place.image(*packages)
    assert compare_trees(image_tree(older, place.store), found) != [], "the records differ"


def test_sif_base(place: Place) -> None:
    """A SIF as a base: its files and variables stay, and a layered SIF copies its partition."""
    base = place.sif(place.image(env={"ROCM": "/opt/rocm", "PATH": "/opt/rocm/bin:/usr/bin"}), "base.sif")
    below = image_tree(base, place.store)
    image = make_above_sif(place, base, env={"MORE": "1"})
    trees = {}
    for layout in ("flat", "layered"):
        sif = place.sif(image, f"{layout}.sif", layout, base=base)
        tree = trees[layout] = image_tree(sif, place.store)
        assert tree["etc/base"] == below["etc/base"]
        assert tree["opt/conda/torch"].size == 1
        assert "opt/conda/old" not in tree
        env = container_environment(container_files(read_sif(sif.path).sources(FOLDER)))
        assert (env["ROCM"], env["MORE"]) == ("/opt/rocm", "1")
        assert env["PATH"] == "/opt/conda/bin:/opt/rocm/bin:/usr/bin"
    assert compare_trees(trees["flat"], trees["layered"]) == []
    # The base's partition is copied byte for byte.
    read, own = read_sif(place.folder / "layered.sif"), read_sif(base.path)
    assert own.partitions[0].size == read.partitions[0].size
    with base.path.open("rb") as a, (place.folder / "layered.sif").open("rb") as b:
        a.seek(own.partitions[0].offset)
        b.seek(read.partitions[0].offset)
        assert a.read(own.partitions[0].size) == b.read(own.partitions[0].size)


def test_layered_sif_base(place: Place) -> None:
    """The overlay partitions of a base SIF stay below those of the image."""
    base = place.sif(place.image(), "base.sif", "layered")
    image = make_above_sif(place, base)
    sif = place.sif(image, "b.sif", "layered", base=base)
    assert len(partition_names(base)) == 5
    assert partition_names(sif)[:5] == partition_names(base)
    assert len(partition_names(sif)) <= MAX_OVERLAYS + 1
    flat = place.sif(image, "c.sif", "flat", base=base)
    assert compare_trees(image_tree(flat, place.store), image_tree(sif, place.store)) == []
