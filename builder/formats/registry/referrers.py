"""Artifacts attached to images: reports, SBOMs, statements (subjects of image-spec 1.1).

An attached artifact is a separate manifest that names the image as its subject: the image and its
digest do not change. Registries with distribution-spec 1.1 list the manifests that refer to an
image. For older ones (distribution 2.8, Debian's docker-registry) the list is an image index under
the tag ``sha256-<hex>``, the referrers tag schema. OCI layouts list such manifests in
``index.json``, without a tag.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.core.errors import RegistryError
from builder.core.model import OCI_INDEX, OCI_MANIFEST, Descriptor, Image, Layer, canonical_json
from builder.core.parallel import in_parallel
from builder.core.progress import Reporter
from builder.core.store.blobs import Store
from builder.core.text import human_bytes
from builder.formats.oci.digest import sha256
from builder.formats.oci.image import assemble
from builder.formats.oci.layout import read_blob, read_index, write_layout
from builder.formats.oci.manifest import parse_json, parse_manifest

from .answer import MAX_SMALL_BLOB
from .client import RegistryClient
from .errors import ArtifactRefused
from .manifests import parse_referrers
from .oras import TITLE
from .source import bytes_source

log = logging.getLogger(__name__)

EMPTY = "application/vnd.oci.empty.v1+json"
CREATED = "org.opencontainers.image.created"
#: Artifacts of one type that are read: the newest. builder attaches one for each test or release.
MAX_READ = 100
#: In bytes: manifests and files of all artifacts of one type together, which are read into memory.
MAX_ATTACHED = 256 << 20
#: In bytes: the manifest of an artifact. Those of builder have 1 kB.
MAX_MANIFEST = 1 << 20
#: In bytes: a file counts at least this much, since its manifest may state too little.
_LEAST = 64 << 10
_READERS = 8
#: The list of an old registry is read, extended and written, and others may do the same at the same
#: time: each writer checks afterwards whether its entry is still there, this many times.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A small file of an attached artifact."""

    name: str
    media_type: str
    data: bytes

    @property
    def layer(self) -> Layer:
        """The file as a layer of an artifact."""
        found = Descriptor.of(self.media_type, self.data)
        return Layer(replace(found, annotations={TITLE: self.name}), found.digest)


@dataclass(frozen=True, slots=True)
class Attached:
    """An artifact as it was read."""

    digest: str
    """Of its manifest."""
    artifact_type: str
    files: tuple[AttachedFile, ...]
    created: str = ""
    """When it was made, as RFC 3339 time; empty when its manifest does not state it."""
    subject: str = ""
    """The digest of the image that its manifest names."""
    size: int = 0
    """Bytes of its manifest and files."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact to attach."""

    artifact_type: str
    """The media type that states what the files are."""
    files: Sequence[AttachedFile]
    """Small files."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of its manifest."""

    def image(self, subject: Descriptor) -> Image:
        """Return the manifest of these files about an image, with its entry for an index."""
        about = Descriptor(subject.media_type, subject.digest, subject.size)
        more: dict[str, Any] = {"artifactType": self.artifact_type, "subject": about.to_json()}
        if self.annotations:
            more["annotations"] = dict(self.annotations)
        made = assemble([file.layer for file in self.files], b"{}", EMPTY, **more)
        entry = replace(
            made.manifest_descriptor,
            artifact_type=self.artifact_type,
            annotations=dict(self.annotations),
        )
        return replace(made, manifest_descriptor=entry)


# registries: writing ------------------------------------------------------------------------------


def attach(client: RegistryClient, repository: str, subject: Descriptor, artifact: Artifact) -> str:
    """Attach files to an image that the repository has; return the artifact's digest.

    The same files attached again are the same artifact, which is not uploaded or listed again.

    Args:
        client: the registry.
        repository: of the image.
        subject: the image's manifest.
        artifact: the files.

    Raises:
        ArtifactRefused: the registry accepts container images only.
        RegistryError: it refuses, or cannot be reached.
    """
    client.expect_push(repository)
    image = artifact.image(subject)
    if _is_listed(image.digest, referrers(client, repository, subject.digest)):
        return image.digest
    files = [(file.layer.descriptor, file.data) for file in artifact.files]
    for descriptor, data in [(image.config_descriptor, image.config), *files]:
        if not client.blobs.has(repository, descriptor):
            client.blobs.upload(repository, descriptor, bytes_source(data))
    answer = client.manifests.put(
        repository, image.digest, image.manifest, OCI_MANIFEST, ArtifactRefused
    )
    listed = "OCI-Subject" in answer.headers
    if not listed:
        # A registry may list the manifest without sending the OCI-Subject header.
        found = client.manifests.get_referrers(repository, subject.digest)
        listed = _is_listed(image.digest, found)
    if not listed:
        log.info("%s has no list of attached artifacts: a tag names them", client.host)
        _list_by_tag(client, repository, subject.digest, image.manifest_descriptor)
    return image.digest


def _is_listed(digest: str, listed: Sequence[Descriptor]) -> bool:
    return any(descriptor.digest == digest for descriptor in listed)


def _list_by_tag(client: RegistryClient, repository: str, subject: str, entry: Descriptor) -> None:
    """Add an entry to the list under the tag; see :data:`_TRIES`."""
    tag, manifests = referrers_tag(subject), client.manifests
    for _ in range(_TRIES):
        listed, digest = _listed_by_tag(client, repository, subject)
        if _is_listed(entry.digest, listed):
            return
        entries = [descriptor.to_json() for descriptor in (*listed, entry)]
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
        manifests.move_tag(repository, tag, canonical_json(index), OCI_INDEX, expected=digest)
    listed, _ = _listed_by_tag(client, repository, subject)
    if not _is_listed(entry.digest, listed):
        raise client.error(
            f"{client.host}/{repository}:{tag} was changed by other clients {_TRIES} times",
            "wait until they are done, then publish again",
        )


# registries: reading ------------------------------------------------------------------------------


def referrers(
    client: RegistryClient, repository: str, subject: str, artifact_type: str | None = None
) -> list[Descriptor]:
    """Return the artifacts attached to an image, as the registry lists them, the newest last.

    Args:
        client: the registry.
        repository: of the image.
        subject: the digest of the image.
        artifact_type: artifacts of this type only; None: all.

    Raises:
        RegistryError: the registry refuses, or cannot be reached.
    """
    found = client.manifests.get_referrers(repository, subject)
    if not found:  # some registries have such a list, and leave it empty
        found, _ = _listed_by_tag(client, repository, subject)
    return sorted((d for d in found if artifact_type in (None, d.artifact_type)), key=_created)


def _created(entry: Descriptor | Attached) -> str:
    """Return when an artifact was made, as whoever attached it says; empty: not stated."""
    return entry.created if isinstance(entry, Attached) else entry.annotations.get(CREATED, "")


def referrers_tag(subject: str) -> str:
    """Return the tag of the list in registries before distribution-spec 1.1."""
    return subject.replace(":", "-", 1)


def _listed_by_tag(
    client: RegistryClient, repository: str, subject: str
) -> tuple[list[Descriptor], str | None]:
    """Return the list under the tag, and its digest; None: there is no such tag."""
    tag = referrers_tag(subject)
    current = client.manifests.head(repository, tag)
    if current is None:
        return [], None
    name = f"{client.host}/{repository}:{tag}"
    data, found = client.manifests.get(repository, current.digest)
    if found.media_type != OCI_INDEX:
        raise client.error(
            f"{name} is not a list of attached artifacts but {found.media_type}",
            "the OCI reserves this tag for the list: after cosign copy (3.1), copy with oras copy -r, "
            "which replaces it; else delete the tag there",
        )
    return parse_referrers(data, name), current.digest


def read_newest(
    listed: Sequence[Descriptor], read: Callable[[str], Attached], where: str, reporter: Reporter
) -> list[Attached]:
    """Return the artifacts of a list, the newest last; report when it has more than MAX_READ.

    Args:
        listed: artifacts of one type, the newest last.
        read: returns the artifact of a digest.
        where: the image's name, for messages.
        reporter: receives the warning.

    Raises:
        RegistryError, ImageError: one of them is damaged, or they are too large.
    """
    if len(listed) > MAX_READ:
        reporter.warn(
            f"{len(listed)} artifacts of one type are attached to {where}: only the newest {MAX_READ} "
            "are read; whoever may push can hide older ones by more, so delete what is not yours"
        )
    sizes: list[int] = []

    def read_one(entry: Descriptor) -> Attached:
        artifact = read(entry.digest)
        sizes.append(artifact.size)  # of all threads
        if sum(sizes) > MAX_ATTACHED:
            raise _too_much(f"what is attached to {where}", MAX_ATTACHED)
        return artifact

    found = [artifact for _, artifact in in_parallel(read_one, listed[-MAX_READ:], _READERS)]
    return sorted(found, key=_created)


def _small_files(manifest: Mapping[str, Any], where: str) -> list[Descriptor]:
    """Return the files of an artifact; raise RegistryError when they are too large for memory."""
    files = [Descriptor.from_json(d) for d in manifest["layers"]]
    if sum(max(file.size, _LEAST) for file in files) > MAX_SMALL_BLOB:
        raise _too_much(f"the artifact {where}", MAX_SMALL_BLOB)
    return files


def _too_much(what: str, most: int) -> RegistryError:
    return RegistryError(
        f"{what} is too large: at most {human_bytes(most)} are read",
        "builder attaches small files only: remove there what others attached",
    )


def read_artifact(data: bytes, read: Callable[[Descriptor], bytes], where: str) -> Attached:
    """Return the artifact of a manifest, with its files.

    Args:
        data: the manifest, verified.
        read: returns the verified bytes of a file.
        where: the repository or layout, for messages.

    Raises:
        RegistryError, ImageError: it is damaged, or too large for memory; or as ``read`` raises.
    """
    digest = sha256(data)
    where = f"{where}@{digest}"
    if len(data) > MAX_MANIFEST:
        raise _too_much(f"the artifact {where}", MAX_MANIFEST)
    manifest = parse_manifest(data, Descriptor(OCI_MANIFEST, digest, len(data)), where)
    files = tuple(
        AttachedFile(file.annotations.get(TITLE, ""), file.media_type, read(file))
        for file in _small_files(manifest, where)
    )
    annotations, subject = manifest.get("annotations"), manifest.get("subject")
    created = str(annotations.get(CREATED, "")) if isinstance(annotations, dict) else ""
    about = str(subject.get("digest")) if isinstance(subject, dict) else ""
    size = len(data) + sum(len(file.data) for file in files)
    return Attached(digest, str(manifest.get("artifactType") or ""), files, created, about, size)


# OCI layouts --------------------------------------------------------------------------------------


def attach_in_layout(folder: Path, store: Store, subject: Descriptor, artifact: Artifact) -> str:
    """Attach files to an image in an OCI layout; return the artifact's digest.

    Args:
        folder: the layout.
        store: receives the files.
        subject, artifact: see :func:`attach`.

    Raises:
        ImageError, SpaceError: see :func:`builder.formats.oci.layout.write_layout`.
    """
    layers = [replace(f.layer, path=store.path(store.add(f.data))) for f in artifact.files]
    image = replace(artifact.image(subject), layers=tuple(layers))
    write_layout(image, folder, None, store)
    return image.digest


def layout_referrers(
    folder: Path, subject: str, artifact_type: str | None = None
) -> list[Descriptor]:
    """Return the artifacts attached to an image of an OCI layout, the newest last.

    Args:
        folder: the layout.
        subject: the digest of the image.
        artifact_type: artifacts of this type only; None: all.

    Raises:
        ImageError: the layout is damaged.
    """
    found = []
    for descriptor in map(Descriptor.from_json, read_index(folder)["manifests"]):
        if not descriptor.artifact_type or artifact_type not in (None, descriptor.artifact_type):
            continue
        what = f"the manifest {descriptor.digest} in {folder}"
        manifest = parse_json(read_blob(folder, descriptor), what)
        if (manifest.get("subject") or {}).get("digest") == subject:
            found.append(descriptor)
    return sorted(found, key=_created)
