"""OCI documents with values of the wrong type."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.build.image.archive import write_docker_archive
from builder.build.image.config import make_image
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Descriptor, Image, Lock
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.oci.layout import list_tags, prune_layout, read_layout, write_layout
from builder.formats.sif.write import write_sif
from tests.support.compare import image_tree
from tests.support.fuzz import fuzz, mutated, only_builder_errors
from tests.support.image_kit import EPOCH, image, layer, member, recipe, settings, tar_bytes

DOCUMENTS = ("oci-layout", "index.json", "index", "manifest", "config")


class Place:
    """A layout of an image in an index, which is written again for each case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: Settings = settings(folder)
        self.store = Store(self.settings.cache)
        self.image: Image = image(self.store, layer(self.store, member("a", b"1"), title="first"))
        self.layout = folder / "layout"
        write_layout(self.image, self.layout, "x", self.store)
        self.documents: dict[str, Any] = {
            "oci-layout": json.loads((self.layout / "oci-layout").read_bytes()),
            "config": json.loads(self.image.config),
            "manifest": json.loads(self.image.manifest),
        }
        index = json.loads((self.layout / "index.json").read_bytes())
        entry = {"platform": {"architecture": "amd64", "os": "linux"}, "annotations": {}}
        self.documents["index"] = {**index, "manifests": [{**index["manifests"][0], **entry}]}
        self.documents["index.json"] = index
        self.written: set[Path] = set()

    def write(self, name: str, value: Any) -> None:
        """Writes the layout with another value of one document. The documents above it name the new one."""
        for path in self.written:
            path.unlink()
        self.written.clear()
        new = {**self.documents, name: value}
        config = self._blob(new["config"], "application/vnd.oci.image.config.v1+json")
        if name != "manifest":
            new["manifest"] = {**new["manifest"], "config": config}
        manifest = self._blob(new["manifest"], OCI_MANIFEST)
        if name != "index":
            new["index"] = {**new["index"], "manifests": [{**new["index"]["manifests"][0], **manifest}]}
        index = self._blob(new["index"], OCI_INDEX)
        if name != "index.json":
            new["index.json"] = {
                **new["index.json"],
                "manifests": [{**new["index.json"]["manifests"][0], **index}],
            }
        for file in ("index.json", "oci-layout"):
            (self.layout / file).write_bytes(json.dumps(new[file]).encode())

    def _blob(self, value: Any, media_type: str) -> dict[str, Any]:
        data = json.dumps(value).encode()
        descriptor = Descriptor.of(media_type, data)
        path = self.layout / "blobs" / descriptor.digest.replace(":", "/")
        path.write_bytes(data)
        self.written.add(path)
        return descriptor.to_json()

    def use(self) -> None:
        """Does everything with the layout that builder does."""
        with only_builder_errors():
            list_tags(self.layout)
            found = read_layout(self.layout, "x", "amd64")
            image_tree(found, self.store)
            write_sif(found, self.folder / "a.sif", Workspace(self.settings, self.store), layout="layered")
            write_layout(found, self.folder / "copy", "x", self.store)
            prune_layout(self.folder / "copy")
        if self.use_base(f"oci:{self.layout}:x"):
            assert "built" in list_tags(self.layout)

    def use_base(self, name: str) -> bool:
        """Builds an image on one; returns whether that was possible."""
        with only_builder_errors():
            locked = resolve_base(name, WantedBase("amd64"), Workspace(self.settings, self.store))
            base = open_base(locked, WantedBase("amd64"), Workspace(self.settings, self.store))
            lock = Lock((), ("linux-64",))
            made = make_image(base, [], recipe=recipe(), lock=lock, env={}, annotations={}, epoch=EPOCH)
            write_layout(made, self.layout, "built", self.store)
            return True
        return False


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("layouts"))


@fuzz(100)
@given(data=st.data())
def test_layout(place: Place, data: st.DataObject) -> None:
    """Documents of a layout with strange values."""
    name = data.draw(st.sampled_from(DOCUMENTS))
    place.write(name, data.draw(mutated(place.documents[name])))
    place.use()


@fuzz(50)
@given(data=st.data())
def test_docker_archive(place: Place, data: st.DataObject) -> None:
    """The documents of a docker-archive with strange values."""
    path = place.folder / "docker.tar"
    if not path.exists():
        write_docker_archive(place.image, path, "a:x")
    with tarfile.open(path) as tar:
        files = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    listing = json.loads(files["manifest.json"])
    config = listing[0]["Config"]
    if data.draw(st.booleans()):
        files["manifest.json"] = json.dumps(data.draw(mutated(listing))).encode()
    else:
        files[config] = json.dumps(data.draw(mutated(json.loads(files[config])))).encode()
    bad = place.folder / "bad.tar"
    bad.write_bytes(tar_bytes([member(name, content) for name, content in files.items()]))
    place.use_base(f"docker-archive:{bad}:x")
