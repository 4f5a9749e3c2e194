"""Signatures of images in a registry, in cosign's format (specs/SIGNATURE_SPEC.md), with key pairs.

What is signed is a small JSON document, "simple signing": this digest, in this repository. It is a layer
of an image under the tag ``sha256-<hex>.sig`` of the same repository; the signature is an annotation of
the layer. Several signatures are several layers. podman, skopeo and cosign verify them.

The document names the repository without a tag, since tags move: the policy of podman and skopeo says
``"signedIdentity": {"type": "matchRepository"}``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.core.errors import BuilderError, RegistryError
from builder.core.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, canonical_json
from builder.formats.oci.documents import load_json
from builder.formats.oci.manifest import parse_manifest
from builder.formats.oci.reference import Reference
from builder.formats.registry.source import bytes_source

from .destination import RegistryDestination
from .keys import PublicKey, SigningKey

PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
_TYPE = "cosign container image signature"
#: Whoever may push may add signatures: more are an error, not read.
MAX_SIGNATURES = 100
#: In bytes; those of builder, cosign and podman have less than 1 KiB.
MAX_PAYLOAD = 64 << 10
#: As for the list of referrers: others may change it at the same time.
_TRIES = 8


@dataclass(frozen=True, slots=True)
class SignedPayload:
    """A signature that was verified."""

    key: PublicKey
    """The key that made it."""
    optional: dict[str, Any]
    """What the signer added to the digest and repository."""


def signature_tag(digest: str) -> str:
    """Return the tag of the signatures of an image."""
    return f"{digest.replace(':', '-', 1)}.sig"


def add_signature(
    destination: RegistryDestination, digest: str, key: SigningKey, optional: Mapping[str, Any]
) -> None:
    """Sign an image that was pushed, and read back that the signature is listed.

    Signatures of others stay. What this key has signed already is not signed again. When several
    clients sign at once, each looks again after a pause whether its signature is still listed, since
    the distribution-spec has no conditional requests (its issue 250).

    Args:
        destination: the repository.
        digest: of the image, or of an image index.
        key: signs.
        optional: further statements to sign. containers/image requires that ``creator`` is a text and
            ``timestamp`` a whole number.

    Raises:
        RegistryError: the registry refuses, cannot be reached, or holds too many signatures.
        ImageError: something else is under the tag.
    """
    client, repository = destination.client, destination.repository
    client.expect_push(repository)
    critical = _critical(destination.name, digest)
    payload = canonical_json({"critical": critical, "optional": dict(optional)})
    signature = base64.b64encode(key.sign(payload)).decode()
    layer = {**Descriptor.of(PAYLOAD, payload).to_json(), "annotations": {SIGNATURE: signature}}
    for failures in range(1, _TRIES + 1):
        manifest, current = _stored(destination, digest)
        layers = manifest["layers"]
        if any(_is_signed(other, key.public, payload) for other in layers):
            return
        if len(layers) >= MAX_SIGNATURES:
            raise _too_many(destination, digest)
        config = _config([*layers, layer])
        for data in (payload, config):
            blob = Descriptor.of(OCI_CONFIG, data)
            if not client.blobs.has(repository, blob):
                client.blobs.upload(repository, blob, bytes_source(data))
        added = {"config": Descriptor.of(OCI_CONFIG, config).to_json(), "layers": [*layers, layer]}
        data = canonical_json(manifest | added)
        try:
            client.manifests.move_tag(
                repository, signature_tag(digest), data, OCI_MANIFEST, expected=current
            )
        except RegistryError as e:
            # docker-registry 2.8 answers so when another client writes the tag at that moment
            if "DIGEST_INVALID" not in e.message or failures == _TRIES:
                raise
        client.pause(failures, "others may sign at the same time")
    raise client.error(
        f"{destination.name}:{signature_tag(digest)} was changed by other clients {_TRIES} times",
        "wait until they are done, then sign again",
    )


def read_signatures(
    destination: RegistryDestination, digest: str, keys: Sequence[PublicKey]
) -> list[SignedPayload]:
    """Return the signatures of an image that one of the keys made; none: an empty list.

    A signature counts if its document is about exactly this digest and repository. A tag in the
    document, which podman and skopeo write, is not compared. Others are ignored.

    Raises:
        RegistryError: the registry refuses, cannot be reached, or holds too many signatures.
        HashMismatch: it returns something else.
        ImageError: something else is under the tag.
    """
    manifest, _ = _stored(destination, digest)
    found = []
    for layer in manifest["layers"]:
        signature = _signature(layer)
        if signature is None:
            continue
        blob = Descriptor.from_json(layer)
        payload = destination.client.blobs.get(destination.repository, blob)
        key = next((key for key in keys if key.verify(signature, payload)), None)
        optional = _optional(payload, destination.name, digest) if key else None
        if key and optional is not None:
            found.append(SignedPayload(key, optional))
    return found


def _critical(reference: str, digest: str) -> dict[str, Any]:
    return {
        "identity": {"docker-reference": reference},
        "image": {"docker-manifest-digest": digest},
        "type": _TYPE,
    }


def _config(layers: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the config of the image of signatures, as cosign and containers/image extend it."""
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    return canonical_json({"architecture": "", "config": {}, "os": "", "rootfs": rootfs})


def _stored(destination: RegistryDestination, digest: str) -> tuple[dict[str, Any], str | None]:
    """Return the image of signatures and its digest; an empty one and None if there is no tag."""
    manifests, repository = destination.client.manifests, destination.repository
    current = manifests.head(repository, signature_tag(digest))
    if current is None:
        return {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": []}, None
    data, descriptor = manifests.get(repository, current.digest)
    manifest = parse_manifest(data, descriptor, destination.name)
    if len(manifest["layers"]) > MAX_SIGNATURES:
        raise _too_many(destination, digest)
    return manifest, current.digest


def _too_many(destination: RegistryDestination, digest: str) -> RegistryError:
    return destination.client.error(
        f"{destination.name}:{signature_tag(digest)} holds {MAX_SIGNATURES} signatures or more",
        "somebody fills it: find out who may push there, delete that tag, and sign again",
    )


def _signature(layer: Mapping[str, Any]) -> bytes | None:
    """Return the signature of a layer; None: the layer is something else."""
    if layer.get("mediaType") != PAYLOAD or layer["size"] > MAX_PAYLOAD:
        return None
    try:
        text = (layer.get("annotations") or {}).get(SIGNATURE, "")
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _is_signed(layer: Mapping[str, Any], key: PublicKey, payload: bytes) -> bool:
    signature = _signature(layer)
    same = layer["digest"] == Descriptor.of(PAYLOAD, payload).digest
    return same and signature is not None and key.verify(signature, payload)


def _optional(payload: bytes, name: str, digest: str) -> dict[str, Any] | None:
    """Return the optional part of a document about an image; None: it is about something else."""
    try:
        value = load_json(payload, "a signed document")
        optional, reference = value["optional"], value["critical"]["identity"]["docker-reference"]
        parsed = Reference.parse(reference) if isinstance(reference, str) else None
    except (BuilderError, LookupError, TypeError):
        return None
    if value != {"critical": _critical(reference, digest), "optional": optional}:
        return None
    if parsed is None or f"{parsed.host}/{parsed.repository}" != name:
        return None
    known = {} if optional is None else optional  # cosign writes null
    return known if isinstance(known, dict) else None
