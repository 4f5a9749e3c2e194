"""The history of images: what is recorded, what stays, and what two images share."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.engines.base import BuildResult
from builder.core.model import Image, Lock, LockedBase, SifImage
from builder.deliver.history import SUFFIX, History, ImageRecord, read_images, record_image, told_apart
from builder.lock.config.recipe import Recipe
from tests.support.images import make_layer, make_test_image

#: The layers of an image of target ``t``, by their titles in the history of the image.
TITLES = {"FROM scratch": 3000, "builder: pip torch 2.12": 9000, "builder: files of the recipe": 200}


def image(folder: Path, *titles: str, label: str = "") -> Image:
    return make_test_image([make_layer(folder, title, TITLES.get(title, 1000)) for title in titles], label)


def result(folder: Path, made: Image, **more: object) -> BuildResult:
    recipe = Recipe(name="t", base="oci:b", environment="e.yml", source=folder / "recipes/t.yaml")
    base = LockedBase("oci:b", "sha256:" + "e" * 64)
    built = BuildResult(recipe, Lock((), ("linux-64",)), base, made, timings={"base": 1.5, "layers": 2.25})
    return replace(built, **more)  # type: ignore[arg-type]


def history(folder: Path) -> list[ImageRecord]:
    return read_images(folder / "reports", "t")


def test_record(tmp_path: Path) -> None:
    """A build is recorded with its layers, bytes and seconds; a publish adds tags, and nothing else."""
    made = image(tmp_path / "layers", *TITLES)
    record_image(tmp_path, result(tmp_path, made))
    (record,) = history(tmp_path)
    assert (record.digest, record.size, record.tags) == (made.digest, made.size, ())
    assert record.seconds == {"base": 1.5, "layers": 2.25}
    blobs = [(layer.descriptor.digest, layer.descriptor.size) for layer in made.layers]
    assert record.layers == tuple((title, *blob) for title, blob in zip(TITLES, blobs, strict=True))
    record_image(tmp_path, result(tmp_path, made, timings={"base": 0.1}), ("26.11", "latest"))
    record_image(tmp_path, result(tmp_path, made, timings={}))
    assert history(tmp_path) == [replace(record, tags=("26.11", "latest"))], "the seconds of the first build"


def test_newest_last(tmp_path: Path) -> None:
    """The image that was built last is the last one, also when it is an older one again."""
    made = [image(tmp_path / "layers", *TITLES, label=label) for label in "ab"]
    for one in (*made, made[0]):
        record_image(tmp_path, result(tmp_path, one))
    assert [record.digest for record in history(tmp_path)] == [made[1].digest, made[0].digest]


def test_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases stay; of other builds the newest."""
    monkeypatch.setattr("builder.deliver.history._BUILDS", 2)
    for label in "abcdefg":
        made = result(tmp_path, image(tmp_path / "layers", *TITLES, label=label))
        record_image(tmp_path, made, ("26.10",) if label == "a" else ())
    found = history(tmp_path)
    assert len(found) == 4 and found[0].tags == ("26.10",)
    assert found[-1].digest == image(tmp_path / "layers", *TITLES, label="g").digest


def test_sif(tmp_path: Path) -> None:
    """A SIF has its own digest and bytes, and the layers that it was made of."""
    made = image(tmp_path / "layers", *TITLES)
    sif = SifImage(tmp_path / "t.sif", "sha256:" + "5" * 64, 7777)
    record_image(tmp_path, result(tmp_path, made, artifact=sif, sif_source=made))
    (record,) = history(tmp_path)
    assert (record.digest, record.size, len(record.layers)) == (sif.digest, 7777, 3)
    record_image(tmp_path, result(tmp_path, made, artifact=replace(sif, digest="sha256:" + "6" * 64)))
    assert history(tmp_path)[-1].layers == ()


@pytest.mark.parametrize("text", ["", "{", "[{}]", '[{"digest": 1}]', "\x00"])
def test_damaged(tmp_path: Path, text: str) -> None:
    """A file that cannot be read is no history, stops no build, and the next build replaces it."""
    path = tmp_path / f"reports/t{SUFFIX}"
    path.parent.mkdir()
    path.write_text(text)
    assert read_images(path.parent, "t") == []
    record_image(tmp_path, result(tmp_path, image(tmp_path / "layers", *TITLES)))
    assert len(read_images(path.parent, "t")) == 1


def test_newer_fields(tmp_path: Path) -> None:
    """A history of a newer builder, with more fields, can be read."""
    record_image(tmp_path, result(tmp_path, image(tmp_path / "layers", *TITLES)))
    path = tmp_path / f"reports/t{SUFFIX}"
    path.write_text(json.dumps([{**one, "more": 1} for one in json.loads(path.read_text())]))
    assert len(read_images(path.parent, "t")) == 1


def test_not_writable(tmp_path: Path) -> None:
    """Where nothing can be written, and where ``reports`` leads out, nothing is recorded: no error."""
    made = result(tmp_path, image(tmp_path / "layers", *TITLES))
    (tmp_path / "reports").write_text("a file")
    record_image(tmp_path, made)
    (tmp_path / "reports").unlink()
    outside = tmp_path / "outside"
    outside.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    (project / "reports").symlink_to(outside)
    record_image(project, made)
    assert list(outside.iterdir()) == []


def record(number: int, *layers: tuple[str, str, int], tags: tuple[str, ...] = ()) -> ImageRecord:
    size = sum(layer[2] for layer in layers)
    return ImageRecord(f"sha256:{number:x}" + "0" * 63, f"2026-11-0{number} 08:00:00", size, layers, {}, tags)


BASE, TORCH = ("FROM debian", "sha256:b", 500), ("builder: pip torch 2.12", "sha256:t", 300)
NEXT = ("builder: pip torch 2.13", "sha256:u", 310)


def test_parts() -> None:
    """Layers are compared by digest and named without versions; of a base, a part may be shared."""
    old = record(1, BASE, ("FROM debian", "sha256:c", 50), TORCH, tags=("26.10",))
    new = record(2, BASE, ("FROM debian", "sha256:d", 60), NEXT)
    found = History.of([old, new])
    assert list(found.parts(new, old)) == [("base", 560, 500), ("pip torch", 310, 0)]
    assert list(found.parts(old, new)) == [("base", 550, 500), ("pip torch", 300, 0)]
    assert list(found.parts(new, None)) == [("base", 560, 0), ("pip torch", 310, 0)]


def test_compared_with() -> None:
    """The newest image is compared with the newest other release; without one with the build before."""
    first, second, third = record(1, BASE, tags=("26.10",)), record(2, TORCH), record(3, NEXT)
    assert History.of([first, second, third]).old == first
    assert History.of([second, third]).old == second
    assert History.of([first]).old is None
    assert History.of([first, second, replace(third, tags=("26.11",))]).sizes == [
        first,
        replace(third, tags=("26.11",)),
    ]
    assert History.of([second, third]).sizes == [second, third]


def test_labels() -> None:
    """Images of one month, or of one day, are told apart by a part of the digest."""
    one, two = record(1, BASE, tags=("26.11", "latest")), record(2, NEXT, tags=("26.11",))
    assert list(History.of([one, two]).labels.values()) == ["26.11 100000", "26.11 200000"]
    assert list(History.of([record(3, BASE)]).labels.values()) == ["2026-11-03"]
    assert told_apart({"sha256:" + "a" * 64: "26.10", "sha256:" + "b" * 64: "26.11"}) == {
        "sha256:" + "a" * 64: "26.10",
        "sha256:" + "b" * 64: "26.11",
    }
