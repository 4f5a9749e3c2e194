"""Reports, bills of material and statements attached to images (image-spec 1.1: ``subject``; distribution-spec 1.1: referrers).

An attached artifact is a manifest of its own that names the image as its subject: the image and its digest stay as they are.
Registries since 1.1 list what refers to an image; for older ones the list is an image index under the tag ``sha256-<hex>``
(the referrers tag schema). OCI layouts list such manifests in ``index.json``, without a tag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.errors import ImageError, RegistryError, UsageError
from builder.model import OCI_INDEX, OCI_MANIFEST, Descriptor, Image, Layer, canonical_json
from builder.oci.layout import list_tags, read_blob, read_index, write_layout
from builder.oci.manifest import parse_json, parse_manifest
from builder.oci.reference import Reference, is_digest
from builder.progress import QUIET, Reporter
from builder.registry.auth import Credentials
from builder.registry.client import RegistryClient, bytes_source, parse_index
from builder.registry.oras import TITLE
from builder.registry.profile import named_credentials
from builder.settings import Settings
from builder.store.blobs import Store

EMPTY = "application/vnd.oci.empty.v1+json"
CREATED = "org.opencontainers.image.created"
_NOTHING = b"{}"
#: Others may write the list of an old registry at the same time: each of us looks whether his entry is still there.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A small file of an attached artifact."""

    name: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Attached:
    """An artifact as it was read. ``annotations`` are the manifest's; ``created`` of them, if set, is RFC 3339 time."""

    digest: str
    artifact_type: str
    files: tuple[AttachedFile, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def created(self) -> str:
        return self.annotations.get(CREATED, "")


# writing --------------------------------------------------------------------------------------------------------------


def attach(
    client: RegistryClient,
    repository: str,
    subject: Descriptor,
    artifact_type: str,
    files: Sequence[AttachedFile],
    *,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Attaches files to an image that the repository has; gives the artifact's digest.

    The same files attached again are the same artifact: nothing is sent, and nothing is listed twice.

    Args:
        client: the registry.
        repository: where the image lies.
        subject: the image's manifest.
        artifact_type: the media type that says what the files are.
        files: small files.
        annotations: of the artifact's manifest.

    Raises:
        ArtifactRefused: the registry takes images only.
        RegistryError: it does not let us, or cannot be reached.
    """
    client.expect_push(repository)
    manifest, described, blobs = _make(subject, artifact_type, files, annotations or {})
    if any(d.digest == described.digest for d in referrers(client, repository, subject.digest)):
        return described.digest
    for descriptor, data in blobs:
        if client.head_blob(repository, descriptor.digest) is None:
            client.upload_stream(repository, descriptor.digest, descriptor.size, bytes_source(data))
    listed = client.put_referrer(repository, manifest, OCI_MANIFEST) or any(
        d.digest == described.digest
        for d in client.get_referrers(repository, subject.digest) or ()  # some list, and say nothing
    )
    if not listed:
        _list_by_tag(client, repository, subject.digest, replace(described, annotations=annotations or {}))
    return described.digest


def _make(
    subject: Descriptor, artifact_type: str, files: Sequence[AttachedFile], annotations: Mapping[str, str]
) -> tuple[bytes, Descriptor, list[tuple[Descriptor, bytes]]]:
    config = Descriptor.of(EMPTY, _NOTHING)
    layers = [
        (replace(Descriptor.of(f.media_type, f.data), annotations={TITLE: f.name}), f.data) for f in files
    ]
    value = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": artifact_type,
        "config": config.to_json(),
        "layers": [d.to_json() for d, _ in layers],
        "subject": Descriptor(subject.media_type, subject.digest, subject.size).to_json(),
        **({"annotations": dict(annotations)} if annotations else {}),
    }
    manifest = canonical_json(value)
    described = replace(Descriptor.of(OCI_MANIFEST, manifest), artifact_type=artifact_type)
    return manifest, described, [(config, _NOTHING), *layers]


def _list_by_tag(client: RegistryClient, repository: str, subject: str, entry: Descriptor) -> None:
    for _ in range(_TRIES):
        listed = _listed_by_tag(client, repository, subject)
        if any(d.digest == entry.digest for d in listed):
            return
        index = {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [d.to_json() for d in (*listed, entry)],
        }
        client.put_manifest(repository, referrers_tag(subject), canonical_json(index), OCI_INDEX)
    if all(d.digest != entry.digest for d in _listed_by_tag(client, repository, subject)):
        raise RegistryError(
            f"{client.host}/{repository}:{referrers_tag(subject)} is changed by others all the time",
            "publish again",
        )


# reading --------------------------------------------------------------------------------------------------------------


def referrers(
    client: RegistryClient, repository: str, subject: str, artifact_type: str | None = None
) -> list[Descriptor]:
    """What is attached to the image of a digest, of one type or of all, as the registry lists it.

    Raises:
        RegistryError: the registry does not let us, or cannot be reached.
    """
    found = client.get_referrers(repository, subject)
    if found is None:
        found = _listed_by_tag(client, repository, subject)
    return [d for d in found if artifact_type in (None, d.artifact_type)]


def referrers_tag(subject: str) -> str:
    """The tag under which registries before 1.1 have the list."""
    return subject.replace(":", "-", 1)


def _listed_by_tag(client: RegistryClient, repository: str, subject: str) -> list[Descriptor]:
    there = client.head_manifest(repository, referrers_tag(subject))
    if there is None:
        return []
    data, media_type, _ = client.get_manifest(repository, there.digest, [OCI_INDEX])
    if media_type != OCI_INDEX:
        raise RegistryError(
            f"{client.host}/{repository}:{referrers_tag(subject)} is no list of attached artifacts but {media_type}",
            "something else took this tag, which the OCI reserves: delete it there",
        )
    return parse_index(data, f"{client.host}/{repository}:{referrers_tag(subject)}")


def fetch_attached(
    reference: str,
    artifact_type: str,
    settings: Settings,
    *,
    credentials: Credentials | None = None,
    reporter: Reporter = QUIET,
) -> list[Attached]:
    """The artifacts of a type that are attached to an image, the newest last; empty when there are none.

    Args:
        reference: ``host/repository:tag``, ``host/repository@sha256:...``, ``oci:DIR:TAG`` or ``oci:DIR@sha256:...``.
        artifact_type: such as :data:`builder.publishing.attest.SMOKE_REPORT`.
        settings: ``offline`` is obeyed.
        credentials: None takes those that the user named (:func:`named_credentials`), else what docker and podman know.

    Raises:
        RegistryError, ImageError: there is no such image, or what is attached is damaged.
    """
    if reference.startswith("oci:"):
        folder, digest = _in_layout(reference)
        found = [_read_in_layout(folder, d) for d in layout_referrers(folder, digest, artifact_type)]
    else:
        parsed = Reference.parse(reference)
        with RegistryClient(
            parsed.host,
            credentials or named_credentials(warn=reporter.warn),
            settings=settings,
            reporter=reporter,
        ) as client:
            there = client.head_manifest(parsed.repository, parsed.ref)
            if there is None:
                raise RegistryError(f"{client.host} has no {reference}", "correct the repository and the tag")
            found = [
                _read(client, parsed.repository, d)
                for d in referrers(client, parsed.repository, there.digest, artifact_type)
            ]
    return sorted(found, key=lambda a: (a.created, a.digest))


def _read(client: RegistryClient, repository: str, descriptor: Descriptor) -> Attached:
    manifest, _, digest = client.get_manifest(repository, descriptor.digest, [OCI_MANIFEST])
    data = parse_manifest(manifest, descriptor, f"{client.host}/{repository}")
    files = [(d, client.get_blob(repository, d)) for d in map(Descriptor.from_json, data["layers"])]
    return _attached(data, digest, files)


def _attached(
    manifest: Mapping[str, object], digest: str, files: Sequence[tuple[Descriptor, bytes]]
) -> Attached:
    annotations = manifest.get("annotations")
    return Attached(
        digest,
        str(manifest.get("artifactType") or ""),
        tuple(AttachedFile(d.annotations.get(TITLE, ""), d.media_type, data) for d, data in files),
        {str(k): str(v) for k, v in annotations.items()} if isinstance(annotations, dict) else {},
    )


# OCI layouts ----------------------------------------------------------------------------------------------------------


def attach_in_layout(
    folder: Path,
    store: Store,
    subject: Descriptor,
    artifact_type: str,
    files: Sequence[AttachedFile],
    *,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """:func:`attach` for an image in an OCI layout."""
    manifest, described, blobs = _make(subject, artifact_type, files, annotations or {})
    layers = tuple(Layer(d, d.digest, store.path(store.add(data))) for d, data in blobs[1:])
    config, nothing = blobs[0]
    listed = replace(described, annotations=annotations or {})
    write_layout(Image(layers, nothing, config, manifest, listed), folder, None, store)
    return described.digest


def layout_referrers(folder: Path, subject: str, artifact_type: str | None = None) -> list[Descriptor]:
    """What is attached to an image of an OCI layout, of one type or of all.

    Raises:
        ImageError: the layout is damaged.
    """
    found = []
    for descriptor in map(Descriptor.from_json, read_index(folder)["manifests"]):
        if descriptor.artifact_type and artifact_type in (None, descriptor.artifact_type):
            manifest = parse_json(
                read_blob(folder, descriptor), f"the manifest {descriptor.digest} in {folder}"
            )
            if (manifest.get("subject") or {}).get("digest") == subject:
                found.append(descriptor)
    return found


def _read_in_layout(folder: Path, descriptor: Descriptor) -> Attached:
    data = parse_manifest(read_blob(folder, descriptor), descriptor, str(folder))
    files = [(d, read_blob(folder, d)) for d in map(Descriptor.from_json, data["layers"])]
    return _attached(data, descriptor.digest, files)


def _in_layout(reference: str) -> tuple[Path, str]:
    """The folder and the digest of ``oci:DIR:TAG`` or ``oci:DIR@sha256:...``."""
    rest = reference.removeprefix("oci:")
    path, at, digest = rest.partition("@")
    if at and is_digest(digest):
        return Path(path).expanduser(), digest
    path, colon, tag = rest.rpartition(":")
    if not colon or not tag:
        raise UsageError(f"{reference} names no image", "write oci:DIR:TAG or oci:DIR@sha256:...")
    tags = list_tags(folder := Path(path).expanduser())
    if tag not in tags:
        raise ImageError(f"{folder} holds no image {tag!r}", f"its tags: {', '.join(sorted(tags)) or 'none'}")
    return folder, tags[tag]
