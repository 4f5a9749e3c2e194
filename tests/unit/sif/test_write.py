"""SIFs written by builder: their files, their bytes, and what is made again."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import builder.sif.assign
import builder.sif.check
import builder.sif.write
from builder.config.recipe import Compression
from builder.errors import ImageError
from builder.image.convert import image_tree
from builder.layers.compress import write_layer
from builder.layers.entry import Entry, Inline
from builder.settings import DEFAULT_EPOCH
from builder.sif.digests import remembered_digest, sif_digest
from builder.sif.format import HEADER
from builder.sif.partitions import MAX_OVERLAYS
from builder.sif.read import open_sif, read_sif
from builder.sif.singularity import FOLDER, container_environment, container_files
from builder.sif.write import Layout
from builder.store.blobs import Store
from builder.store.durable import durable_file
from builder.store.files import write_atomic
from builder.trees.compare import compare_trees
from builder.trees.member import Kind
from builder.trees.squashfs.reader import Squashfs
from builder.trees.squashfs.writer import SquashfsWriter
from tests.support import image_kit as kit
from tests.support.disk import flip
from tests.support.layers import random_layers
from tests.support.sif_place import Place, make_above, make_above_sif, partition_names


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> int:
    """The size of a large package, in bytes: the threshold is lowered, so that tests are fast."""
    monkeypatch.setattr(builder.sif.assign, "LARGE", 1 << 20)
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
    with Squashfs(sif.path, read_sif(sif.path).partitions[0].offset) as squashfs:
        assert squashfs.compression == compression
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


@pytest.mark.parametrize(
    ("created", "epoch", "expected"),
    [
        ("2026-11-01T00:00:00Z", DEFAULT_EPOCH, 1793491200),
        ("2026-11-01T00:00:00.123456789Z", DEFAULT_EPOCH, 1793491200),
        ("2026-11-01T00:00:00", DEFAULT_EPOCH, 1793491200),
        ("2026-11-01T00:00:00Z", 1000, 1000),
        ("9999-01-01T00:00:00Z", DEFAULT_EPOCH, DEFAULT_EPOCH),
        ("soon", DEFAULT_EPOCH, DEFAULT_EPOCH),
        (3, DEFAULT_EPOCH, DEFAULT_EPOCH),
    ],
)
def test_time(created: object, epoch: int, expected: int) -> None:
    """A SIF is as old as its image; SOURCE_DATE_EPOCH wins."""
    assert builder.sif.write._created(json.dumps({"created": created}).encode(), epoch) == expected


def test_time_of_header(place: Place) -> None:
    """The time of header and descriptors is that of the image; the partitions do not change with it."""
    image = place.image()
    config = json.dumps({**json.loads(image.config), "created": "2026-11-01T00:00:00Z"}).encode()
    dated = replace(image, config=config)
    old, new = place.sif(image, "old.sif"), place.sif(dated, "new.sif")
    times = HEADER.unpack(new.path.read_bytes()[: HEADER.size])
    assert 1793491200 in times and 1793491200 not in HEADER.unpack(old.path.read_bytes()[: HEADER.size])
    assert [p.size for p in read_sif(old.path).partitions] == [p.size for p in read_sif(new.path).partitions]


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


def test_replaced_by_another_build(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build replaces the file at the moment it gets its name: it is not recorded as this one."""
    sif = place.sif(place.image())

    @contextmanager
    def replaced(path: Path) -> Iterator[Path]:
        with durable_file(path) as temporary:
            yield temporary
        write_atomic(path, b"the SIF of another build")

    sif.path.unlink()
    monkeypatch.setattr(builder.sif.write, "durable_file", replaced)
    with contextlib.suppress(FileNotFoundError):
        place.sif(place.image())
    assert remembered_digest(sif.path, place.store) is None
    assert sif_digest(sif.path, place.store) == f"sha256:{hashlib.sha256(sif.path.read_bytes()).hexdigest()}"


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
    bumped = make_above(kit.base(image.layers[0], env=["PATH=/usr/bin:/bin", "LANG=C.UTF-8"]), layers)
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


def test_damaged_partition(place: Place) -> None:
    """A damaged partition in the cache is made again, with the same bytes."""
    image = place.image()
    sif = place.sif(image, layout="layered")
    data = sif.path.read_bytes()
    for record in place.partition_records().values():
        blob = place.store.path(record["digest"])
        blob.write_bytes(bytes(blob.stat().st_size))
    sif.path.unlink()
    place.sif(image, layout="layered")
    assert sif.path.read_bytes() == data


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


def test_partition_that_stays_corrupt(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk damages what is written, no SIF appears."""
    monkeypatch.setattr(builder.sif.check, "_digest_of_range", lambda *a: "sha256:" + "0" * 64)
    monkeypatch.setattr(Store, "was_hashed", lambda *a: False)
    with pytest.raises(ImageError, match="partition base does not match its digest"):
        place.sif(place.image(), layout="layered")
    assert [p.name for p in place.folder.iterdir()] == ["cache"]


def test_flat_sif_in_the_cache(place: Place) -> None:
    """The cache holds a flat SIF without a copy; another SIF of the image is a copy, not a link."""
    image = place.image()
    one = place.sif(image)
    (record,) = place.partition_records().values()
    assert place.store.path(record["digest"]).samefile(one.path)
    data, made = one.path.read_bytes(), one.path.stat().st_ino
    two = place.sif(image, "b.sif")
    assert two.path.stat().st_ino != made and two.path.read_bytes() == data
    assert two.digest == one.digest == sif_digest(two.path, place.store)


def test_flat_sif_changed_in_place(place: Place) -> None:
    """A SIF that another program has changed, as ``apptainer sign`` does, is not copied from the cache."""
    image = place.image()
    one = place.sif(image)
    data = one.path.read_bytes()
    with one.path.open("ab") as f:
        f.write(b"signature")
    assert place.sif(image, "b.sif").path.read_bytes() == data
    assert one.path.read_bytes() == data + b"signature"
    assert place.sif(image).path.read_bytes() == data


def test_flat_sif_without_hard_links(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache cannot link to the SIF, it does not hold it, and another one has the same bytes."""

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    image = place.image()
    data = place.sif(image).path.read_bytes()
    assert place.partition_records() == {}
    assert place.sif(image, "b.sif").path.read_bytes() == data


def test_flat_sif_that_is_interrupted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """When writing the squashfs fails, neither the SIF nor an entry of the cache appears."""

    def fail(self: SquashfsWriter) -> int:
        raise OSError(errno.EIO, "Input/output error")

    image = place.image()
    monkeypatch.setattr(SquashfsWriter, "finish", fail)
    with pytest.raises(OSError, match="Input/output error"):
        place.sif(image)
    assert [p.name for p in place.folder.iterdir()] == ["cache"]
    assert place.partition_records() == {}


@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_flipped_bit_without_checksum(place: Place, layout: Layout) -> None:
    """A flipped bit that no checksum of gzip covers (its time stamp) is refused too."""
    content = bytes(range(256)) * 50
    one = write_layer(
        place.store,
        [Entry("etc/file", "file", size=len(content), content=Inline(content))],
        compression="gzip",
        mtime=0,
    )
    image = place.image(one)
    assert one.path is not None
    looks = one.path.stat()
    data = bytearray(one.path.read_bytes())
    data[5] ^= 1
    one.path.write_bytes(data)
    os.utime(one.path, ns=(looks.st_atime_ns, looks.st_mtime_ns))
    place.store = Store(place.store.root)
    with pytest.raises(ImageError, match=f"{one.path.name} is corrupt"):
        place.sif(image, layout=layout)
    assert not one.path.exists() and not (place.folder / "a.sif").exists()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_flipped_bit_in_a_layer(place: Place, compression: str) -> None:
    """A layer in which a bit has flipped goes into no partition, also where the format has no checksum."""
    content = bytes(range(256)) * 50
    entry = Entry("etc/file", "file", size=len(content), content=Inline(content))
    one = write_layer(place.store, [entry], compression=compression, mtime=0)  # type: ignore[arg-type]
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
        image = make_above(kit.base(layers[0]), [replace(x, title="anything") for x in layers[1:]])
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


def test_overlay_limit(place: Place) -> None:
    """Many packages share a limited number of partitions."""
    more = [place.package(f"pip package{i} 1.0", f"p{i}") for i in range(40)]
    sif = place.sif(place.image(*more), layout="layered")
    assert 4 < len(partition_names(sif)) <= MAX_OVERLAYS + 1
    assert len([o for o in read_sif(sif.path).objects if o.name]) < 48


def test_inspect(place: Place) -> None:
    """The JSON object for apptainer inspect says the same as the files."""
    sif = place.sif(
        place.image(cmd=("python", "-c", "print('a b')"), env={"WORDS": "a 'b' $c"}, labels={"x": "y"})
    )
    read = read_sif(sif.path)
    data = json.loads(read.read("inspect-metadata.json") or b"")
    attributes = data["data"]["attributes"]
    assert data["type"] == "container"
    assert attributes["labels"]["x"] == "y"
    assert attributes["labels"]["org.builder.image"].startswith("sha256:")
    assert "builder put this SIF together" in attributes["deffile"]
    assert read.config()["config"]["Cmd"] == ["python", "-c", "print('a b')"]
    files = container_files(read.sources(FOLDER))
    assert files[f"{FOLDER}/runscript"] == attributes["runscript"]
    assert json.loads(files[f"{FOLDER}/labels.json"]) == attributes["labels"]
    assert list(attributes["environment"].values()) == [files[f"{FOLDER}/env/94-environment.sh"]]


def test_impossible_places(place: Place) -> None:
    """Folders as the target, and architectures that SIF does not know, are errors."""
    (place.folder / "x").mkdir()
    with pytest.raises(ImageError, match="x is a folder"):
        place.sif(place.image(), "x")
    image = place.image()
    with pytest.raises(ImageError, match="SIF files do not support the architecture 'vax'"):
        place.sif(replace(image, config=image.config.replace(b'"amd64"', b'"vax"')))
    (place.folder / "file").write_text("")
    with pytest.raises(ImageError, match="file is not a folder"):
        place.sif(image, "file/a.sif")


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


def test_sif_base_environment(place: Place) -> None:
    """The script of a base SIF stays; the image's script sets what differs."""
    base = place.sif(place.image(env={"ROCM": "/opt/rocm", "SAME": "1"}), "base.sif")
    sif = place.sif(
        make_above_sif(place, base, env={"SAME": "1", "NEW": "it's"}), "b.sif", "layered", base=base
    )
    files = container_files(read_sif(sif.path).sources(FOLDER))
    assert "ROCM" in files[f"{FOLDER}/env/94-environment.sh"]
    script = files[f"{FOLDER}/env/95-environment.sh"]
    assert "ROCM" not in script
    assert "SAME" not in script
    assert "NEW" in script


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


def test_sif_base_with_too_many_overlays(place: Place, large: int) -> None:
    """A base SIF with too many overlay partitions is refused in layout layered."""
    more = [place.package(f"pip package{i} 1.0", f"p{i}", size=large if i < 4 else 0) for i in range(12)]
    base = place.sif(place.image(*more), "base.sif", "layered")
    with pytest.raises(ImageError, match=r"base\.sif has [5-8] overlay partitions;") as e:
        place.sif(make_above_sif(place, base), "b.sif", "layered", base=base)
    assert "layout: flat" in e.value.hint
