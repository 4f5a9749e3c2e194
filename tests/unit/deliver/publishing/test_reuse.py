"""The record of what made which layer, as anybody may have written it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from builder.core.errors import ImageError
from builder.core.model import Image
from builder.core.store.blobs import Reuse, Store
from builder.core.store.records import read_record, write_record
from builder.deliver.publishing.reuse import read_layers
from builder.formats.layers.cache import layer_record
from tests.support.images import make_layer, make_test_image

NAME = "layers/" + "a" * 64 + ".json"
MODULES = "bytecode/" + "a" * 64 + ".json"
COMPILED = {"tag": "cpython-311", "digest": f"sha256:{'1' * 64}", "size": 1, "files": []}
LIBRARIES = "layers/libraries-1-" + "a" * 64 + ".json"
INDEX = "index/" + "a" * 64 + ".json"


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_test_image([make_layer(tmp_path, "one"), make_layer(tmp_path, "two")])


def record(records: Any, **more: Any) -> bytes:
    value = {"format": 1, "records": records, "documents": [], **more}
    return zstandard.compress(json.dumps(value).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"no zstd",
        zstandard.compress(b" " * (129 << 20) + b"{}"),
        zstandard.compress(b"[" * 100_000),
        record({}, format=2),
        record({}, documents=["", "", ""]),
        record({}, more=1),
        record([]),
        record({NAME: 3}),
        record({NAME: {"diff_id": "sha256:1"}}),
        record({INDEX: [[["x"]], [], [], 1, []]}),
        record({INDEX: [[["x", "file"]], [], [], 1, []]}),
        record({INDEX: [[["x", "device", 0, ""]], [], [], 1, []]}),
        record({"index/declared-sha256-a.json": "MIT"}),
        record({MODULES: {**COMPILED, "digest": "sha256:../x"}}),
        record({MODULES: {**COMPILED, "more": 1}}),
        record({LIBRARIES: {"digest": "sha256:1", "files": {}}}),
        record({LIBRARIES: {"digest": f"sha256:{'1' * 64}", "files": {}, "more": 1}}),
    ],
)
def test_damaged(data: bytes, image: Image) -> None:
    with pytest.raises(ImageError, match="record of layers is damaged"):
        read_layers(data, image)


def test_layers_of_the_image(image: Image, tmp_path: Path) -> None:
    """A layer counts with its own diff id only, and unknown names do not."""
    first, second = (layer_record(layer) for layer in image.layers)
    wrong = {**second, "diff_id": first["diff_id"]}
    other = layer_record(make_layer(tmp_path, "other"))
    names = [f"layers/{n * 64}.json" for n in "abc"]
    records = dict(zip(names, (first, wrong, other), strict=True))
    data = record({**records, "layers/../x.json": first, "seen/x.json": {}})
    assert list(read_layers(data, image).records) == names[:1]


def test_records_stay_apart(tmp_path: Path) -> None:
    """What a build writes after it has looked for an image is not read without that image."""
    reuse = Reuse(tmp_path / "cache/reuse/x", "host/name", {"sha256:1": "sha256:2"}, {"index/a.json": 1})
    asked: list[int] = []

    def find() -> Reuse:
        asked.append(1)
        return reuse

    store, plain = Store(tmp_path / "cache", find), Store(tmp_path / "cache")
    before, after, known = (store.folders.index / f"{name}.json" for name in ("before", "b", "a"))
    store.write_record(before, "own")
    assert store.read_record(before) == "own" and not asked
    assert store.read_record(known) == 1 and plain.read_record(known) is None
    store.write_record(after, "derived")
    assert store.read_record(after) == "derived" and plain.read_record(after) is None
    assert read_record(reuse.folder / "index/b.json") == "derived" and len(asked) == 1
    write_record(known, "own")
    assert list(store.records(known)) == ["own", 1], "the cache comes first"
    assert store.remote("sha256:1", "sha256:2") == "host/name"
    assert not store.remote("sha256:1", "sha256:3") and not plain.remote("sha256:1", "sha256:2")
