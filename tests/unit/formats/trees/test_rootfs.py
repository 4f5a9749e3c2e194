"""Unpacking layers: what the result is, and what hostile layers cannot do."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from builder.core.errors import ImageError
from builder.core.model import OCI_LAYER, OCI_LAYER_ZSTD, Descriptor, Layer
from builder.core.store.blobs import Store
from builder.formats.trees.inflate import inflate
from builder.formats.trees.rootfs import unpack_layer, unpacked_source, write_tree
from tests.support.image_kit import EPOCH, image, layer, member, tar_bytes
from tests.support.images import unpack

MemberList = list[tuple[tarfile.TarInfo, bytes]]


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_content_modes_times_links(store: Store, tmp_path: Path) -> None:
    """Files get their content, mode and time; links of both kinds work."""
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


def test_rootless_modes(store: Store, tmp_path: Path) -> None:
    """Without root nothing is setuid, and this user can read everything."""
    unpack(
        image(
            store,
            layer(
                store,
                member("su", b"x", mode=0o4755),
                member("secret/", mode=0o000),
                member("secret/f", b"", mode=0),
                member("pipe", kind=tarfile.FIFOTYPE, mode=0o6666),
                member("folder/", mode=0o6755),
            ),
        ),
        tmp_path / "r",
        store,
    )
    assert stat.S_IMODE((tmp_path / "r/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "r/secret").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "r/secret/f").stat().st_mode) == 0o400
    assert stat.S_ISFIFO((tmp_path / "r/pipe").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "r/pipe").stat().st_mode) == 0o666
    assert stat.S_IMODE((tmp_path / "r/folder").stat().st_mode) == 0o2755


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
def test_unsafe_members(store: Store, tmp_path: Path, attack: MemberList) -> None:
    """Unsafe members are refused, and no part of the tree stays."""
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
def test_symlinks_stay_inside(
    store: Store, tmp_path: Path, members: Callable[[str], MemberList], split: bool
) -> None:
    """No symlink makes a layer write outside the folder."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    (outside / "precious").write_text("mine")
    attack = members(str(outside))
    layers = [layer(store, m) for m in attack] if split else [layer(store, *attack)]
    with contextlib.suppress(ImageError):
        unpack(image(store, *layers), tmp_path / "r", store)
    assert files(outside) == {"precious"} and (outside / "precious").read_text() == "mine"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o711 and (outside / "precious").stat().st_nlink == 1


def blob(store: Store, data: bytes, tar: bytes, media_type: str = OCI_LAYER) -> Layer:
    digest = store.add(data)
    return Layer(
        Descriptor(media_type, digest, len(data)),
        f"sha256:{hashlib.sha256(tar).hexdigest()}",
        store.path(digest),
    )


def test_codecs(store: Store, tmp_path: Path) -> None:
    """Plain tars, gzip with one or more members and zstd with several frames are read."""
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
def test_cut_layers(store: Store, tmp_path: Path, cut: int, codec: str) -> None:
    """A layer that is cut short is an error, and leaves no folder."""
    tar = tar_bytes([member("a", os.urandom(5000)), member("b", os.urandom(5000))])
    data = {"gzip": gzip.compress(tar), "zstd": zstandard.compress(tar), "none": tar}[codec][:-cut]
    if codec == "none":
        data = tar[: 512 + 100 + cut]
    with pytest.raises(ImageError, match=r"damaged|ends"):
        unpack(image(store, blob(store, data, tar)), tmp_path / "r", store)
    assert not (tmp_path / "r").exists()


def test_changed_blob(store: Store, tmp_path: Path) -> None:
    """A blob that was changed after it was stored is refused."""
    one = layer(store, member("a", b"1"))
    made = image(store, one)
    assert one.path is not None
    one.path.write_bytes(one.path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ImageError, match="does not match the digest of its layer"):
        unpack(made, tmp_path / "r", store)


def test_devices(store: Store, tmp_path: Path) -> None:
    """Device nodes and hard links to them are left out, and nothing of the layers below takes their places.

    overlayfs takes the device 0/0 for a whiteout, and Docker and podman unpack it as one.
    """
    null, disk = member("dev/null", kind=tarfile.CHRTYPE), member("dev/sda", kind=tarfile.BLKTYPE)
    link = member("dev/zero", kind=tarfile.LNKTYPE, target="/dev/null")
    lower = [member(name, b"x") for name in ("dev/null", "dev/sda/x", "dev/zero", "dev/kept")]
    again = member("dev/log", kind=tarfile.CHRTYPE), member("dev/log", b"")
    layers = layer(store, *lower), layer(store, member("dev/"), null, disk, link, *again)
    unpack(image(store, *layers), tmp_path / "r", store)
    assert {path.name for path in (tmp_path / "r/dev").iterdir()} == {"kept", "log"}


def test_links_across_layers(store: Store, tmp_path: Path) -> None:
    """A file of several layers is one inode; a name that is gone below has its content still."""
    lower = layer(store, member("a", b"A", mode=0o640), member("b", b"B"))
    upper = layer(store, member("c", kind=tarfile.LNKTYPE, target="a"), member(".wh.a", b""))
    for number, one in enumerate((lower, upper)):
        unpack_layer(one, tmp_path / str(number), store)
    sources = [unpacked_source(tmp_path / str(number)) for number in range(2)]
    for name in ("one", "two"):
        write_tree(sources, tmp_path / name)
    assert files(tmp_path / "one") == {"b", "c"} and (tmp_path / "one/c").read_bytes() == b"A"
    assert (tmp_path / "one/c").samefile(tmp_path / "two/c")
    assert stat.S_IMODE((tmp_path / "one/c").stat().st_mode) == 0o640


@pytest.mark.parametrize("reason", [errno.EMLINK, errno.EXDEV, errno.EPERM])
def test_no_more_links(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    """A file that cannot have another name is copied, with its mode and time."""

    def link(source: str, target: str, **more: object) -> None:
        raise OSError(reason, os.strerror(reason), source)

    unpack_layer(layer(store, member("a", b"A", mode=0o750)), tmp_path / "layer", store)
    monkeypatch.setattr(os, "link", link)
    write_tree([unpacked_source(tmp_path / "layer")], tmp_path / "root")
    info = (tmp_path / "root/a").stat()
    assert (tmp_path / "root/a").read_bytes() == b"A" and info.st_nlink == 1
    assert stat.S_IMODE(info.st_mode) == 0o750 and info.st_mtime == EPOCH
