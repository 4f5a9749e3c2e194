"""OCI layouts: written, read back, shared, damaged."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from builder.core.errors import ImageError, SpaceError
from builder.core.model import Image
from builder.core.store.blobs import Store
from builder.formats.oci.layout import (
    list_tags,
    move_layout_tag,
    prune_layout,
    read_layout,
    restore_tag,
    write_layout,
)
from tests.support.image_kit import image, layer, member


def blobs(folder: Path) -> set[str]:
    return {p.name for p in (folder / "blobs/sha256").iterdir()}


def expected(*images: Image) -> set[str]:
    digests = {
        d
        for i in images
        for d in (i.digest, i.config_descriptor.digest, *(x.descriptor.digest for x in i.layers))
    }
    return {d.removeprefix("sha256:") for d in digests}


def test_round_trip(store: Store, tmp_path: Path) -> None:
    """What is written is read back."""
    made = image(store, layer(store, member("a", b"1"), title="first"))
    write_layout(made, tmp_path / "dist", "cpu", store)
    assert json.loads((tmp_path / "dist/oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    assert list_tags(tmp_path / "dist") == {"cpu": made.digest}
    for name in ("cpu", made.digest, None):
        found = read_layout(tmp_path / "dist", name)
        assert (found.digest, found.config, found.manifest) == (made.digest, made.config, made.manifest)
        assert [x.descriptor for x in found.layers] == [x.descriptor for x in made.layers]
        assert [x.diff_id for x in found.layers] == [x.diff_id for x in made.layers]
        assert found.layers[1].title == "builder: first"
        assert all(x.path and x.path.is_relative_to(tmp_path / "dist") for x in found.layers)
    assert blobs(tmp_path / "dist") == expected(made)


def test_prune(store: Store, tmp_path: Path) -> None:
    """A tag moves to another image, and pruning removes the blobs of the old one."""
    dist = tmp_path / "dist"
    one, two = image(store, layer(store, member("a", b"1"))), image(store, layer(store, member("b", b"2")))
    write_layout(one, dist, "x", store)
    write_layout(two, dist, "x", store)
    assert list_tags(dist) == {"x": two.digest}
    assert read_layout(dist, "x").digest == two.digest
    assert blobs(dist) == expected(one, two)
    size = sum((dist / "blobs/sha256" / name).stat().st_size for name in expected(one) - expected(two))
    assert prune_layout(dist) == size > 0
    assert blobs(dist) == expected(two)
    assert prune_layout(dist) == 0


def test_damaged_blob(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob with wrong content is replaced."""
    made = image(store)
    with monkeypatch.context() as m:
        m.setattr(os, "link", lambda *a, **k: (_ for _ in ()).throw(OSError(18, "x")))
        write_layout(made, tmp_path / "dist", "x", store)
    for name in blobs(tmp_path / "dist"):
        path = tmp_path / "dist/blobs/sha256" / name
        path.write_bytes(b"?" * path.stat().st_size)
    write_layout(made, tmp_path / "dist", "x", store)
    for name in blobs(tmp_path / "dist"):
        assert store.verify(tmp_path / "dist/blobs/sha256" / name, f"sha256:{name}")


def test_many_writers(store: Store, tmp_path: Path) -> None:
    """Several writers at the same time lose no image."""
    images = [image(store, layer(store, member(f"f{n}", b"1"))) for n in range(8)]
    threads = [
        threading.Thread(target=write_layout, args=(made, tmp_path / "dist", f"t{n}", store))
        for n, made in enumerate(images)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list_tags(tmp_path / "dist") == {f"t{n}": made.digest for n, made in enumerate(images)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d, i: (d / "oci-layout").unlink(), "not an OCI layout: oci-layout is missing"),
        (lambda d, i: (d / "index.json").unlink(), "index.json is missing"),
        (lambda d, i: (d / "index.json").write_text("{"), "index.json is not JSON"),
        (lambda d, i: (d / "index.json").write_text("[]"), "not a JSON object"),
        (
            lambda d, i: (d / "index.json").write_text('{"manifests": 1}'),
            "manifests: input should be a valid list",
        ),
        (lambda d, i: (d / "index.json").write_text('{"manifests": []}'), "no image 'x'"),
        (lambda d, i: (d / "oci-layout").write_text('{"imageLayoutVersion": "2.0"}'), "version '2.0'"),
        (lambda d, i: blob(d, i.digest).unlink(), r"blob sha256:\w+ is missing"),
        (lambda d, i: blob(d, i.digest).write_bytes(b"{}"), "is corrupt"),
        (lambda d, i: blob(d, i.config_descriptor.digest).write_bytes(b"{}"), "is corrupt"),
        (lambda d, i: blob(d, i.layers[0].descriptor.digest).unlink(), r"layer sha256:\w+ is missing"),
        (lambda d, i: os.truncate(blob(d, i.layers[0].descriptor.digest), 5), "5 bytes, the manifest lists"),
    ],
)
def test_damaged_layout(store: Store, tmp_path: Path, damage, message: str) -> None:
    """The message about a damaged layout names what is wrong."""
    made = image(store)
    write_layout(made, tmp_path / "dist", "x", store)
    damage(tmp_path / "dist", made)
    with pytest.raises(ImageError, match=message) as caught:
        read_layout(tmp_path / "dist", "x")
    assert caught.value.hint


def blob(folder: Path, digest: str) -> Path:
    return folder / "blobs/sha256" / digest.removeprefix("sha256:")


def test_digest_that_is_a_path(store: Store, tmp_path: Path) -> None:
    """A digest that would be another path is refused."""
    write_layout(image(store), tmp_path / "dist", "x", store)
    index = json.loads((tmp_path / "dist/index.json").read_text())
    index["manifests"][0]["digest"] = "sha256:../../../etc/passwd"
    (tmp_path / "dist/index.json").write_text(json.dumps(index))
    with pytest.raises(ImageError, match="is not a digest"):
        read_layout(tmp_path / "dist", "x")


def test_image_index(store: Store, tmp_path: Path) -> None:
    """Of an image index the image for the architecture is read."""
    dist, made = tmp_path / "dist", image(store)
    write_layout(made, dist, "x", store)
    entries = [
        {**made.manifest_descriptor.to_json(), "platform": {"os": "linux", "architecture": a}}
        for a in ("amd64", "arm64")
    ] + [{**made.manifest_descriptor.to_json(), "platform": {"os": "unknown", "architecture": "unknown"}}]
    data = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
    digest = store.add(data)
    (dist / "blobs/sha256" / store.path(digest).name).write_bytes(data)
    index = {
        "schemaVersion": 2,
        "manifests": [
            {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": len(data)}
        ],
    }
    (dist / "index.json").write_text(json.dumps(index))
    assert read_layout(dist, None, "arm64").digest == made.digest
    with pytest.raises(ImageError, match="no image for linux/riscv64") as caught:
        read_layout(dist, None, "riscv64")
    assert "amd64, arm64" in caught.value.hint
    with pytest.raises(ImageError, match="several architectures"):
        read_layout(dist)


def test_full_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a SpaceError, and the index is not written."""
    made = image(store)

    def full(*a: object, **k: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr("builder.core.store.blobs.copy_hashed", full)
    with pytest.raises(SpaceError, match="no space left on the disk of"):
        write_layout(made, tmp_path / "dist", "x", store)
    assert not (tmp_path / "dist/index.json").exists()


def test_move_tag(store: Store, tmp_path: Path) -> None:
    """A tag moves only if it names what the caller expects, and the other images stay."""
    one, two = (image(store, layer(store, member(name, b"1"))) for name in "ab")
    folder = tmp_path / "there"
    write_layout(one, folder, "latest", store)
    write_layout(two, folder, None, store)
    refuse = Mock(return_value=False)
    assert move_layout_tag(folder, "latest", two.manifest_descriptor, refuse) == (one.digest, one.digest)
    assert move_layout_tag(folder, "26.11", two.manifest_descriptor, refuse) == (None, None)
    assert refuse.call_args_list == [call(one.digest), call(None)]
    assert list_tags(folder) == {"latest": one.digest}
    assert move_layout_tag(folder, "26.11", two.manifest_descriptor, lambda d: True) == (None, two.digest)
    assert list_tags(folder) == {"latest": one.digest, "26.11": two.digest}
    assert move_layout_tag(folder, "26.11", two.manifest_descriptor, refuse) == (two.digest, two.digest)


def _elsewhere(store: Store, folder: Path) -> tuple[Path, Image]:
    made = image(store)
    write_layout(made, folder / "dist", "x", store)
    return folder / "dist", made


@pytest.mark.parametrize("name", ["index.json", "oci-layout", "manifest", "config", "layer"])
@pytest.mark.parametrize("kind", ["link", "zero", "pipe"])
def test_files_that_are_not_ordinary(store: Store, tmp_path: Path, name: str, kind: str) -> None:
    """A layout from elsewhere is read without following links, and nothing waits for a pipe."""
    dist, made = _elsewhere(store, tmp_path)
    digests = {
        "manifest": made.digest,
        "config": made.config_descriptor.digest,
        "layer": made.layers[0].descriptor.digest,
    }
    path = dist / "blobs" / digests[name].replace(":", "/") if name in digests else dist / name
    data = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        (tmp_path / "outside").write_bytes(data)
        path.symlink_to(tmp_path / "outside")
    message = f"{path} is not an ordinary file" if kind == "pipe" else f"{path} is a symbolic link"
    with pytest.raises(ImageError) as caught:
        read_layout(dist, "x")
    assert caught.value.message == message


def test_restore_tag(store: Store, tmp_path: Path) -> None:
    """A tag that another writer's index lost is listed again; other tags stay."""
    folder = tmp_path / "dist"
    lost, other = (image(store, layer(store, member(name, b"1"))) for name in ("lost", "other"))
    write_layout(lost, folder, "lost", store)
    (folder / "index.json").unlink()
    write_layout(other, folder, "other", store)
    restore_tag(folder, "lost", lost.digest)
    assert list_tags(folder) == {"lost": lost.digest, "other": other.digest}
    before = (folder / "index.json").stat().st_ino
    restore_tag(folder, "lost", lost.digest)
    assert (folder / "index.json").stat().st_ino == before
    assert read_layout(folder, "lost").digest == lost.digest
    with pytest.raises(ImageError, match="the manifest sha256:0.* is missing"):
        restore_tag(folder, "lost", f"sha256:{'0' * 64}")
