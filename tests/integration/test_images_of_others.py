"""Images as other tools write them: builder reads what GNU tar and skopeo wrote, as apptainer does."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.oci.image import plain_image
from builder.formats.oci.layout import write_layout
from tests.support import parts
from tests.support.image_kit import layer, member, plain_layer, settings, tar_bytes
from tests.support.images import unpack

LINK = tarfile.LNKTYPE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def image_of(tars: list[bytes], store: Store, **inner: object) -> Image:
    """An image of uncompressed layers; its config names no processor, as that of crane append."""
    layers = [plain_layer(store, tar) for tar in tars]
    rootfs = {"type": "layers", "diff_ids": [one.diff_id for one in layers]}
    return plain_image(layers, {"architecture": "", "os": "", "config": inner, "rootfs": rootfs})


@pytest.mark.parametrize("form", ["pax 0.0", "pax 0.1", "pax 1.0"])
def test_sparse_files_of_tar(tmp_path: Path, store: Store, form: str) -> None:
    """Sparse files of GNU tar have the bytes that they have on the disk."""
    data = tmp_path / "data"
    data.mkdir()
    for name, pieces in {"few": (0, 700_000), "many": range(100, 4_000_000, 65_536), "hole": ()}.items():
        with (data / name).open("wb") as file:
            for offset in pieces:
                file.seek(offset)
                file.write(f"at {offset}".encode())
            file.truncate(4_000_000)
    kind, _, version = form.partition(" ")
    options = [f"--format={kind}", *([f"--sparse-version={version}"] if version else [])]
    tar = subprocess.run(
        ["tar", "-C", tmp_path, *options, "-cSf", "-", "data"], check=True, capture_output=True
    ).stdout
    assert len(tar) < 1_000_000
    unpack(image_of([tar], store), tmp_path / "root", store)
    for path in data.iterdir():
        assert (tmp_path / "root/data" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "members",
    [
        [member("d/", mode=0o700), member("d/a", b"A"), member("d/", mode=0o755), member("d/b", b"B")],
        [member("d/", mode=0o700), member("d/a", b"A"), member("d", target="e"), member("e/", mode=0o700)],
        [member("a", b"A"), member("h", kind=LINK, target="a"), member("a", b"B")],
        [member("e/", mode=0o755), member("d", target="e"), member("d/a", b"A")],
        [member("e/../a", b"A"), member("x/.wh.gone", b"")],
    ],
    ids=["folder twice", "folder and link", "file twice", "below a link", "names"],
)
def test_layers_like_apptainer(
    apptainer: parts.Apptainer, tmp_path: Path, store: Store, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    """Layers with repeated members and without an end are unpacked as apptainer does."""
    tar = tar_bytes(members).rstrip(b"\0")
    tar += bytes(-len(tar) % tarfile.BLOCKSIZE)  # the end of the last member; no block of zeros follows
    made = image_of([tar_bytes([member("lower", b"L")]), tar, b""], store, Labels={"a": None}, Cmd=[None])
    write_layout(made, tmp_path / "layout", None, store)
    apptainer.run("build", "--sandbox", tmp_path / "theirs", f"oci:{tmp_path / 'layout'}")
    unpack(made, tmp_path / "ours", store)
    for path in (tmp_path / "ours").rglob("*"):
        other = tmp_path / "theirs" / path.relative_to(tmp_path / "ours")
        assert path.is_symlink() == other.is_symlink() and path.lstat().st_mode == other.lstat().st_mode
        assert path.is_dir() or path.is_symlink() or path.read_bytes() == other.read_bytes()
    names = {path.name for path in (tmp_path / "theirs").iterdir()} & {"a", "d", "e", "h", "x", "lower"}
    assert names == {path.name for path in (tmp_path / "ours").iterdir()}


def test_names_of_skopeo(tmp_path: Path, store: Store) -> None:
    """skopeo writes the full name into a docker archive, and finds it by the short one."""
    parts.need("skopeo")
    one = layer(store, member("a", b"A"))
    rootfs = {"type": "layers", "diff_ids": [one.diff_id]}
    made = plain_image([one], {"architecture": "amd64", "os": "linux", "rootfs": rootfs})
    write_layout(made, tmp_path / "layout", "t", store)
    archive = f"docker-archive:{tmp_path / 'x.tar'}"
    copy = ["skopeo", "copy", "-q", f"oci:{tmp_path / 'layout'}:t", f"{archive}:team/x:1"]
    subprocess.run(copy, check=True)
    work = Workspace(settings(tmp_path), store)
    for name in ("team/x:1", "docker.io/team/x:1", "1"):
        locked = resolve_base(f"{archive}:{name}", WantedBase("amd64"), work)
        assert open_base(locked, WantedBase("amd64"), work).layers[0].diff_id == one.diff_id
