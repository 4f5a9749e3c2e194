"""Pulling what other people published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core.errors import ImageError, RegistryError
from builder.core.model import OCI_INDEX, Descriptor, canonical_json
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.deliver.publishing.destination import LayoutDestination
from builder.deliver.publishing.pull import find_attached, resolve_published
from builder.formats.oci.layout import blob_path
from builder.formats.registry.referrers import Artifact, AttachedFile
from builder.lock.config.recipe import Recipe
from tests.support.images import make_layer, make_test_image

RECIPE = Recipe(name="t", base="oci:b", environment="e.yml", source=Path("recipes/t.yaml"))


@pytest.mark.parametrize("is_ambiguous", [False, True])
def test_ambiguous_index(tmp_path: Path, is_ambiguous: bool) -> None:
    """An index that other programs read as a manifest is refused (CVE-2021-41190), in layouts as well."""
    place = LayoutDestination(tmp_path / "layout", Store(tmp_path / "cache"))
    image = make_test_image([make_layer(tmp_path / "layers", "a", 100)])
    place.push(image)
    platform = {"os": "linux", "architecture": "amd64"}
    index = {"schemaVersion": 2, "manifests": [{**image.manifest_descriptor.to_json(), "platform": platform}]}
    if is_ambiguous:
        index |= {"config": image.config_descriptor.to_json(), "layers": []}
    data = canonical_json(index)
    entry = Descriptor.of(OCI_INDEX, data).to_json()
    blob_path(place.folder, entry["digest"]).write_bytes(data)
    listing = json.loads((place.folder / "index.json").read_text())
    listing["manifests"].append(entry)
    (place.folder / "index.json").write_text(json.dumps(listing))
    if not is_ambiguous:
        assert resolve_published(RECIPE, place, entry["digest"])[0].digest == image.digest
        return
    with pytest.raises(ImageError, match="as a manifest and as an index"):
        resolve_published(RECIPE, place, entry["digest"])


def test_attached_by_name(tmp_path: Path) -> None:
    """What is attached to an image is found by the image's tag and by its digest."""
    work = Workspace.of(Settings.from_environment({"HOME": str(tmp_path)}, cache=tmp_path / "cache"))
    place = LayoutDestination(tmp_path / "layout", work.store)
    image = make_test_image([make_layer(tmp_path / "layers", "a", 100)])
    place.push(image)
    place.move_tag("26.11", image)
    artifact = Artifact("application/x", [AttachedFile("a.json", "application/json", b"{}")])
    place.attach(image.manifest_descriptor, artifact)
    for name in (f"{place.name}:26.11", f"{place.name}@{image.digest}"):
        (found,) = find_attached(name, "application/x", work)
        assert [file.data for file in found.files] == [b"{}"]
        assert find_attached(name, "application/y", work) == []
    with pytest.raises(RegistryError, match="there is no oci:.*:26.12"):
        find_attached(f"{place.name}:26.12", "application/x", work)
