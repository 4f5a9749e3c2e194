"""Unpacking layers: what they do, and what they must not be able to do."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
from pathlib import Path

import pytest
import zstandard

from builder.errors import ImageError
from builder.model import OCI_LAYER, OCI_LAYER_ZSTD, Descriptor, Layer
from builder.store.blobs import Store
from builder.trees.rootfs import inflate, remove_tree, unpack
from tests.support.image_kit import EPOCH, image, layer, member, tar_bytes


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_content_modes_times_and_links(store: Store, tmp_path: Path) -> None:
    one = layer(
        store,
        member("opt/", mode=0o750),
        member("opt/tool", b"#!/bin/sh\n", mode=0o755),
        member("opt/again", kind=tarfile.LNKTYPE, target="opt/tool"),
        member("opt/soft", target="/opt/tool"),
        member("shared/", mode=0o1777),
    )
    unpack(image(store, one), tmp_path / "root", store)
    root = tmp_path / "root"
    assert (root / "opt/tool").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((root / "opt/tool").stat().st_mode) == 0o755
    assert (root / "opt/tool").stat().st_ino == (root / "opt/again").stat().st_ino
    assert (root / "opt/soft").readlink() == Path("/opt/tool")
    assert (root / "opt/tool").stat().st_mtime == EPOCH == (root / "opt").stat().st_mtime
    assert stat.S_IMODE((root / "shared").stat().st_mode) == 0o1777
    assert (root / "etc/base").read_text() == "base\n"


def test_setuid_is_dropped_and_everything_stays_readable(store: Store, tmp_path: Path) -> None:
    unpack(
        image(
            store,
            layer(
                store,
                member("su", b"x", mode=0o4755),
                member("secret/", mode=0o000),
                member("secret/f", b"", mode=0),
            ),
        ),
        tmp_path / "r",
        store,
    )
    assert stat.S_IMODE((tmp_path / "r/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "r/secret").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "r/secret/f").stat().st_mode) == 0o400


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="keeping owners needs root")
def test_root_keeps_owners_and_modes(store: Store, tmp_path: Path) -> None:
    info, data = member("var/mail", b"x", mode=0o2755)
    info.uid, info.gid = 8, 12
    unpack(image(store, layer(store, (info, data))), tmp_path / "r", store, rootless=False)
    found = (tmp_path / "r/var/mail").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (8, 12, 0o2755)


def test_whiteouts_remove_what_lies_below_only(store: Store, tmp_path: Path) -> None:
    lower = layer(
        store,
        member("a/"),
        member("a/gone", b"1"),
        member("a/kept", b"1"),
        member("d/x/deep", b"1"),
        member("file", b"1"),
    )
    upper = layer(
        store,
        member("a/.wh.gone"),
        member(".wh.d"),
        member(".wh.file"),
        member(".wh.never-there"),
        member("new/.wh.nothing"),
    )
    unpack(image(store, lower, upper), tmp_path / "r", store)
    assert files(tmp_path / "r") == {"a", "a/kept", "etc", "etc/base"}


@pytest.mark.parametrize("first", [True, False], ids=["opaque first", "opaque last"])
def test_opaque_whiteout_keeps_its_own_layer(store: Store, tmp_path: Path, first: bool) -> None:
    lower = layer(
        store,
        member("opt/conda/"),
        member("opt/conda/old", b"1"),
        member("opt/conda/lib/old.so", b"1"),
        member("opt/other", b"1"),
    )
    opaque = member("opt/conda/.wh..wh..opq")
    own = [member("opt/conda/lib/"), member("opt/conda/lib/new.so", b"2"), member("opt/conda/old2", b"2")]
    upper = layer(store, *([opaque, *own] if first else [*own, opaque]))
    unpack(image(store, lower, upper), tmp_path / "r", store)
    assert files(tmp_path / "r/opt") == {"conda", "conda/lib", "conda/lib/new.so", "conda/old2", "other"}


def test_a_whiteout_does_not_touch_what_its_own_layer_put_there(store: Store, tmp_path: Path) -> None:
    lower = layer(store, member("x", b"old"))
    unpack(image(store, lower, layer(store, member("x", b"new"), member(".wh.x"))), tmp_path / "r", store)
    assert (tmp_path / "r/x").read_bytes() == b"new"


def test_a_later_layer_changes_kinds(store: Store, tmp_path: Path) -> None:
    lower = layer(
        store,
        member("a/b/c", b"1"),
        member("f", b"1"),
        member("l", target="a"),
        member("keep/"),
        member("keep/x", b"1"),
    )
    upper = layer(
        store,
        member("a", b"file now"),
        member("f/"),
        member("f/inner", b"2"),
        member("l/"),
        member("l/own", b"3"),
        member("keep/"),
    )
    unpack(image(store, lower, upper), tmp_path / "r", store)
    root = tmp_path / "r"
    assert (root / "a").read_bytes() == b"file now"
    assert (root / "f/inner").read_bytes() == b"2"
    assert not (root / "l").is_symlink() and (root / "l/own").read_bytes() == b"3"
    assert (root / "keep/x").read_bytes() == b"1"


def test_a_parent_that_is_a_symlink_is_followed_inside_the_root(store: Store, tmp_path: Path) -> None:
    lower = layer(
        store,
        member("usr/lib/"),
        member("lib", target="usr/lib"),
        member("abs", target="/usr/lib"),
        member("up", target="../../../usr"),
    )
    upper = layer(store, member("lib/a.so", b"1"), member("abs/b.so", b"2"), member("up/lib/c.so", b"3"))
    unpack(image(store, lower, upper), tmp_path / "r", store)
    assert {p.name for p in (tmp_path / "r/usr/lib").iterdir()} == {"a.so", "b.so", "c.so"}


@pytest.mark.parametrize(
    "attack",
    [
        [member("../evil", b"x")],
        [member("a/../../evil", b"x")],
        [member("a/.wh..")],
        [member(".wh...")],
        [member(".wh.")],
        [member("x", kind=tarfile.LNKTYPE, target="../outside")],
        [member("x", kind=tarfile.LNKTYPE, target="/../outside")],
        [member("x", kind=tarfile.LNKTYPE, target="nowhere")],
        [member("l", target="OUT"), member("x", kind=tarfile.LNKTYPE, target="l/../outside")],
        [member("loop", target="loop"), member("loop/x", b"x")],
        [member("odd", kind=b"Z")],
    ],
)
def test_unsafe_members_are_refused(
    store: Store, tmp_path: Path, attack: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    (tmp_path / "outside").write_text("mine")
    with pytest.raises(ImageError) as caught:
        unpack(image(store, layer(store, *attack)), tmp_path / "r", store)
    assert "do not use this image" in caught.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "outside"]  # nothing half-made is left


@pytest.mark.parametrize(
    "members",
    [
        lambda out: [member("l", target=out), member("l/evil", b"x")],
        lambda out: [member("l", target=out), member("l/.wh.precious")],
        lambda out: [member("l", target=out), member("l/.wh..wh..opq")],
        lambda out: [member("l", target=out), member("l/sub/", mode=0o777)],
        lambda out: [member("l", target=f"{out}/precious"), member("l", b"overwritten")],
        lambda out: [
            member("l", target=f"{out}/precious"),
            member("h", kind=tarfile.LNKTYPE, target="l"),
            member("h", b"overwritten"),
        ],
        lambda out: [member("d/"), member("d", target=out), member("d/evil", b"x")],
        lambda out: [member("d/"), member("d/x", b"1"), member("d", target=out), member("d/x", b"2")],
        lambda out: [member("l", target="../" * 30 + out.lstrip("/")), member("l/evil", b"x")],
        lambda out: [member("a", target=out), member("b", target="a"), member("b/evil", b"x")],
        lambda out: [member("l", target=out), member("l/", mode=0o777)],
    ],
)
@pytest.mark.parametrize("split", [False, True], ids=["one layer", "a layer each"])
def test_symlinks_do_not_lead_out(store: Store, tmp_path: Path, members, split: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    (outside / "precious").write_text("mine")
    attack = members(str(outside))
    layers = [layer(store, m) for m in attack] if split else [layer(store, *attack)]
    unpack(image(store, *layers), tmp_path / "r", store)
    assert files(outside) == {"precious"} and (outside / "precious").read_text() == "mine"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o711 and (outside / "precious").stat().st_nlink == 1


def test_device_nodes_are_left_out(store: Store, tmp_path: Path) -> None:
    null, console = member("dev/null", kind=tarfile.CHRTYPE), member("dev/sda", kind=tarfile.BLKTYPE)
    unpack(
        image(store, layer(store, member("dev/"), null, console, member("pipe", kind=tarfile.FIFOTYPE))),
        tmp_path / "r",
        store,
    )
    assert list((tmp_path / "r/dev").iterdir()) == []
    assert stat.S_ISFIFO((tmp_path / "r/pipe").stat().st_mode)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_in_every_tar_format(store: Store, tmp_path: Path, format: int) -> None:
    long = "/".join(["d" * 60] * 2) + "/" + "f" * 90
    longer = "x" * 200 if format != tarfile.USTAR_FORMAT else "x" * 90
    name = "ü" * 20 if format != tarfile.USTAR_FORMAT else "u"
    made = Store(tmp_path / "cache")
    data = tar_bytes(
        [
            member(long, b"1"),
            member(longer, b"2"),
            member(name, b"3"),
            member("s", target="t" * (180 if longer[100:] else 90)),
        ],
        format,
    )
    from builder.bases.pack import pack_tar

    unpack(image(made, pack_tar([data], made, 1)), tmp_path / "r", made)
    assert (tmp_path / "r" / long).read_bytes() == b"1"
    assert (tmp_path / "r" / longer).read_bytes() == b"2"
    assert (tmp_path / "r" / name).read_bytes() == b"3"
    assert len(os.readlink(tmp_path / "r/s")) == (180 if longer[100:] else 90)


def blob(store: Store, data: bytes, tar: bytes, media_type: str = OCI_LAYER) -> Layer:
    digest = store.add(data)
    return Layer(
        Descriptor(media_type, digest, len(data)),
        f"sha256:{hashlib.sha256(tar).hexdigest()}",
        store.path(digest),
    )


def test_all_codecs_members_and_frames(store: Store, tmp_path: Path) -> None:
    big = os.urandom(700_000)
    tar = tar_bytes([member("big", big), member("small", b"s")])
    parts = [tar[i : i + 100_000] for i in range(0, len(tar), 100_000)]
    forms = [
        tar,
        gzip.compress(tar),
        b"".join(map(gzip.compress, parts)),
        b"".join(zstandard.compress(p) for p in parts),
    ]
    for number, data in enumerate(forms):
        one = blob(store, data, tar, OCI_LAYER_ZSTD)
        assert b"".join(inflate(store.path(one.descriptor.digest))) == tar
        unpack(image(store, one), tmp_path / f"r{number}", store)
        assert (tmp_path / f"r{number}/big").read_bytes() == big


@pytest.mark.parametrize("cut", [100, 600, 3000], ids=["in gzip's data", "in a header", "near the end"])
@pytest.mark.parametrize("codec", ["gzip", "zstd", "none"])
def test_cut_layers_are_named(store: Store, tmp_path: Path, cut: int, codec: str) -> None:
    tar = tar_bytes([member("a", os.urandom(5000)), member("b", os.urandom(5000))])
    data = {"gzip": gzip.compress(tar), "zstd": zstandard.compress(tar), "none": tar}[codec][:-cut]
    if codec == "none":
        data = tar[: 512 + 100 + cut]
    with pytest.raises(ImageError, match=r"damaged|ends"):
        unpack(image(store, blob(store, data, tar)), tmp_path / "r", store)
    assert not (tmp_path / "r").exists()


def test_not_a_tar(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="not a tar"):
        unpack(image(store, blob(store, gzip.compress(os.urandom(4096)), b"")), tmp_path / "r", store)


def test_a_blob_changed_by_hand_is_refused(store: Store, tmp_path: Path) -> None:
    one = layer(store, member("a", b"1"))
    made = image(store, one)
    assert one.path is not None
    one.path.write_bytes(one.path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ImageError, match="is not the layer"):
        unpack(made, tmp_path / "r", store)


def test_refuses_a_folder_with_something_in_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/x").touch()
    with pytest.raises(ImageError, match="is not empty"):
        unpack(image(store), tmp_path / "r", store)


def test_an_empty_folder_is_taken_and_the_umask_does_not_matter(store: Store, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    before = os.umask(0o077)
    try:
        unpack(image(store, layer(store, member("deep/er/file", b"1", mode=0o664))), tmp_path / "r", store)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "r/deep/er").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "r/deep/er/file").stat().st_mode) == 0o664
    remove_tree(tmp_path / "r")
    assert not (tmp_path / "r").exists()
