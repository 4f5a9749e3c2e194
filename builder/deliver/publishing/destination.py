"""Destinations of published images: a repository of a registry, or an OCI layout on disk.

A destination has content (images by digest, what is attached to them) and tags. Both kinds have the
same methods, so what publishes, pulls, promotes and verifies takes either; only a registry holds
signatures.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from builder.core.errors import ImageError, UsageError
from builder.core.model import Descriptor, Image, Layer
from builder.core.parallel import Advance, in_parallel, run_task
from builder.core.progress import QUIET, Reporter, working
from builder.core.settings import Settings, expand_home
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.formats.oci.documents import read_document
from builder.formats.oci.image import image_blobs
from builder.formats.oci.layout import (
    blob_path,
    move_layout_tag,
    read_blob,
    read_index,
    read_layout,
    write_layout,
)
from builder.formats.oci.manifest import tag_of
from builder.formats.oci.reference import TAG_RULE, Reference, is_tag
from builder.formats.registry import referrers
from builder.formats.registry.answer import MAX_SMALL_BLOB
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import environment_credentials
from builder.formats.registry.manifests import ANY, TagMove
from builder.formats.registry.oras import copy_sif, is_sif, pull_sif
from builder.formats.registry.pull import fetch_layers, pull_image
from builder.formats.registry.push import CHECKS, TRANSFERS, KnownBlobs, PushReport, push_image
from builder.formats.registry.referrers import Artifact, Attached
from builder.lock.config.recipe import Recipe

#: A host alone: ``localhost:5000``, ``ghcr.io``.
_HOST = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+|\[[0-9a-fA-F:]+\])(:\d+)?/?|[\w-]+:\d{4,5}/?")


@dataclass(frozen=True)
class RegistryDestination:
    """A repository of a registry."""

    client: RegistryClient
    repository: str
    store: Store
    """Receives what is pulled."""
    known: KnownBlobs | None = None
    """Blobs that this command has pushed, and where; receives those of further pushes."""

    @property
    def name(self) -> str:
        """``host/repository``."""
        return f"{self.client.host}/{self.repository}"

    def close(self) -> None:
        """Close the connections to the registry."""
        self.client.close()

    def resolve(self, ref: str) -> Descriptor | None:
        """Return the manifest or index that the registry has for a tag or digest; None: none."""
        return self.client.manifests.head(self.repository, ref)

    def manifest(self, descriptor: Descriptor) -> bytes:
        """Return a manifest or index of the store, or download it."""
        path = self.store.get(descriptor.digest)
        if path is not None:
            return read_document(path)
        data, _ = self.client.manifests.get(self.repository, descriptor.digest)
        self.store.add(data)
        return data

    def config(self, descriptor: Descriptor) -> bytes:
        """Download the config of an image."""
        return self.client.blobs.get(self.repository, descriptor)

    def image(self, digest: str, architecture: str) -> Image:
        """Return an image with all its layers on this machine, verified."""
        return pull_image(self.client, self.repository, digest, architecture, self.store)

    def sif(self, layer: Descriptor, output: Path) -> bool:
        """Bring a SIF to ``output``; return whether anything was transferred."""
        return pull_sif(self.client, self.repository, layer, output, self.store)

    def push(self, image: Image) -> PushReport:
        """Send the blobs that are missing in the registry, then the manifest, and no tag.

        Afterwards the image can be pulled by its digest.
        """
        return push_image(image, self.client, self.repository, self.known)

    def attach(self, subject: Descriptor, artifact: Artifact) -> str:
        """Attach files to an image that was pushed; return the artifact's digest.

        Raises:
            ArtifactRefused: the registry accepts container images only.
        """
        return referrers.attach(self.client, self.repository, subject, artifact)

    def listed(self, image: str, artifact_type: str | None = None) -> list[Descriptor]:
        """Ask the registry what is attached to an image by its digest, the newest last."""
        return referrers.referrers(self.client, self.repository, image, artifact_type)

    def attached_to(self, image: str, artifact_type: str) -> list[Attached]:
        """Return the newest attached artifacts of a type, the newest last."""
        listed, where = self.listed(image, artifact_type), f"{self.name}@{image}"
        return referrers.read_newest(listed, self.artifact, where, self.client.reporter)

    def artifact(self, digest: str) -> Attached:
        """Return an attached artifact by its digest, whatever the registry lists."""
        data, _ = self.client.manifests.get(self.repository, digest)
        read = partial(self.client.blobs.get, self.repository)
        return referrers.read_artifact(data, read, self.name)

    def missing(self, blobs: Sequence[Descriptor]) -> list[Descriptor]:
        """Ask the registry for each blob; return those that it does not have."""
        found = in_parallel(partial(self.client.blobs.has, self.repository), blobs, CHECKS)
        return [blob for blob, is_there in found if not is_there]

    def read_back(self, image: Image, blobs: Sequence[Descriptor]) -> None:
        """Download the manifest and some blobs of a pushed image, every byte; store nothing.

        Raises:
            RegistryError, HashMismatch: one of them is not what its digest says.
        """
        task = f"reading back {self.name}"

        def check(blob: Descriptor, advance: Advance) -> None:
            digest, size = self.client.blobs.hash(self.repository, blob, advance)
            if digest != blob.digest:
                raise self.client.error(
                    f"{self.name} returned {size} bytes with the digest {digest} for the blob "
                    f"{blob.digest} of {blob.size} bytes",
                    "nobody could pull this image, so no tag was moved; publish again, and if this "
                    "happens again, ask the registry's owner to delete that blob",
                )

        self.client.manifests.get(self.repository, image.digest)
        run_task(check, blobs, TRANSFERS, self.client.reporter, task, lambda blob: blob.size)

    def move_tag(self, tag: str, image: Image, expected: str | None = ANY) -> TagMove:
        """Point a tag at an image that was pushed, unless the tag is not as expected.

        Args:
            tag: the tag.
            image: the image.
            expected: the digest that the tag must name before; None: the tag must not exist;
                ``ANY``: it is moved in any case.
        """
        media_type = image.manifest_descriptor.media_type
        return self.client.manifests.move_tag(
            self.repository, tag, image.manifest, media_type, expected=expected
        )


@dataclass(frozen=True)
class LayoutDestination:
    """An OCI layout in a folder, created when the first image is published: no server is needed."""

    folder: Path
    store: Store
    """Records which files were verified, and receives base layers that must be downloaded."""
    settings: Settings | None = None
    """Its ``offline`` forbids downloads of base layers."""
    reporter: Reporter = QUIET

    @property
    def name(self) -> str:
        """``oci:DIR``."""
        return f"oci:{self.folder}"

    def close(self) -> None:
        """Do nothing: a folder has no connections."""

    def resolve(self, ref: str) -> Descriptor | None:
        """Find a tag or digest in ``index.json``."""
        if not (self.folder / "index.json").exists():
            return None
        entries = read_index(self.folder)["manifests"]
        found = (entry for entry in entries if ref in (tag_of(entry), entry["digest"]))
        return next(map(Descriptor.from_json, found), None)

    def manifest(self, descriptor: Descriptor) -> bytes:
        """Read a manifest or index."""
        return read_blob(self.folder, descriptor)

    #: Read the config of an image.
    config = manifest

    def image(self, digest: str, architecture: str) -> Image:
        """Return an image with all its layers on this machine, verified."""
        image = read_layout(self.folder, digest, architecture)
        with working(self.reporter, f"verifying {self.name}"):
            for layer in image.layers:
                assert layer.path is not None
                if not self.store.verify(layer.path, layer.descriptor.digest):
                    raise ImageError(
                        f"{layer.path} is corrupt: its content does not match its digest",
                        f"{self.folder} is damaged: publish or pull again",
                    )
        return image

    def sif(self, layer: Descriptor, output: Path) -> bool:
        """Bring a SIF to ``output``; return whether anything was transferred."""
        with working(self.reporter, f"copying {output.name}"):
            return copy_sif(blob_path(self.folder, layer.digest), layer, output, self.store)

    def push(self, image: Image) -> PushReport:
        """Write the image's files that are missing in the layout."""
        started = time.monotonic()
        blobs = image_blobs(image)
        missing = self.missing(blobs)
        with working(self.reporter, f"writing into {self.name}"):
            layers = tuple(self._local(layer) for layer in image.layers)
            present = replace(image, layers=layers)
            whole = fetch_layers(present, self.store, self.settings, self.reporter)
            write_layout(whole, self.folder, None, self.store)
        return PushReport(
            image.digest,
            sent=tuple(missing),
            blobs_present=len(blobs) - len(missing),
            seconds=time.monotonic() - started,
        )

    def attach(self, subject: Descriptor, artifact: Artifact) -> str:
        """Attach files to an image of the layout."""
        return referrers.attach_in_layout(self.folder, self.store, subject, artifact)

    def listed(self, image: str, artifact_type: str | None = None) -> list[Descriptor]:
        """Find what is attached to an image by its digest, the newest last."""
        return referrers.layout_referrers(self.folder, image, artifact_type)

    def attached_to(self, image: str, artifact_type: str) -> list[Attached]:
        """Return the newest attached artifacts of a type, the newest last."""
        listed, where = self.listed(image, artifact_type), f"{self.name}@{image}"
        return referrers.read_newest(listed, self.artifact, where, self.reporter)

    def artifact(self, digest: str) -> Attached:
        """Return an attached artifact by its digest."""
        found = self.resolve(digest)
        if found is None:
            raise ImageError(f"{self.name} has no {digest}", "publish the image again")
        read = partial(read_blob, self.folder, most=MAX_SMALL_BLOB)
        return referrers.read_artifact(self.manifest(found), read, self.name)

    def missing(self, blobs: Sequence[Descriptor]) -> list[Descriptor]:
        """Return the blobs whose files are missing or have another size."""
        return [blob for blob in blobs if not self._has(blob)]

    def read_back(self, image: Image, blobs: Sequence[Descriptor]) -> None:
        """Read the manifest and the files again. Raises ImageError: one is damaged."""
        read_blob(self.folder, image.manifest_descriptor)
        task = f"reading back {self.name}"

        def check(blob: Descriptor, advance: Advance) -> None:
            path = blob_path(self.folder, blob.digest)
            if not path.is_file() or sha256_file(path) != blob.digest:
                raise ImageError(
                    f"{path} is missing or corrupt: its content does not match its digest",
                    "no tag was moved; the disk, or the build's own file in the cache, is damaged: "
                    "remove the file, run builder cache prune --all, and publish again",
                )
            advance(blob.size)

        run_task(check, blobs, TRANSFERS, self.reporter, task, lambda blob: blob.size)

    def move_tag(self, tag: str, image: Image, expected: str | None = ANY) -> TagMove:
        """Point a tag at the image in ``index.json``."""
        if not is_tag(tag):
            raise UsageError(f"{tag!r} is not a tag", TAG_RULE)
        before, now = move_layout_tag(
            self.folder, tag, image.manifest_descriptor, lambda found: expected in (ANY, found)
        )
        return TagMove(before, now, written=before != now)

    def _local(self, layer: Layer) -> Layer:
        """Return the layer with the layout's own file where that is needed.

        A SIF outside of the store (in ``dist/``) is copied, never linked: signing it later would
        change it in place.
        """
        digest = layer.descriptor.digest
        own = blob_path(self.folder, digest)
        if layer.path is None:
            return replace(layer, path=own) if self._has(layer.descriptor) else layer
        if is_sif(layer.descriptor) and layer.path not in (own, self.store.path(digest)):
            copy_sif(layer.path, layer.descriptor, own, self.store)
            return replace(layer, path=own)
        return layer

    def _has(self, blob: Descriptor) -> bool:
        path = blob_path(self.folder, blob.digest)
        return path.is_file() and path.stat().st_size == blob.size


#: Where images are published to and pulled from.
PublishDestination = RegistryDestination | LayoutDestination


def open_destination(
    text: str, work: Workspace, *, known: KnownBlobs | None = None, option: str = "--to"
) -> PublishDestination:
    """Return the destination that ``oci:DIR`` or ``host/repository`` names.

    Args:
        text: the destination, without a tag.
        known: see :class:`RegistryDestination`; None: no push is announced.
        option: the command-line option that ``text`` comes from, for messages.

    Raises:
        RegistryError: not a reference, only half of the credentials, or forbidden by ``offline``.
        UsageError: no folder follows ``oci:``.
    """
    if text.startswith("oci:"):
        folder = text.removeprefix("oci:")
        if not folder:
            raise UsageError(f"{option} oci: names no folder", "write oci:DIR")
        return LayoutDestination(expand_home(folder), work.store, work.settings, work.reporter)
    reference = Reference.parse(text)
    credentials = environment_credentials()
    client = RegistryClient(
        reference.host, credentials, settings=work.settings, reporter=work.reporter
    )
    if known is not None:
        client.expect_push(reference.repository)  # one token is enough for all requests
    return RegistryDestination(client, reference.repository, work.store, known)


def destination_text(recipe: Recipe, to: str | None = None, option: str = "--to") -> str:
    """Return the destination of a target: ``oci:DIR`` or ``host/repository``.

    Args:
        recipe: its ``registry`` is the default.
        to: ``HOST/REPOSITORY`` or ``oci:DIR``; one that ends with a slash, ``HOST/`` or
            ``HOST/PROJECT/``, is continued by the recipe's repository.
        option: the name of ``to`` on the command line, for messages.

    Raises:
        UsageError: neither the recipe nor the command line names a registry, or it is not a
            destination.
        RegistryError: it breaks a rule of references.
    """
    to = to or ""
    repository = recipe.registry.repository or recipe.name
    is_local = to.startswith(("oci:", ".", "/", "~"))
    if not to or (to.endswith("/") and "://" not in to and not is_local):
        host = to or recipe.registry.host
        if not host:
            raise UsageError(
                f"{recipe.source}: registry.host is not set, and no {option} was given",
                f"pass {option} HOST/REPOSITORY or {option} oci:DIR; or write into the recipe: "
                f"registry: {{host: HOST, repository: {repository}}}",
            )
        option = option if to else "registry.host"
        to = f"{host.rstrip('/')}/{repository}"
    check_destination(to, recipe, option)
    return to


def check_destination(text: str, recipe: Recipe, option: str) -> None:
    """Check the text of a destination.

    Args:
        text: what the user typed: ``HOST/REPOSITORY`` or ``oci:DIR``.
        recipe: the target.
        option: the option that it comes from.

    Raises:
        UsageError: it is a folder, a host without a repository, or contains a tag; the hint is what
            to type.
        RegistryError: it breaks another rule of references.
    """
    if text.startswith("oci:"):
        return
    if text.startswith(("/", "./", "../", "~")) or Path(text).is_dir():
        hint = f"for an OCI layout in that folder write {option} oci:{text}"
        raise UsageError(f"{option} {text}: a folder, not a repository of a registry", hint)
    plain = text.removeprefix("docker://").removeprefix("oras://")
    if _HOST.fullmatch(plain):
        repository = recipe.registry.repository or recipe.name
        hint = f"write {option} {plain.rstrip('/')}/{repository}"
        raise UsageError(f"{option} {text}: a registry without a repository", hint)
    if "/" not in plain:
        name = plain.partition(":")[0]
        hint = f"write {option} oci:{name} (a folder) or {option} docker.io/USER/{name}"
        raise UsageError(f"{option} {text}: not a repository with its host", hint)
    reference = Reference.parse(text)
    if reference.tag or reference.digest:
        tag = f" --tag {reference.tag}" if reference.tag else ""
        raise UsageError(
            f"{option} {text}: contains a tag or digest, but must be a repository",
            f"write {option} {reference.name}{tag}",
        )
