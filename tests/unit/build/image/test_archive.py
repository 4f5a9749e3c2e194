"""Archives: their content, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.image.archive import write_docker_archive
from builder.core.errors import ImageError
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Inline
from builder.formats.oci.layout import read_layout
from tests.support.disk import flip
from tests.support.image_kit import image, layer, member


def content(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]


def test_docker_archive(store: Store, tmp_path: Path) -> None:
    """An archive for Docker lists a layer twice that the image has twice, and holds it once."""
    one = layer(store, member("a", b"1"))
    made = image(store, one, one)  # the same layer twice: written once, listed twice
    write_docker_archive(made, tmp_path / "a.tar", "builder/tiny:latest")
    found = content(tmp_path / "a.tar")
    (listing,) = json.loads(found["manifest.json"])
    assert listing["RepoTags"] == ["builder/tiny:latest"] and found[listing["Config"]] == made.config
    assert [hashlib.sha256(found[n]).hexdigest() for n in listing["Layers"]] == [
        x.descriptor.digest[7:] for x in made.layers
    ]
    assert len(found) == 7  # with the index, the manifest and the marker of an OCI layout


def test_oci_layout(store: Store, tmp_path: Path) -> None:
    """The archive is an OCI layout, too: it has the image's own manifest, under Docker's full name."""
    made = image(store, layer(store, member("a", b"1")))
    write_docker_archive(made, tmp_path / "a.tar", "builder/tiny:latest")
    with tarfile.open(tmp_path / "a.tar") as tar:
        tar.extractall(tmp_path / "layout")
    read = read_layout(tmp_path / "layout", "latest")
    assert (read.digest, read.config) == (made.digest, made.config)
    (entry,) = json.loads((tmp_path / "layout/index.json").read_text())["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/builder/tiny:latest"


@pytest.mark.parametrize("known", [True, False], ids=["size known", "size not known"])
def test_zstd_layers(store: Store, tmp_path: Path, known: bool) -> None:
    """zstd layers are uncompressed in an archive for Docker."""
    entry = Entry("a", "file", size=3_000_000, content=Inline(bytes(range(250)) * 12_000))
    own = Settings(tmp_path, tmp_path, 1)
    one = make_layer([entry], "", Workspace(own, store), compression="zstd")
    write_docker_archive(image(store, one if known else replace(one, unpacked=0)), tmp_path / "a.tar", "x:y")
    found = content(tmp_path / "a.tar")
    name = json.loads(found["manifest.json"])[0]["Layers"][1]
    assert "sha256:" + hashlib.sha256(found[name]).hexdigest() == one.diff_id
    assert "index.json" not in found  # its manifest would list layers that are not there


def test_deterministic(store: Store, tmp_path: Path) -> None:
    """The same image results in the same bytes, whatever the folder and the umask."""
    made = image(store, layer(store, member("a", b"1")))
    write_docker_archive(made, tmp_path / "1.tar", "x:y")
    before = os.umask(0o077)
    try:
        write_docker_archive(made, tmp_path / "sub/2.tar", "x:y")
    finally:
        os.umask(before)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "sub/2.tar").read_bytes()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_flipped_bit(store: Store, tmp_path: Path, compression) -> None:
    """A layer in which a bit has flipped goes into no archive, also where the format has no checksum."""
    entry = Entry("a", "file", size=25_000, content=Inline(bytes(range(250)) * 100))
    one = make_layer([entry], "", Workspace(Settings(tmp_path, tmp_path, 1), store), compression=compression)
    made = image(store, one)
    (tmp_path / "a.tar").write_bytes(b"the archive before")
    flip(one.path)
    with pytest.raises(ImageError, match=f"{one.path}.* (corrupt|damaged)") as e:
        write_docker_archive(made, tmp_path / "a.tar", "x:y")
    assert e.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "cache"]
    assert (tmp_path / "a.tar").read_bytes() == b"the archive before"
