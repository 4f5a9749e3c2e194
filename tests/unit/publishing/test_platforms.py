"""Tags that name one index of the images of several platforms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.config.recipe import Recipe
from builder.errors import TagExistsError, UsageError
from builder.model import OCI_INDEX, Descriptor, Image, canonical_json
from builder.oci.layout import list_tags, prune_layout, read_blob, read_index, read_layout
from builder.publishing.places import LayoutPlace
from builder.publishing.platforms import PlatformPlace, platform_index, refuse_to_replace
from builder.publishing.publish import PublishOptions, refuse_shared_tags
from builder.store.blobs import Store
from tests.support.images import make_layer, make_test_image

TARGET = "org.builder.target"


def recipe(name: str, platform: str, *, index: bool = True) -> Recipe:
    values = {"name": name, "base": "oci:b", "environment": "e.yml", "platform": platform}
    registry = {"host": "r.example", "repository": "a/b", "tags": ["latest"], "index": index}
    return Recipe.model_validate({**values, "registry": registry, "source": Path(f"recipes/{name}.yaml")})


X86, ARM = recipe("cpu", "linux-64"), recipe("cpu-arm", "linux-aarch64")


@pytest.fixture
def place(tmp_path: Path) -> LayoutPlace:
    return LayoutPlace(tmp_path / "layout", Store(tmp_path / "cache"))


def pushed(place: LayoutPlace, folder: Path, label: str, architecture: str = "amd64") -> Image:
    """An image of the place, without a tag."""
    image = make_test_image([make_layer(folder / "layers", label)], label)
    config = canonical_json({**json.loads(image.config), "architecture": architecture})
    described = Descriptor.of(image.config_descriptor.media_type, config)
    manifest = canonical_json({**json.loads(image.manifest), "config": described.to_json()})
    kind = image.manifest_descriptor.media_type
    image = Image(image.layers, config, described, manifest, Descriptor.of(kind, manifest))
    place.push(image)
    return image


def entries(place: LayoutPlace, tag: str = "latest") -> list[dict[str, Any]]:
    found = place.resolve(tag)
    assert found is not None and found.media_type == OCI_INDEX
    return list(json.loads(read_blob(place.folder, found))["manifests"])


def test_each_platform_keeps_the_others(place: LayoutPlace, tmp_path: Path) -> None:
    """Publishing a platform replaces its image in the index; a pull chooses by platform."""
    a1, b1 = pushed(place, tmp_path, "a1"), pushed(place, tmp_path, "b1", "arm64")
    a2 = pushed(place, tmp_path, "a2")
    for target, image in ((X86, a1), (ARM, b1), (X86, a2)):
        view = PlatformPlace(place, target, force=False)
        before = view.resolve("latest")
        done = view.move_tag("latest", image, before.digest if before else None)
        assert (done.now, done.written) == (image.digest, True)
        assert view.moved["latest"][1] == list_tags(place.folder)["latest"]
    found = entries(place)
    assert [(e["platform"]["architecture"], e["digest"], e["annotations"][TARGET]) for e in found] == [
        ("amd64", a2.digest, "cpu"),
        ("arm64", b1.digest, "cpu-arm"),
    ]
    assert read_layout(place.folder, "latest", "arm64").digest == b1.digest
    assert read_layout(place.folder, "latest", "amd64").digest == a2.digest
    assert prune_layout(place.folder) == 0 or read_index(place.folder)


def test_order_does_not_matter(place: LayoutPlace, tmp_path: Path) -> None:
    """The index has the same digest whichever platform was published first."""
    a, b = pushed(place, tmp_path, "a"), pushed(place, tmp_path, "b", "arm64")
    for tag, order in (("one", ((X86, a), (ARM, b))), ("two", ((ARM, b), (X86, a)))):
        for target, image in order:
            PlatformPlace(place, target, force=False).move_tag(tag, image)
    tags = list_tags(place.folder)
    assert tags["one"] == tags["two"]


def test_again(place: LayoutPlace, tmp_path: Path) -> None:
    """Nothing is written if the index has the image."""
    image = pushed(place, tmp_path, "a")
    view = PlatformPlace(place, X86, force=False)
    view.move_tag("latest", image, None)
    done = view.move_tag("latest", image, image.digest)
    assert (done.before, done.now, done.written) == (image.digest, image.digest, False)


def test_not_as_expected(place: LayoutPlace, tmp_path: Path) -> None:
    """A tag that another publish moved stays."""
    one, two = pushed(place, tmp_path, "one"), pushed(place, tmp_path, "two")
    view = PlatformPlace(place, X86, force=False)
    view.move_tag("latest", one, None)
    done = view.move_tag("latest", two, None)
    assert (done.now, done.written) == (one.digest, False)


def test_tag_of_one_image(place: LayoutPlace, tmp_path: Path) -> None:
    """A tag that names an image becomes an index with --force only: others may run that image."""
    image, new = pushed(place, tmp_path, "old"), pushed(place, tmp_path, "new", "arm64")
    place.move_tag("latest", image)
    view = PlatformPlace(place, ARM, force=False)
    assert view.resolve("latest") is None
    with pytest.raises(TagExistsError, match="latest names one image") as caught:
        view.require_indexes(["missing", "latest"])
    assert "--force replaces it by an index" in caught.value.hint
    with pytest.raises(TagExistsError):
        view.move_tag("latest", new, None)
    PlatformPlace(place, ARM, force=True).move_tag("latest", new, None)
    assert [entry["digest"] for entry in entries(place)] == [new.digest]


def test_image_in_place_of_an_index(place: LayoutPlace, tmp_path: Path) -> None:
    """A target without ``index`` does not replace the images of other platforms."""
    a, b = pushed(place, tmp_path, "a"), pushed(place, tmp_path, "b", "arm64")
    PlatformPlace(place, X86, force=False).move_tag("latest", a)
    found = place.resolve("latest")
    assert found is not None
    refuse_to_replace(place, "latest", found, a)  # of one platform
    PlatformPlace(place, ARM, force=False).move_tag("latest", b)
    found = place.resolve("latest")
    assert found is not None
    with pytest.raises(TagExistsError, match="is an index of images for amd64, arm64"):
        refuse_to_replace(place, "latest", found, a)
    refuse_to_replace(place, "latest", a.manifest_descriptor, b)


def test_foreign_entries(tmp_path: Path) -> None:
    """Entries of other tools stay: their attestations have the platform ``unknown``."""
    image = make_test_image([make_layer(tmp_path, "a")])
    others = [
        {**image.manifest_descriptor.to_json(), "platform": {"architecture": "unknown", "os": "unknown"}}
    ]
    index = json.loads(platform_index(others, image, X86).manifest)
    assert [entry["platform"]["architecture"] for entry in index["manifests"]] == ["amd64", "unknown"]


def test_shared_tags() -> None:
    """Targets of different platforms may share the tags of an index, and only these."""
    options = PublishOptions()
    refuse_shared_tags([X86, ARM], options)
    with pytest.raises(UsageError, match="cpu and other would both be published as"):
        refuse_shared_tags([X86, recipe("other", "linux-64")], options)
    plain = [recipe("cpu", "linux-64", index=False), recipe("arm", "linux-aarch64", index=False)]
    with pytest.raises(UsageError) as caught:
        refuse_shared_tags(plain, options)
    assert "registry: {index: true} in both makes one index" in caught.value.hint
