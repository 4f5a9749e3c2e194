"""SIFs: written, read, refused with a reason; the same bytes always, and pieces made once."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.bases.base import open_base, resolve_base
from builder.config.recipe import Compression
from builder.errors import ConfigError, ImageError, UsageError
from builder.image.convert import image_tree, open_image, sif_to_oci, split_image
from builder.model import Image, Layer, SifImage
from builder.oci.layout import write_layout
from builder.settings import Settings
from builder.sif.image import MAX_OVERLAYS, Layout, open_sif, read_sif, write_sif
from builder.sif.singularity import (
    FOLDER,
    container_environment,
    container_files,
    environment_script,
    run_script,
)
from builder.store.blobs import Store
from builder.trees.merge import compare_trees
from builder.trees.squashfs import Squashfs
from tests.support import image_kit as kit
from tests.support.image_kit import layer
from tests.unit.test_sif_trees import random_layers

DESCRIPTORS = 4096
DESCRIPTOR = 585


def member(name: str, data: bytes | None = None, mode: int | None = None) -> Any:
    return kit.member(name, data, mode=mode or (0o755 if name.endswith("/") else 0o644))


class Place:
    """A cache and a folder for SIFs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = kit.settings(folder)
        self.store = Store(self.settings.cache)

    def sif(
        self,
        image: Image,
        name: str = "a.sif",
        layout: Layout = "flat",
        compression: Compression = "zstd",
        base: SifImage | None = None,
        settings: Settings | None = None,
    ) -> SifImage:
        path = self.folder / name
        return write_sif(
            image,
            path,
            settings or self.settings,
            self.store,
            layout=layout,
            compression=compression,
            base=base,
        )

    def image(self, *more: Layer, **recipe: object) -> Image:
        """A base, a prefix, two packages, and builder's own files."""
        layers = [
            layer(
                self.store,
                member("opt/"),
                member("opt/conda/"),
                member("opt/conda/.wh..wh..opq", b""),
                title="environment prefix",
            ),
            self.package("pip numpy 1.0", "numpy"),
            self.package("conda group 1: zlib, xz", "zlib"),
            *more,
            layer(
                self.store,
                member("opt/"),
                member("opt/builder/"),
                member("opt/builder/smoke.py", b"#\n"),
                title="builder: entry point",
            ),
        ]
        bottom = [
            member("./", mode=0o751),
            member("etc/"),
            member("etc/base", b"base\n"),
            member("tmp/", mode=0o1777),
            member("opt/"),
            member("opt/conda/", mode=0o700),
            member("opt/conda/bin/"),
            member("opt/conda/bin/python", b"old"),
            member("opt/conda/old/"),
            member("opt/conda/old/file", b"old"),
        ]
        base = kit.base(
            layer(self.store, *bottom, title="bottom"), env=["PATH=/usr/bin:/bin", "LANG=C.UTF-8"]
        )
        return _made(base, layers, **recipe)

    def package(self, title: str, name: str, text: bytes = b"1", size: int = 0) -> Layer:
        content = text + random.Random(title).randbytes(size)
        members = [member(f"{p}/") for p in ("opt", "opt/conda", "opt/conda/bin")]
        members += [member(f"opt/conda/{name}", content), member(f"opt/conda/bin/{name}", b"#!", mode=0o755)]
        return layer(self.store, *members, title=title)

    def pieces(self) -> set[str]:
        """The records of all pieces that were made."""
        return {p.name for p in (self.store.root / "layers").glob("sif-*.json")}


def _made(under: object, layers: list[Layer], **recipe: object) -> Image:
    from builder.image.config import make_image
    from builder.model import Lock

    made = kit.recipe(**recipe)
    return make_image(
        under, layers, recipe=made, lock=Lock((), ("linux-64",)), env={}, annotations={}, epoch=kit.EPOCH
    )  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def partitions(sif: SifImage) -> list[str]:
    return [o.name for o in read_sif(sif.path).partitions]


# writing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_a_sif_has_the_image_s_files(place: Place, layout: Layout, compression: Compression) -> None:
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
        "layered": ["base", "bottom", "packages-small-1", "packages-small-2", "top"],
    }
    assert partitions(sif) == expected[layout]


def test_the_same_bytes_whoever_makes_it(tmp_path: Path) -> None:
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


def test_a_sif_that_is_there_is_not_written_again(place: Place) -> None:
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


def test_a_changed_package_costs_its_piece(place: Place) -> None:
    large = place.package("pip torch 2.0", "torch", size=40 << 20)
    place.sif(place.image(large), layout="layered")
    first = place.pieces()
    assert len(first) == 6  # base, bottom, torch, numpy, zlib, top
    blobs = {json.loads((place.store.root / "layers" / p).read_bytes())["digest"] for p in first}
    changed = place.image(large, place.package("pip group 9: a", "new"))
    place.sif(changed, "b.sif", "layered")
    names = [
        json.loads((place.store.root / "layers" / p).read_bytes())["name"] for p in place.pieces() - first
    ]
    assert sorted(names) == ["packages-small-1", "top"]
    # A new version of numpy: its layer keeps its name, and nothing but its piece is made, and the one with the labels.
    second = place.pieces()
    image = place.image(large)
    layers = [*image.layers[1:2], place.package("pip numpy 2.0", "numpy", b"2"), *image.layers[3:]]
    bumped = _made(kit.base(image.layers[0], env=["PATH=/usr/bin:/bin", "LANG=C.UTF-8"]), layers)
    sif = place.sif(bumped, "c.sif", "layered")
    names = [
        json.loads((place.store.root / "layers" / p).read_bytes())["name"] for p in place.pieces() - second
    ]
    assert sorted(names) == ["packages-small-1", "top"]
    assert compare_trees(image_tree(bumped, place.store), image_tree(sif, place.store)) == []
    assert blobs <= {
        json.loads((place.store.root / "layers" / p).read_bytes())["digest"] for p in place.pieces()
    }


def test_a_damaged_piece_is_made_again(place: Place) -> None:
    image = place.image()
    sif = place.sif(image, layout="layered")
    data = sif.path.read_bytes()
    for record in (place.store.root / "layers").glob("sif-*.json"):
        blob = place.store.path(json.loads(record.read_bytes())["digest"])
        blob.write_bytes(bytes(blob.stat().st_size))
    sif.path.unlink()
    place.sif(image, layout="layered")
    assert sif.path.read_bytes() == data


def test_overlays_hide_what_layers_hide(place: Place) -> None:
    """Layers that are nobody's packages lie in one overlay, which has to hide what the base has."""
    hidden = 0
    for seed in range(60):
        layers = random_layers(random.Random(seed), place.store)
        image = _made(kit.base(layers[0]), [replace(x, title="anything") for x in layers[1:]])
        sif = place.sif(image, f"{seed}.sif", "layered")
        assert partitions(sif) == ["base", "top"]
        assert compare_trees(image_tree(image, place.store), image_tree(sif, place.store)) == [], (
            f"seed {seed}"
        )
        part = read_sif(sif.path).partitions[1]
        with Squashfs(sif.path, part.offset) as squashfs:
            hidden += sum(m.kind == b"w" for m, _ in squashfs.members())
    assert hidden > 20


def test_never_too_many_overlays(place: Place) -> None:
    more = [place.package(f"pip package{i} 1.0", f"p{i}") for i in range(40)]
    sif = place.sif(place.image(*more), layout="layered")
    assert 4 < len(partitions(sif)) <= MAX_OVERLAYS + 1
    assert len([o for o in read_sif(sif.path).objects if o.name]) < 48


def test_what_inspect_reads(place: Place) -> None:
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


def test_a_folder_or_a_foreign_architecture_is_no_place_for_a_sif(place: Place) -> None:
    (place.folder / "x").mkdir()
    with pytest.raises(ImageError, match="x is a folder"):
        place.sif(place.image(), "x")
    image = place.image()
    with pytest.raises(ImageError, match="SIF knows no architecture 'vax'"):
        place.sif(replace(image, config=image.config.replace(b'"amd64"', b'"vax"')))
    (place.folder / "file").write_text("")
    with pytest.raises(ImageError, match="file is not a folder"):
        place.sif(image, "file/a.sif")


# bases ----------------------------------------------------------------------------------------------------------------


def above(place: Place, base: SifImage, **recipe: object) -> Image:
    """Packages above a SIF."""
    locked = resolve_base(f"sif:{base.path}", "amd64", place.settings, place.store)
    assert locked.digest == base.digest
    opened = open_base(locked, "amd64", place.settings, place.store)
    assert opened.sif is not None
    assert (opened.sif.digest, opened.layers) == (base.digest, ())
    whole = place.image(place.package("pip torch 2.0", "torch"))
    return _made(opened, list(whole.layers[1:]), base=f"sif:{base.path}", **recipe)


def test_a_sif_as_a_base(place: Place) -> None:
    base = place.sif(place.image(env={"ROCM": "/opt/rocm", "PATH": "/opt/rocm/bin:/usr/bin"}), "base.sif")
    below = image_tree(base, place.store)
    image = above(place, base, env={"MORE": "1"})
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
    # The base's partition is the same bytes, though it was flat and of one piece.
    read, own = read_sif(place.folder / "layered.sif"), read_sif(base.path)
    assert own.partitions[0].size == read.partitions[0].size
    with base.path.open("rb") as a, (place.folder / "layered.sif").open("rb") as b:
        a.seek(own.partitions[0].offset)
        b.seek(read.partitions[0].offset)
        assert a.read(own.partitions[0].size) == b.read(own.partitions[0].size)


def test_a_base_s_own_environment_stays_and_ours_comes_after(place: Place) -> None:
    base = place.sif(place.image(env={"ROCM": "/opt/rocm", "SAME": "1"}), "base.sif")
    sif = place.sif(above(place, base, env={"SAME": "1", "NEW": "it's"}), "b.sif", "layered", base=base)
    files = container_files(read_sif(sif.path).sources(FOLDER))
    assert "ROCM" in files[f"{FOLDER}/env/94-environment.sh"]
    script = files[f"{FOLDER}/env/95-environment.sh"]
    assert "ROCM" not in script
    assert "SAME" not in script
    assert "NEW" in script


def test_a_base_with_overlays_of_its_own(place: Place) -> None:
    base = place.sif(place.image(), "base.sif", "layered")
    image = above(place, base)
    sif = place.sif(image, "b.sif", "layered", base=base)
    assert len(partitions(base)) == 5
    assert partitions(sif)[:5] == partitions(base)
    assert len(partitions(sif)) <= MAX_OVERLAYS + 1
    flat = place.sif(image, "c.sif", "flat", base=base)
    assert compare_trees(image_tree(flat, place.store), image_tree(sif, place.store)) == []


def test_a_base_with_too_many_overlays(place: Place) -> None:
    more = [place.package(f"pip package{i} 1.0", f"p{i}", size=33 << 20 if i < 4 else 0) for i in range(12)]
    base = place.sif(place.image(*more), "base.sif", "layered")
    with pytest.raises(ImageError, match=r"base\.sif has [5-8] overlay partitions of its own") as e:
        place.sif(above(place, base), "b.sif", "layered", base=base)
    assert "layout: flat" in e.value.hint


def test_the_base_is_pinned(place: Place) -> None:
    base = place.sif(place.image(), "base.sif")
    locked = resolve_base("sif:base.sif", "amd64", place.settings, place.store, root=place.folder)
    assert locked.digest == base.digest
    place.sif(place.image(labels={"a": "b"}), "base.sif")
    with pytest.raises(
        ImageError, match="the lock pins the base sif:base.sif as sha256:.* holds sha256:"
    ) as e:
        open_base(locked, "amd64", place.settings, place.store, root=place.folder)
    assert "--update-base" in e.value.hint


def test_a_large_base_is_hashed_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    base = place.sif(place.image(), "base.sif")
    other = Store(place.folder / "other")
    assert open_sif(base.path, other).digest == base.digest

    def again(path: Path) -> str:
        raise AssertionError(f"{path} is hashed again")

    monkeypatch.setattr("builder.sif.image.sha256_file", again)
    assert open_sif(base.path, other).digest == base.digest
    os.utime(base.path, ns=(1, 1))
    with pytest.raises(AssertionError, match="is hashed again"):
        open_sif(base.path, other)


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    one = Place(tmp_path_factory.mktemp("good"))
    return one.sif(one.image()).path.read_bytes()


def _partition_at(data: bytes) -> int:
    """Where the descriptor of the primary partition is."""
    for number in range(48):
        at = DESCRIPTORS + number * DESCRIPTOR
        if struct.unpack_from("<i", data, at)[0] == 0x4004:
            return at
    raise AssertionError


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _refused(place: Place, data: bytes | None, architecture: str = "amd64") -> ImageError:
    path = place.folder / "base.sif"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ImageError) as e:
        resolve_base("sif:base.sif", architecture, place.settings, place.store, root=place.folder)
    assert "base.sif" in e.value.message
    assert e.value.hint
    return e.value


def test_a_missing_base(place: Place) -> None:
    assert "does not exist" in _refused(place, None).message
    (place.folder / "base.sif").mkdir()
    assert "is a folder" in _refused(place, None).message


@pytest.mark.parametrize("length", [200, 5000, 40000])
def test_a_truncated_base(place: Place, good: bytes, length: int) -> None:
    assert f"is cut short: it has {length} bytes" in _refused(place, good[:length]).message


def test_not_a_sif(place: Place, good: bytes) -> None:
    assert "is not a SIF" in _refused(place, b"").message
    assert "web page" in _refused(place, b"<!DOCTYPE html>" + bytes(500)).hint
    assert (
        "bare squashfs"
        in _refused(place, good[struct.unpack_from("<q", good, _partition_at(good) + 17)[0] :]).hint
    )


def test_an_encrypted_base(place: Place, good: bytes) -> None:
    data = _with(good, _partition_at(good) + 201, struct.pack("<i", 5))
    error = _refused(place, data)
    assert "is encrypted" in error.message
    assert "without encryption" in error.hint


def test_another_architecture(place: Place, good: bytes) -> None:
    assert "is for amd64, not for arm64" in _refused(place, good, "arm64").message


def test_no_squashfs(place: Place, good: bytes) -> None:
    at = _partition_at(good)
    error = _refused(place, _with(good, at + 201, struct.pack("<i", 2)))
    assert "its root file system is ext3, not squashfs" in error.message
    assert "apptainer build" in error.hint
    assert (
        "has no primary system partition"
        in _refused(place, _with(good, at + 205, struct.pack("<i", 3))).message
    )
    assert "is an OCI-SIF" in _refused(place, _with(good, DESCRIPTORS, struct.pack("<i", 0x400A))).message


def test_no_definition_is_no_harm(place: Place, good: bytes) -> None:
    data = good
    for number in range(3):  # definition and both JSON objects
        data = _with(data, DESCRIPTORS + number * DESCRIPTOR + 4, b"\0")
    (place.folder / "base.sif").write_bytes(data)
    locked = resolve_base("sif:base.sif", "amd64", place.settings, place.store, root=place.folder)
    base = open_base(locked, "amd64", place.settings, place.store, root=place.folder)
    env = dict(e.split("=", 1) for e in base.config["config"]["Env"])
    assert env["PATH"].startswith("/opt/conda/bin:")
    assert base.config["config"]["Entrypoint"] == ["/.singularity.d/runscript"]
    assert base.config["config"]["Labels"]["org.builder.target"] == "tiny"


def test_a_damaged_squashfs_in_a_base(place: Place, good: bytes) -> None:
    offset = struct.unpack_from("<q", good, _partition_at(good) + 17)[0]
    (place.folder / "base.sif").write_bytes(_with(good, offset, bytes(4)))
    base = open_sif(place.folder / "base.sif", place.store)
    with pytest.raises(ImageError, match=r"base\.sif \(partition 1\) is not a squashfs"):
        place.sif(place.image(), "b.sif", base=base)


def test_references(place: Place) -> None:
    with pytest.raises(ConfigError, match="base 'sif:' is not a reference") as e:
        resolve_base("sif:", "amd64", place.settings, place.store)
    assert "sif:FILE" in e.value.hint
    assert split_image("a/b.sif") == ("sif", "a/b.sif")
    assert split_image("oci:a.sif") == ("oci", "a.sif")
    with pytest.raises(UsageError, match="'somewhere' does not name an image"):
        split_image("somewhere")


# converting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_there_and_back(place: Place, layout: Layout) -> None:
    image = place.image(env={"A": "b c"}, workdir="/data")
    sif = place.sif(image, layout=layout)
    back = sif_to_oci(sif, place.settings, place.store)
    assert compare_trees(image_tree(image, place.store), image_tree(back, place.store)) == []
    assert not any(p.startswith(".singularity.d") for p in image_tree(back, place.store))
    assert json.loads(back.config)["config"] == json.loads(image.config)["config"]
    assert len(back.layers) == len(partitions(sif))
    assert sif_to_oci(sif, place.settings, place.store).digest == back.digest
    write_layout(back, place.folder / "layout", "t", place.store)
    opened = open_image(f"oci:{place.folder / 'layout'}:t", place.settings, place.store)
    assert opened.digest == back.digest
    again = place.sif(back, "again.sif", layout)
    assert compare_trees(image_tree(again, place.store), image_tree(sif, place.store)) == []


def test_a_sif_of_others_keeps_its_scripts(place: Place, good: bytes) -> None:
    data = good
    for number in range(3):
        data = _with(data, DESCRIPTORS + number * DESCRIPTOR + 4, b"\0")
    (place.folder / "foreign.sif").write_bytes(data)
    image = sif_to_oci(open_sif(place.folder / "foreign.sif", place.store), place.settings, place.store)
    tree = image_tree(image, place.store)
    assert f"{FOLDER}/runscript" in tree
    assert json.loads(image.config)["config"]["Entrypoint"] == [f"/{FOLDER}/runscript"]


# what the runtimes read -----------------------------------------------------------------------------------------------


def _shell(script: str, *args: str, env: dict[str, str] | None = None) -> str:
    command = [shutil.which("sh") or "/bin/sh", "-c", script, "sh", *args]
    return subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **(env or {})}, check=True, capture_output=True, text=True
    ).stdout


def test_the_environment_script_is_what_the_config_says() -> None:
    values = {
        "PATH": "/opt/conda/bin:/bin:/usr/bin",
        "ODD": "a 'b' \"c\" $d `e` \\ %s",
        "TWO": "x\ny",
        "CONDA_PREFIX": "/opt/conda",
    }
    script = environment_script({**values, "not-a-name": "1"})
    show = script + "\nfor n in PATH ODD TWO CONDA_PREFIX; do eval printf '%s\\\\0' '\"$'$n'\"'; done"
    assert _shell(show).split("\0")[:-1] == list(values.values())
    host = _shell(show, env={"ODD": "host", "CONDA_PREFIX": "host", "PATH": "/usr/bin:/bin:/host"}).split(
        "\0"
    )
    assert host[:-1] == list(values.values())
    base = {"PATH": "/rocm:/bin:/usr/bin", "TWO": "x\ny", "ODD": "theirs"}
    above = environment_script({**values, "PATH": "/opt/conda/bin:/rocm:/bin:/usr/bin"}, base)
    assert "TWO" not in above
    assert _shell(above + "\necho $PATH; echo $ODD", env={"PATH": base["PATH"]}) == (
        "/opt/conda/bin:/rocm:/bin:/usr/bin\n" + " ".join(values["ODD"].split()) + "\n"
    )


def test_the_environment_can_be_told_from_the_script() -> None:
    values = {"PATH": "/opt/conda/bin:/bin", "ODD": "it's a $b", "EMPTY": "", "PYTHONNOUSERSITE": "1"}
    assert container_environment({f"{FOLDER}/env/94-environment.sh": environment_script(values)}) == values


def test_the_environment_of_what_apptainer_made() -> None:
    files = {
        f"{FOLDER}/env/10-docker2singularity.sh": '#!/bin/sh\nexport PATH="/a:/b"\nexport X="${X:-"one two"}"\n',
        f"{FOLDER}/env/90-environment.sh": "export PATH=/opt/rocm/bin:$PATH\nY=1; export Y\nexport Z=$(date)\nexport Q='a b'\n",
        f"{FOLDER}/env/99-base.sh": "export LD_LIBRARY_PATH=never\n",
        f"{FOLDER}/runscript": "export NEVER=1\n",
    }
    assert container_environment(files) == {"PATH": "/opt/rocm/bin:/a:/b", "X": "one two", "Q": "a b"}


@pytest.mark.parametrize(
    ("entrypoint", "command", "arguments", "expected"),
    [
        (["printf", "<%s>"], ["a b", "it's"], [], "<a b><it's>"),
        (["printf", "<%s>"], ["a b"], ["c", "$d"], "<c><$d>"),
        (["printf", "<%s>"], [], ["c"], "<c>"),
        ([], ["echo", "a  b"], [], "a  b\n"),
        ([], ["echo", "a"], ["echo", "-", "b"], "- b\n"),
        (["echo", "only"], [], [], "only\n"),
    ],
)
def test_the_runscript_does_what_the_oci_does(
    entrypoint: list[str], command: list[str], arguments: list[str], expected: str
) -> None:
    assert _shell(run_script(entrypoint, command), *arguments) == expected
