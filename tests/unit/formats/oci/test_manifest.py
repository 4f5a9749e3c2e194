"""Manifests, indexes and configs: what is ambiguous, too large or of the wrong shape is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.core.errors import ImageError
from builder.core.model import (
    DOCKER_MANIFEST,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Descriptor,
)
from builder.formats.oci.manifest import (
    choose,
    choose_platform,
    parse_config,
    parse_docker_listing,
    parse_index,
    parse_manifest,
    read_image,
    stated_media_type,
    through_indexes,
)

CONFIG = {"mediaType": OCI_CONFIG, "digest": "sha256:" + "c" * 64, "size": 2}
LAYER = {"mediaType": OCI_LAYER_GZIP, "digest": "sha256:" + "d" * 64, "size": 3}
MANIFEST: dict[str, Any] = {
    "schemaVersion": 2,
    "mediaType": OCI_MANIFEST,
    "config": CONFIG,
    "layers": [LAYER],
}
ENTRY = {"mediaType": OCI_MANIFEST, "digest": "sha256:" + "e" * 64, "size": 4}
INDEX: dict[str, Any] = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [ENTRY]}
ROOTFS: dict[str, Any] = {"rootfs": {"type": "layers", "diff_ids": ["sha256:" + "d" * 64]}}


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def manifest(value: Any, media_type: str = OCI_MANIFEST) -> dict[str, Any]:
    return parse_manifest(dump(value), Descriptor(media_type, "sha256:abc", 5), "host/repo")


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


def test_accepted() -> None:
    """A manifest and an index that state their type, or leave it to the response."""
    assert manifest(MANIFEST) == MANIFEST
    assert manifest(without(MANIFEST, "mediaType")) == without(MANIFEST, "mediaType")
    assert manifest({**MANIFEST, "mediaType": DOCKER_MANIFEST}, "") is not None
    assert parse_index(dump(INDEX), "x", OCI_INDEX) == INDEX
    assert stated_media_type(dump(MANIFEST), "application/json", "x") == OCI_MANIFEST
    assert stated_media_type(dump(without(INDEX, "mediaType")), OCI_INDEX, "x") == OCI_INDEX
    assert stated_media_type(b"<html>", "text/html", "x") == "text/html"


@pytest.mark.parametrize("media_type", [OCI_MANIFEST, OCI_INDEX, "", "application/json"])
@pytest.mark.parametrize("own", [OCI_MANIFEST, OCI_INDEX, None])
def test_both_manifest_and_index(media_type: str, own: str | None) -> None:
    """A document with the keys of a manifest and of an index is refused, whatever it says it is."""
    both = {**INDEX, **MANIFEST, "mediaType": own}
    with pytest.raises(ImageError, match="host/repo"):
        manifest(both, media_type)
    with pytest.raises(ImageError, match="the index of x"):
        parse_index(dump(both), "the index of x", media_type)
    with pytest.raises(ImageError, match="the index of x"):
        stated_media_type(dump(both), media_type, "the index of x")


@pytest.mark.parametrize(
    ("value", "stated"),
    [
        (MANIFEST, OCI_INDEX),
        (MANIFEST, DOCKER_MANIFEST),
        (INDEX, OCI_MANIFEST),
        (without(MANIFEST, "mediaType"), OCI_INDEX),
        (without(INDEX, "mediaType"), OCI_MANIFEST),
        ({**INDEX, "mediaType": OCI_MANIFEST}, ""),
        ({**MANIFEST, "mediaType": OCI_INDEX}, ""),
        ({"schemaVersion": 2, "fsLayers": [], "manifests": []}, ""),
    ],
)
def test_types_that_disagree(value: Any, stated: str) -> None:
    """The type of a document, its descriptor or response, and its keys must not contradict each other."""
    with pytest.raises(ImageError, match="media type|as a manifest and as an index"):
        stated_media_type(dump(value), stated, "x")


def test_other_case() -> None:
    """Programs in Go take a key in any case: such a document would be another image for them."""
    other = {**LAYER, "Digest": "sha256:" + "f" * 64}
    for value in (
        {**MANIFEST, "Layers": []},
        {**MANIFEST, "layers": [other]},
        {**MANIFEST, "config": {**CONFIG, "SIZE": 1}},
        {**MANIFEST, "layer\u017f": []},
    ):
        with pytest.raises(ImageError, match="is spelled (layers|digest|size)"):
            manifest(value)
    with pytest.raises(ImageError, match="is spelled digest"):
        parse_index(dump({**INDEX, "manifests": [{**ENTRY, "DIGEST": 1}]}), "x")
    assert manifest({**MANIFEST, "annotations": {"Size": "a", "size": "b"}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"mediaType": OCI_CONFIG}}, "config.digest: field required"),
        ({"layers": [LAYER, {**LAYER, "size": -5}]}, r"layers\[1\].size: input should be greater"),
        (
            {"layers": [{**LAYER, "digest": "sha512:" + "0" * 128}]},
            r"layers\[0\].digest: string should match",
        ),
        ({"layers": {}}, "has no config or layers"),
        ({"config": None}, "has no config or layers"),
        ({"annotations": {"a": 1}}, "annotations.a: input should be a valid string"),
        ({"subject": []}, "subject: input should be"),
        ({"mediaType": 5}, "mediaType is not a text"),
    ],
)
def test_manifest_refused(change: dict[str, Any], message: str) -> None:
    """The message names the manifest and the key."""
    with pytest.raises(ImageError, match=rf"the manifest sha256:abc of host/repo.*{message}"):
        manifest({**MANIFEST, **change})


@pytest.mark.parametrize("entries", [5, {}, "x", [None], [{}], [{**ENTRY, "digest": "sha256:x"}]])
def test_index_refused(entries: Any) -> None:
    """An index whose entries are no descriptors is refused, however it was parsed."""
    value = {**INDEX, "manifests": entries}
    with pytest.raises(ImageError, match="index of x"):
        parse_index(dump(value), "the index of x")
    with pytest.raises(ImageError, match="the image index sha256:e+ of x"):
        through_indexes(
            Descriptor.from_json(ENTRY | {"mediaType": OCI_INDEX}), lambda _: dump(value), "amd64", "x"
        )


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ({"Labels": {"a": None, "b": "c"}}, {"Labels": {"a": "", "b": "c"}}),
        ({"Env": [None, "A=1"], "Cmd": ["a", None]}, {"Env": ["", "A=1"], "Cmd": ["a", ""]}),
        ({"Entrypoint": "a b", "Cmd": None}, {"Entrypoint": ["a b"], "Cmd": None}),
        ({"ExposedPorts": {"80/tcp": None}}, {"ExposedPorts": {"80/tcp": None}}),
        ({"Env": None, "User": None, "Healthcheck": {"Test": None}},) * 2,
    ],
)
def test_nulls_in_a_config(inner: dict[str, Any], expected: dict[str, Any]) -> None:
    """A null in a list or object is empty, as for Go; the value of a key may be null, and stays as it is."""
    read = parse_config(dump({**ROOTFS, "config": inner, "x": None}), "x")
    assert read == {**ROOTFS, "config": expected, "x": None}


def test_nulls_in_documents() -> None:
    """Lists, texts and objects may be null wherever Go's programs write or read them so."""
    read = parse_config(dump({"rootfs": {"type": "layers"}, "config": None, "history": [None]}), "x")
    assert (read["rootfs"]["diff_ids"], read["config"], read["history"]) == ([], None, [{}])
    assert (
        parse_config(dump({"rootfs": {"type": "layers", "diff_ids": None}}), "x")["rootfs"]["diff_ids"] == []
    )
    noted = manifest({**MANIFEST, "layers": None, "annotations": {"a": None}})
    assert (noted["layers"], noted["annotations"]) == ([], {"a": ""})
    assert parse_index(dump({**INDEX, "manifests": None}), "x")["manifests"] == []
    entry = {**ENTRY, "mediaType": None, "annotations": {"a": None}, "platform": None}
    assert Descriptor.from_json(parse_index(dump({**INDEX, "manifests": [entry]}), "x")["manifests"][0]) == (
        Descriptor("", ENTRY["digest"], 4, {"a": ""})
    )
    listing = [{"Config": "c.json", "RepoTags": None, "Layers": None}]
    assert parse_docker_listing(dump(listing), "x") == [{**listing[0], "Layers": []}]


def entry(number: int, platform: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An entry of an index; its digest has the number."""
    return {**ENTRY, "digest": f"sha256:{number:064}", "platform": platform, **more}


AMD = {"architecture": "amd64", "os": "linux"}
UNKNOWN = {"architecture": "unknown", "os": "unknown"}


@pytest.mark.parametrize(
    ("entries", "architecture"),
    [
        pytest.param([entry(1, AMD), entry(2, {"architecture": "", "os": "linux"})], None, id="empty"),
        pytest.param([entry(2, {"os": "linux"}), entry(1, AMD)], None, id="without architecture"),
        pytest.param([entry(2), entry(1, AMD)], "amd64", id="without platform"),
        pytest.param([entry(1), entry(2, {**AMD, "architecture": "arm64"})], "amd64", id="not named"),
        pytest.param([entry(1, {"architecture": "", "os": ""}), entry(2)], None, id="nothing is named"),
        pytest.param([entry(2, AMD, artifactType="text/spdx"), entry(1, AMD)], None, id="an SBOM"),
        pytest.param([entry(2, mediaType="application/json"), entry(1)], None, id="another type"),
        pytest.param(
            [entry(2, UNKNOWN, annotations={"vnd.docker.reference.type": "x"}), entry(1)],
            None,
            id="attestation",
        ),
    ],
)
def test_entries_without_platform(entries: list[dict[str, Any]], architecture: str | None) -> None:
    """An image is found beside what is attached, and one without a platform if none has the right one."""
    found = choose_platform({**INDEX, "manifests": entries}, architecture, "x")
    assert found.digest == f"sha256:{1:064}"


def test_attached_in_a_layout() -> None:
    """The only image of a layout needs no tag if the other entries are attached to it."""
    attached = [
        entry(2, artifactType="text/spdx"),
        entry(3, mediaType="application/octet-stream"),
        entry(4, UNKNOWN, annotations={"vnd.docker.reference.type": "attestation-manifest"}),
    ]
    assert choose([*attached, entry(1)], None, "x").digest == f"sha256:{1:064}"
    with pytest.raises(ImageError, match="x holds no image"):
        choose(attached, None, "x")
    with pytest.raises(ImageError, match="x holds 2 images") as caught:
        choose([entry(1), entry(2)], None, "x")
    assert caught.value.hint == "name one by its digest in index.json (oci:DIR@sha256:...) or its tag: none"


@pytest.mark.parametrize("value", [INDEX, without(INDEX, "mediaType")])
def test_entry_without_media_type(value: dict[str, Any]) -> None:
    """An index is known by its content where its entry names no type, as in skopeo; so is a manifest."""
    unnamed = Descriptor("", "sha256:" + "1" * 64, 4)
    found = through_indexes(unnamed, lambda _: dump(value), "amd64", "x")
    assert found.digest == ENTRY["digest"]
    assert through_indexes(unnamed, lambda _: dump(MANIFEST), "amd64", "x") == unnamed


def test_encrypted_layers() -> None:
    """An encrypted layer is named as such, with the way to decrypt it."""
    encrypted = {**LAYER, "mediaType": f"{OCI_LAYER_GZIP}+encrypted"}
    data = dump({**MANIFEST, "layers": [encrypted]})
    described = Descriptor(OCI_MANIFEST, "sha256:" + "1" * 64, len(data))
    with pytest.raises(ImageError, match="x has encrypted layers") as caught:
        read_image(data, described, lambda _: dump(ROOTFS), "x")
    assert "skopeo copy --decryption-key" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rootfs": None}, "has no rootfs.diff_ids"),
        ({"rootfs": []}, "has no rootfs.diff_ids"),
        ({"rootfs": {"diff_ids": [5]}}, r"rootfs.diff_ids\[0\]"),
        ({"rootfs": {"diff_ids": ["sha256:../x"]}}, r"rootfs.diff_ids\[0\]"),
        ({"config": []}, "config: input should be"),
        ({"config": {"Env": "PATH=/bin"}}, "config.Env: input should be a valid list"),
        ({"config": {"Env": ["A=\0"]}}, r"config.Env\[0\]: string should match"),
        ({"config": {"Entrypoint": [1]}}, r"config.Entrypoint\[0\]"),
        ({"config": {"Labels": {"a": 5}}}, "config.Labels.a"),
        ({"config": {"Volumes": []}}, "config.Volumes"),
        ({"history": ["x"]}, r"history\[0\]"),
        ({"history": [{"empty_layer": "yes"}]}, r"history\[0\].empty_layer"),
        ({"architecture": "\x1b[2J"}, "architecture: string should match"),
        ({"architecture": 64}, "architecture: input should be a valid string"),
    ],
)
def test_config_refused(change: dict[str, Any], message: str) -> None:
    """The message names the config and the key."""
    with pytest.raises(ImageError, match=rf"the config of x.*{message}"):
        parse_config(dump({**ROOTFS, **change}), "x")
