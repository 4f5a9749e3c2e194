"""Base images in archives."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from builder.build.bases import archive
from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import resolve_base
from builder.build.image.archive import write_docker_archive
from builder.core.errors import ImageError
from builder.core.model import Image
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.oci.documents import MAX_DOCUMENT
from builder.formats.trees.inflate import inflate
from tests.support.base_files import write_base
from tests.support.image_kit import image, layer, member, tar_bytes


@pytest.fixture
def made(tmp_path: Path) -> Image:
    elsewhere = Store(tmp_path / "elsewhere")
    return image(elsewhere, layer(elsewhere, member("a", b"1" * 5000)), env={"FROM": "base"})


def test_damaged_archives(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    """Archives that are damaged or of another kind are errors that name the file."""
    reference = write_base("docker-archive", made, tmp_path)
    file = tmp_path / "image.tar"
    data = file.read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(ImageError, match=message) as caught:
            resolve_base(
                reference, WantedBase("amd64", root=tmp_path), Workspace(given, Store(tmp_path / "fresh"))
            )
        assert "image.tar" in caught.value.message
        shutil.rmtree(tmp_path / "fresh", ignore_errors=True)

    file.write_bytes(b"not a tar" * 100)
    refused("not a complete archive")
    file.write_bytes(lzma.compress(data))
    refused("is compressed with xz")
    file.write_bytes(data[: len(data) // 2])
    refused("archive|damaged|has no|read")
    one = made.layers[1].path
    assert one is not None
    at = data.index(one.read_bytes())
    file.write_bytes(data[:at] + bytes(reversed(data[at : at + 200])) + data[at + 200 :])
    refused("damaged")
    file.write_bytes(tar_bytes([member("etc/passwd", b"x")]))
    refused("has no manifest.json")


def test_wrong_layer_in_docker_archive(made: Image, store: Store, given: Settings, tmp_path: Path) -> None:
    """A layer that does not match the diff_id of the config is an error."""
    write_base("docker save", made, tmp_path)
    with tarfile.open(tmp_path / "saved.tar") as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
    changed = [(m, tar_bytes([member("evil", b"x")]) if m.name == "1/layer.tar" else d) for m, d in members]
    for m, d in changed:
        m.size = len(d)
    (tmp_path / "saved.tar").write_bytes(tar_bytes(changed))
    with pytest.raises(ImageError, match=r"layer 1/layer.tar is sha256:\w+, its config lists"):
        resolve_base("docker-archive:saved.tar", WantedBase("amd64", root=tmp_path), Workspace(given, store))


def _refused(file: Path, members: list[tuple[tarfile.TarInfo, bytes]], given: Settings, message: str) -> None:
    file.write_bytes(tar_bytes(members))
    with pytest.raises(ImageError, match=message) as caught:
        resolve_base(
            f"docker-archive:{file}", WantedBase("amd64"), Workspace(given, Store(file.parent / "fresh"))
        )
    assert "\n" not in caught.value.message


def test_hostile_archives(given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that lead nowhere or in a circle, large documents and many members are refused."""
    file = tmp_path / "image.tar"
    name = "manifest.json"
    _refused(file, [member(name, target=name)], given, "manifest.json is not a file")
    _refused(file, [member(name, target="b"), member("b", target=name)], given, "is not a file")
    _refused(file, [member(name, target="../../etc/passwd")], given, "is not a file")
    _refused(file, [member(name, kind=tarfile.LNKTYPE, target="/etc/passwd")], given, "is not a file")
    _refused(file, [member(name, kind=tarfile.FIFOTYPE)], given, "is not a file")
    large = member(name, b"x" * (MAX_DOCUMENT + 1))
    _refused(file, [large], given, "manifest.json is too large: 8.4 MB, at most 8.4 MB are allowed")
    holes, _ = member("hole")
    holes.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 62)}
    config = json.dumps({"rootfs": {"diff_ids": [f"sha256:{0:064}"]}}).encode()
    listing = json.dumps([{"Config": "c", "Layers": ["hole"]}]).encode()
    hostile = [member(name, listing), member("c", config), (holes, b"")]
    _refused(file, hostile, given, r"hole is too large: 4611686018.4 GB, at most 1099.5 GB are allowed")
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    _refused(file, [member(f"{i}", b"") for i in range(11)], given, "more than 10 members")


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("docker.io/team/x:1", "team/x:1"),
        ("team/x:1", "docker.io/team/x:1"),
        ("docker.io/library/x:latest", "x"),
        ("x:latest", "docker.io/library/x"),
        ("x:latest", "index.docker.io/x:latest"),
        ("localhost/x:1", "localhost/x:1"),
        ("team/x:1", "1"),
    ],
)
def test_names(made: Image, given: Settings, store: Store, tmp_path: Path, written: str, asked: str) -> None:
    """A name is found as docker completes it: with Docker Hub's host, ``library/`` and ``latest``."""
    write_docker_archive(made, tmp_path / "image.tar", written)
    work = Workspace(given, store)
    assert resolve_base(f"docker-archive:image.tar:{asked}", WantedBase("amd64", root=tmp_path), work)
    for other in ("other/x:1", "quay.io/team/x:1", "y", "2"):
        with pytest.raises(ImageError, match=f"holds 0 images named '{other}'"):
            resolve_base(f"docker-archive:image.tar:{other}", WantedBase("amd64", root=tmp_path), work)


@pytest.mark.parametrize(("magic", "program"), [(b"BZh9", "bzip2"), (b"\xfd7zXZ\0", "xz")])
def test_other_compression(given: Settings, store: Store, tmp_path: Path, magic: bytes, program: str) -> None:
    """An archive of another compression is refused with the command that decompresses it."""
    (tmp_path / "image.tar").write_bytes(magic + bytes(600))
    with pytest.raises(ImageError, match=f"is compressed with {program}") as caught:
        resolve_base("docker-archive:image.tar", WantedBase("amd64", root=tmp_path), Workspace(given, store))
    assert caught.value.hint == f"run {program} -d {tmp_path / 'image.tar'}"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_archives(
    made: Image, given: Settings, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """Archives may be compressed, and leave nothing but the image in the store."""
    reference = write_base("docker-archive", made, tmp_path)
    plain = resolve_base(
        reference, WantedBase("amd64", root=tmp_path), Workspace(given, Store(tmp_path / "a"))
    )
    file = tmp_path / "image.tar"
    file.write_bytes(compress(file.read_bytes()))
    store = Store(tmp_path / "b")
    assert resolve_base(reference, WantedBase("amd64", root=tmp_path), Workspace(given, store)) == plain
    assert not any(store.tmp.iterdir())
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ImageError, match="archive|damaged"):
        resolve_base(reference, WantedBase("amd64", root=tmp_path), Workspace(given, Store(tmp_path / "c")))


def test_compressed_archive_is_read_once(
    made: Image, given: Settings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decompressed once, not again for each layer."""
    write_base("docker-archive", made, tmp_path)
    file = tmp_path / "image.tar"
    file.write_bytes(gzip.compress(file.read_bytes()))
    read: list[Path] = []
    monkeypatch.setattr(archive, "inflate", lambda path: (read.append(path), inflate(path))[1])
    resolve_base("docker-archive:image.tar", WantedBase("amd64", root=tmp_path), Workspace(given, store))
    assert read == [file]


def test_names_with_a_dot(made: Image, given: Settings, store: Store, tmp_path: Path) -> None:
    """The names in manifest.json may begin with ./, as in skopeo."""
    reference = write_base("docker-archive", made, tmp_path)
    file = tmp_path / "image.tar"
    with tarfile.open(file) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar if m.isfile()]  # type: ignore[union-attr]
    for number, (m, data) in enumerate(members):
        if m.name == "manifest.json":
            (found,) = json.loads(data)
            names = [f"./{name}" for name in found["Layers"]]
            changed = json.dumps([{**found, "Config": f"./{found['Config']}", "Layers": names}]).encode()
            m.size = len(changed)
            members[number] = m, changed
    plain = resolve_base(reference, WantedBase("amd64", root=tmp_path), Workspace(given, store))
    file.write_bytes(tar_bytes(members))
    assert resolve_base(reference, WantedBase("amd64", root=tmp_path), Workspace(given, store)) == plain
