"""OCI layouts: written, read back, shared, damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import ImageError, SpaceError
from builder.model import Image
from builder.oci.layout import (
    blob_path,
    list_tags,
    move_layout_tag,
    prune_layout,
    read_layout,
    restore_tag,
    write_layout,
)
from builder.store.blobs import Store
from builder.store.temporary import temporary_beside
from tests.support.disk import flip
from tests.support.image_kit import image, layer, member


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


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


def test_links_or_copies(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs are hard links where the file system allows it, else copies."""
    made = image(store)
    write_layout(made, tmp_path / "linked", "x", store)
    path = made.layers[0].path
    assert path is not None and (tmp_path / "linked/blobs/sha256" / path.name).samefile(path)

    def other_file_system(*a: object, **k: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_file_system)
    write_layout(made, tmp_path / "copied", "x", store)
    copy = tmp_path / "copied/blobs/sha256" / path.name
    assert not copy.samefile(path) and copy.read_bytes() == path.read_bytes()


def test_several_images(store: Store, tmp_path: Path) -> None:
    """A layout holds several images and tags."""
    one, two = image(store, layer(store, member("a", b"1"))), image(store, layer(store, member("b", b"2")))
    for made, tag in ((one, "a"), (two, "b"), (one, "c"), (one, None), (two, "b")):
        write_layout(made, tmp_path / "dist", tag, store)
    assert list_tags(tmp_path / "dist") == {"a": one.digest, "b": two.digest, "c": one.digest}
    assert len(json.loads((tmp_path / "dist/index.json").read_text())["manifests"]) == 3
    with pytest.raises(ImageError, match="3 images") as caught:
        read_layout(tmp_path / "dist")
    assert "a, b, c" in caught.value.hint
    with pytest.raises(ImageError, match="no image 'd'"):
        read_layout(tmp_path / "dist", "d")


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


def test_prune_with_other_digests(store: Store, tmp_path: Path) -> None:
    """An image with a hash that builder does not know is not touched."""
    write_layout(image(store), tmp_path / "dist", "x", store)
    index = json.loads((tmp_path / "dist/index.json").read_text())
    index["manifests"].append({**index["manifests"][0], "digest": "sha512:" + "0" * 128})
    (tmp_path / "dist/index.json").write_text(json.dumps(index))
    assert prune_layout(tmp_path / "dist") == 0


def test_image_without_tag(store: Store, tmp_path: Path) -> None:
    """An image without a tag is found by its digest."""
    made = image(store)
    write_layout(made, tmp_path / "dist", None, store)
    assert list_tags(tmp_path / "dist") == {}
    assert read_layout(tmp_path / "dist", made.digest).digest == made.digest
    write_layout(made, tmp_path / "dist", "now", store)
    assert len(json.loads((tmp_path / "dist/index.json").read_text())["manifests"]) == 1


def test_unchanged(store: Store, tmp_path: Path) -> None:
    """Writing the same image again changes no file, also where the layout has other images."""
    made = image(store)
    write_layout(made, tmp_path / "dist", "x", store)
    write_layout(image(store, layer(store, member("a", b"1"))), tmp_path / "dist", "y", store)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "dist").rglob("*") if p.name != ".lock"}
    write_layout(made, tmp_path / "dist", "x", store)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "dist").rglob("*") if p.name != ".lock"} == before


def test_pipe_in_place_of_a_blob(store: Store, tmp_path: Path) -> None:
    """A pipe or a link where a document belongs is replaced, and not read."""
    made = image(store)
    write_layout(made, tmp_path / "dist", "x", store)
    config, manifest = (blob_path(tmp_path / "dist", d) for d in (made.config_descriptor.digest, made.digest))
    config.unlink()
    os.mkfifo(config)
    manifest.rename(tmp_path / "elsewhere")
    manifest.symlink_to(tmp_path / "elsewhere")
    write_layout(made, tmp_path / "dist", "x", store)
    assert read_layout(tmp_path / "dist", "x").digest == made.digest


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


def test_killed_writer(store: Store, tmp_path: Path) -> None:
    """A writer that is killed before it replaces the index leaves the old image."""
    old, new = image(store, layer(store, member("a", b"1"))), image(store, layer(store, member("a", b"2")))
    dist = tmp_path / "dist"
    write_layout(old, dist, "x", store)
    code = (
        "import os,sys; from pathlib import Path; from builder.store.blobs import Store\n"
        "from tests.support.image_kit import *\n"
        "import builder.oci.layout as l\n"
        "real = l.write_atomic\n"
        "l.write_atomic = lambda p, d, **k: os._exit(9) if p.name == 'index.json' else real(p, d, **k)\n"
        f"s = Store(Path({str(store.root)!r})); l.write_layout(image(s, layer(s, member('a', b'2'))), "
        f"Path({str(dist)!r}), 'x', s)\n"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode
        == 9
    )
    assert read_layout(dist, "x").digest == old.digest
    write_layout(new, dist, "x", store)
    assert read_layout(dist, "x").digest == new.digest


def test_missing_base_layer(store: Store, tmp_path: Path) -> None:
    """An image whose base layers were not downloaded is not written."""
    made = image(store)
    absent = replace(made, layers=(replace(made.layers[0], path=None, origin="h.org/debian"),))
    with pytest.raises(ImageError, match=r"base layer sha256:\w+ is still in h.org/debian"):
        write_layout(absent, tmp_path / "dist", "x", store)
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("how", ["link", "copy"])
def test_flipped_bit(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A cached layer in which a bit has flipped is not placed, but removed from the cache."""
    if how == "copy":
        monkeypatch.setattr(os, "link", lambda *a, **k: (_ for _ in ()).throw(OSError(18, "x")))
    old, new = image(store), image(store, layer(store, member("a", b"1")))
    dist, path = tmp_path / "dist", new.layers[1].path
    write_layout(old, dist, "x", store)
    assert path is not None
    flip(path)
    with pytest.raises(ImageError, match=f"{path} is corrupt") as caught:
        write_layout(new, dist, "x", Store(store.root))
    assert "run the command again" in caught.value.hint
    assert not path.exists() and blobs(dist) == expected(old) and list_tags(dist) == {"x": old.digest}
    write_layout(image(store, layer(store, member("a", b"1"))), dist, "x", store)
    assert list_tags(dist) == {"x": new.digest}


def test_order_of_syncs(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is renamed to its place when the blobs and their names are on the disk, and it is itself."""
    dist = tmp_path / "dist"
    made = image(store)
    done = watch_the_disk(monkeypatch)
    write_layout(made, dist, "x", store)
    at = done.index("rename index.json")
    assert {f"sync {name}" for name in expected(made)} <= set(done[:at])
    assert {"sync sha256", "sync blobs", "sync dist", "sync index.json"} <= set(done[:at])
    assert done[at + 1 :] == ["sync dist"]
    done.clear()
    write_layout(made, dist, "x", store)
    assert done == ["sync index.json", "sync dist"], "nothing changed"
    done.clear()
    write_layout(made, dist, "y", store, durable=False)
    assert done == ["rename index.json"]


def watch_the_disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are synced, and of the index when it gets its name, in this order."""
    done: list[str] = []
    real = Path.replace

    def sync(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]
        done.append("sync " + (name.split(".blob-")[0].removeprefix(".")))

    def rename(path: Path, target: Path) -> Path:
        if target.name == "index.json":
            done.append("rename index.json")
        return real(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    return done


def test_prune_removes_leftovers(store: Store, tmp_path: Path) -> None:
    """The temporary files of killed writers are removed wherever they are; those of others stay."""
    dist = tmp_path / "dist"
    write_layout(image(store), dist, "x", store)
    before = sorted(dist.rglob("*"))
    code = "from builder.store.temporary import temporary_beside; from pathlib import Path; import sys\n"
    code += "for name in sys.argv[1:]: temporary_beside(Path(name)).write_bytes(b'12345')"
    names = [dist / "index.json", dist / "oci-layout", dist / "blobs" / "sha256" / ("0" * 64)]
    names.append(dist / "target.sif")
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code, *names], cwd=root, check=True)
    mine = temporary_beside(dist / "target.sif")
    mine.write_bytes(b"being written")
    assert prune_layout(dist) == 20
    assert sorted(dist.rglob("*")) == sorted([*before, mine])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d, i: (d / "oci-layout").unlink(), "not an OCI layout: oci-layout is missing"),
        (lambda d, i: (d / "index.json").unlink(), "index.json is missing"),
        (lambda d, i: (d / "index.json").write_text("{"), "index.json is not JSON"),
        (lambda d, i: (d / "index.json").write_text("[]"), "not a JSON object"),
        (lambda d, i: (d / "index.json").write_text('{"manifests": 1}'), "no list of manifests"),
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


def test_not_a_folder(store: Store, tmp_path: Path) -> None:
    """A file and a missing folder are errors."""
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match="is not a folder"):
        write_layout(image(store), tmp_path / "file", "x", store)
    with pytest.raises(ImageError, match="no such folder"):
        read_layout(tmp_path / "nowhere")
    with pytest.raises(ImageError, match="no such folder"):
        prune_layout(tmp_path / "nowhere")


def test_full_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a SpaceError, and the index is not written."""
    made = image(store)

    def full(*a: object, **k: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr("builder.store.blobs.copy_hashed", full)
    with pytest.raises(SpaceError, match="no space left on the disk of"):
        write_layout(made, tmp_path / "dist", "x", store)
    assert not (tmp_path / "dist/index.json").exists()


def test_move_tag(store: Store, tmp_path: Path) -> None:
    """A tag moves only if it names what the caller expects, and the other images stay."""
    one, two = (image(store, layer(store, member(name, b"1"))) for name in "ab")
    folder = tmp_path / "there"
    write_layout(one, folder, "latest", store)
    write_layout(two, folder, None, store)
    seen: list[str | None] = []

    def refuse(before: str | None) -> bool:
        seen.append(before)
        return False

    assert move_layout_tag(folder, "latest", two.manifest_descriptor, refuse) == (one.digest, one.digest)
    assert move_layout_tag(folder, "26.11", two.manifest_descriptor, refuse) == (None, None)
    assert seen == [one.digest, None] and list_tags(folder) == {"latest": one.digest}
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


def test_large_documents(store: Store, tmp_path: Path) -> None:
    """A manifest or config over 8 MiB is refused before it is read."""
    dist, made = _elsewhere(store, tmp_path)
    index = json.loads((dist / "index.json").read_text())
    index["manifests"][0]["size"] = 2_000_000_000
    (dist / "index.json").write_text(json.dumps(index))
    with pytest.raises(ImageError, match=rf"blob {made.digest} is too large: 2\.0 GB, at most 8\.4 MB"):
        read_layout(dist, "x")
    index["manifests"][0]["size"] = len(made.manifest) + 1
    (dist / "index.json").write_text(json.dumps(index))
    with pytest.raises(ImageError, match="its descriptor lists"):
        read_layout(dist, "x")
    os.truncate(dist / "index.json", 1 << 40)
    with pytest.raises(ImageError, match=r"index\.json is too large: 1099\.5 GB"):
        read_layout(dist, "x")


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
