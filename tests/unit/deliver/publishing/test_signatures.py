"""Signatures in cosign's format: what is stored, what counts, and what others may have stored there."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import BuilderError, ImageError, RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, canonical_json
from builder.core.store.blobs import Store
from builder.deliver.publishing.destination import RegistryDestination
from builder.deliver.publishing.keys import SigningKey
from builder.deliver.publishing.signatures import (
    MAX_PAYLOAD,
    MAX_SIGNATURES,
    PAYLOAD,
    SIGNATURE,
    SignedPayload,
    add_signature,
    read_signatures,
    signature_tag,
)
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import ANONYMOUS
from tests.support.fakeregistry import FakeRegistry, Reply, Request, sha256
from tests.support.signkeys import make_pair

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
TAG = signature_tag(DIGEST)
TYPE = "cosign container image signature"


@pytest.fixture
def make_key(tmp_path: Path) -> Callable[[], SigningKey]:
    def make() -> SigningKey:
        private, _ = make_pair(tmp_path, str(time.monotonic_ns()))
        return SigningKey.load(private, lambda: b"")

    return make


@pytest.fixture
def key(make_key: Callable[[], SigningKey]) -> SigningKey:
    return make_key()


@pytest.fixture
def to(client: RegistryClient, tmp_path: Path) -> RegistryDestination:
    return RegistryDestination(client, "a/b", Store(tmp_path / "cache"))


def payload(name: str, digest: str = DIGEST, kind: str = TYPE, **more: Any) -> dict[str, Any]:
    identity, image = {"docker-reference": name}, {"docker-manifest-digest": digest}
    return {"critical": {"identity": identity, "image": image, "type": kind}, "optional": None, **more}


def layer(fake: FakeRegistry, data: bytes, signature: bytes, **more: Any) -> dict[str, Any]:
    """A layer with this document; the document is a blob of the repository."""
    text = base64.b64encode(signature).decode()
    descriptor = {"mediaType": PAYLOAD, "digest": fake.put("a/b", data), "size": len(data)}
    return {**descriptor, "annotations": {SIGNATURE: text}, **more}


def put(fake: FakeRegistry, layers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Stores an image of signatures, as somebody who may push can."""
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", "size": 2, "digest": sha256(b"{}")}
    fake.put("a/b", b"{}")
    manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers, **more}
    data = json.dumps(manifest).encode()
    fake.manifests.setdefault("a/b", {}).update(
        {TAG: (data, OCI_MANIFEST), sha256(data): (data, OCI_MANIFEST)}
    )
    return manifest


def stored(fake: FakeRegistry) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(fake.manifests["a/b"][TAG][0])
    return value


def test_layout(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    """Every byte that others read: SIGNATURE_SPEC.md of cosign."""
    add_signature(to, DIGEST, key, {"recipe": "t"})
    assert f"sha256-{'a' * 64}.sig" == TAG
    manifest = stored(fake)
    (only,) = manifest["layers"]
    data = fake.blobs["a/b"][only["digest"]]
    assert only["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    assert json.loads(data) == payload(f"{fake.host}/a/b", optional={"recipe": "t"})
    signature = base64.b64decode(only["annotations"]["dev.cosignproject.cosign/signature"])
    assert key.public.verify(signature, data)
    config = json.loads(fake.blobs["a/b"][manifest["config"]["digest"]])
    assert config["rootfs"] == {"type": "layers", "diff_ids": [only["digest"]]}
    assert read_signatures(to, DIGEST, [key.public]) == [SignedPayload(key.public, {"recipe": "t"})]


def test_registry_that_is_disturbed(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    """docker-registry 2.8 refuses a manifest while another client writes its tag: it is sent again."""
    error = b'{"errors":[{"code":"DIGEST_INVALID","message":"no"},{"code":"MANIFEST_BLOB_UNKNOWN"}]}'
    fake.fail_once("PUT", "/manifests/", Reply(400, body=error))
    add_signature(to, DIGEST, key, {})
    assert fake.count("PUT", "manifests") == 2
    assert [signed.key for signed in read_signatures(to, DIGEST, [key.public])] == [key.public]
    fake.fail_once("PUT", "/manifests/", Reply(400, body=b'{"errors":[{"code":"MANIFEST_INVALID"}]}'))
    with pytest.raises(RegistryError, match="MANIFEST_INVALID"):
        add_signature(to, OTHER, key, {})


def test_twice(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    for _ in range(2):
        add_signature(to, DIGEST, key, {"recipe": "t"})
    assert fake.count("PUT", "manifests") == 1
    add_signature(to, DIGEST, key, {"recipe": "u"})
    found = read_signatures(to, DIGEST, [key.public])
    assert [signed.optional["recipe"] for signed in found] == ["t", "u"]


def test_moved_annotation(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    """Somebody moved the signature to another document: it counts as not signed."""
    add_signature(to, DIGEST, key, {})
    (ours,) = stored(fake)["layers"]
    put(fake, [ours | {"digest": fake.put("a/b", b"{}"), "size": 2}])
    assert read_signatures(to, DIGEST, [key.public]) == []
    add_signature(to, DIGEST, key, {})
    assert len(read_signatures(to, DIGEST, [key.public])) == 1


def test_others_stay(fake: FakeRegistry, to: RegistryDestination, make_key: Callable[[], SigningKey]) -> None:
    """What others stored is the same afterwards, also what builder does not know."""
    one, two = make_key(), make_key()
    bundle = {SIGNATURE: "bm9uZQ==", "dev.sigstore.cosign/bundle": '{"x": 1}'}
    before = [
        layer(fake, b"{}", b"none", annotations=bundle),
        layer(fake, b"1", b"x", mediaType="text/plain"),
    ]
    put(fake, before, annotations={"a": "b"})
    add_signature(to, DIGEST, one, {})
    add_signature(to, DIGEST, two, {})
    assert stored(fake)["layers"][:2] == before and stored(fake)["annotations"] == {"a": "b"}
    assert [s.key for s in read_signatures(to, DIGEST, [two.public, one.public])] == [one.public, two.public]
    assert [s.key for s in read_signatures(to, DIGEST, [two.public])] == [two.public]
    assert read_signatures(to, DIGEST, []) == []


def test_none(to: RegistryDestination, key: SigningKey) -> None:
    assert read_signatures(to, DIGEST, [key.public]) == []


@pytest.mark.parametrize("suffix", ["", ":26.11", f"@{DIGEST}", f":26.11@{DIGEST}"])
@pytest.mark.parametrize("optional", [None, {"creator": "x", "timestamp": 1}])
def test_of_others(
    suffix: str, optional: Any, fake: FakeRegistry, to: RegistryDestination, key: SigningKey
) -> None:
    """cosign names the repository and null, podman and skopeo the tag, creator and timestamp."""
    data = json.dumps(payload(f"{fake.host}/a/b{suffix}", optional=optional)).encode()
    put(fake, [layer(fake, data, key.sign(data))])
    assert read_signatures(to, DIGEST, [key.public]) == [SignedPayload(key.public, optional or {})]


DOCUMENTS: dict[str, Callable[[str], bytes]] = {
    "other digest": lambda name: canonical_json(payload(name, OTHER)),
    "other repository": lambda name: canonical_json(payload(f"{name}/c")),
    "other host": lambda name: canonical_json(payload("evil.example/a/b")),
    "shorter name": lambda name: canonical_json(payload("a/b")),
    "no name": lambda name: canonical_json(payload("")),
    "name of a wrong type": lambda name: canonical_json(payload({"x": name})),  # type: ignore[arg-type]
    "other type": lambda name: canonical_json(payload(name, kind="atomic container signature")),
    "further key": lambda name: canonical_json(payload(name, more=1)),
    "further critical key": lambda name: canonical_json(
        payload(name) | {"critical": payload(name)["critical"] | {"more": 1}}
    ),
    "optional list": lambda name: canonical_json(payload(name, optional=[])),
    "optional false": lambda name: canonical_json(payload(name, optional=False)),
    "no optional": lambda name: canonical_json({"critical": payload(name)["critical"]}),
    "key twice": lambda name: canonical_json(payload(name))[:-1] + b',"optional":{}}',
    "list": lambda name: canonical_json([payload(name)]),
    "critical text": lambda name: canonical_json(payload(name, critical="x")),
    "not JSON": lambda name: b"\xff{",
    "deep": lambda name: b"[" * 5000 + b"]" * 5000,
    "large": lambda name: canonical_json(payload(name, optional={"x": "y" * MAX_PAYLOAD})),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_other_documents(case: str, fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    """Documents that the key signed, about something else or not readable in one way only."""
    data = DOCUMENTS[case](to.name)
    put(fake, [layer(fake, data, key.sign(data))])
    assert read_signatures(to, DIGEST, [key.public]) == []
    assert fake.count("GET", "blobs") == (case != "large")


def test_wrong_signatures(
    fake: FakeRegistry, to: RegistryDestination, make_key: Callable[[], SigningKey]
) -> None:
    key, other = make_key(), make_key()
    data = canonical_json(payload(to.name))
    good = layer(fake, data, key.sign(data))
    text = good["annotations"][SIGNATURE]
    bad = [
        layer(fake, data, other.sign(data)),
        layer(fake, data, key.sign(data + b" ")),
        layer(fake, data, b""),
        good | {"mediaType": "application/json"},
        *(good | {"annotations": annotations} for annotations in ({}, None, {SIGNATURE: f"{text}!"})),
        *(good | {"annotations": {SIGNATURE: wrong}} for wrong in ("", "ä", text[:-4], " " + text)),
    ]
    put(fake, bad)
    assert read_signatures(to, DIGEST, [key.public]) == []
    put(fake, [*bad, good])
    assert len(read_signatures(to, DIGEST, [key.public])) == 1


def test_too_many(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    """Somebody who fills the list does not make builder read it all."""
    junk = [layer(fake, str(n).encode(), b"x") for n in range(MAX_SIGNATURES + 1)]
    put(fake, junk)
    with pytest.raises(RegistryError, match="holds 100 signatures or more"):
        read_signatures(to, DIGEST, [key.public])
    put(fake, junk[1:])
    assert read_signatures(to, DIGEST, [key.public]) == []
    with pytest.raises(RegistryError, match="holds 100 signatures or more"):
        add_signature(to, DIGEST, key, {})
    assert fake.count("PUT") == 0


def test_wrong_size(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    """A blob that is larger than the manifest states is not read to its end."""
    put(fake, [layer(fake, b"x" * (1 << 20), b"x", size=10)])
    with pytest.raises(RegistryError, match="a response of more than 65536 bytes"):
        read_signatures(to, DIGEST, [key.public])


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"[]", OCI_MANIFEST),
        (b'{"manifests": []}', OCI_INDEX),
        (b'{"layers": [1]}', OCI_MANIFEST),
        (b"x", "a/b"),
    ],
)
def test_something_else(
    data: bytes, media_type: str, fake: FakeRegistry, to: RegistryDestination, key: SigningKey
) -> None:
    """The tag names no image of signatures: an error, and nothing is written over it."""
    fake.manifests["a/b"] = {TAG: (data, media_type), sha256(data): (data, media_type)}
    for call in (
        lambda: read_signatures(to, DIGEST, [key.public]),
        lambda: add_signature(to, DIGEST, key, {}),
    ):
        with pytest.raises((ImageError, RegistryError)):
            call()
    assert fake.count("PUT") == 0


@pytest.mark.parametrize("pattern", ["manifests/sha256-", "manifests/sha256:", "blobs/"])
@pytest.mark.parametrize("status", [401, 403, 500])
def test_refused(
    pattern: str, status: int, fake: FakeRegistry, to: RegistryDestination, key: SigningKey
) -> None:
    """A registry that does not answer never means that there is no signature."""
    add_signature(to, DIGEST, key, {})
    fake.fault = lambda request: Reply(status) if pattern in request.path else None
    with pytest.raises(BuilderError):
        read_signatures(to, DIGEST, [key.public])


def test_overwritten(fake: FakeRegistry, to: RegistryDestination, make_key: Callable[[], SigningKey]) -> None:
    """Another client writes its list over ours, which it has not seen: ours is added again."""
    key, other = make_key(), make_key()
    data = canonical_json(payload(to.name))
    pauses = []

    def overwrite(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            put(fake, [layer(fake, data, other.sign(data))])

    with RegistryClient(fake.host, ANONYMOUS, sleep=overwrite) as client:
        add_signature(replace(to, client=client), DIGEST, key, {})
    found = read_signatures(to, DIGEST, [key.public, other.public])
    assert [signed.key for signed in found] == [other.public, key.public] and len(pauses) == 2


def test_never_listed(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    client = RegistryClient(fake.host, ANONYMOUS, sleep=lambda s: put(fake, []) and None)
    with client, pytest.raises(RegistryError, match="was changed by other clients 8 times"):
        add_signature(replace(to, client=client), DIGEST, key, {})


def test_moved_before_the_write(fake: FakeRegistry, to: RegistryDestination, key: SigningKey) -> None:
    """The tag moves between reading and writing: nothing is written over it."""
    moved = []

    def fault(request: Request) -> None:
        if request.method == "POST" and not moved:
            moved.append(put(fake, [layer(fake, b"1", b"x")]))

    fake.fault = fault
    add_signature(to, DIGEST, key, {})
    assert len(stored(fake)["layers"]) == 2 and fake.count("PUT", "manifests") == 1


def test_at_once(fake: FakeRegistry, to: RegistryDestination, make_key: Callable[[], SigningKey]) -> None:
    keys = [make_key() for _ in range(4)]
    failures: list[BaseException] = []

    def sign(key: SigningKey) -> None:
        try:
            with RegistryClient(fake.host, ANONYMOUS) as client:
                add_signature(replace(to, client=client), DIGEST, key, {})
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=sign, args=(key,)) for key in keys]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures
    assert {s.key for s in read_signatures(to, DIGEST, [k.public for k in keys])} == {k.public for k in keys}
