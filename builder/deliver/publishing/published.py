"""A published image as its registry describes it: manifest, config, and layers.

No layer is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import LockError
from builder.core.model import Descriptor, Image, Layer, Lock
from builder.core.workspace import Workspace
from builder.deliver.project import Project
from builder.formats.oci.manifest import parse_manifest, read_image
from builder.formats.registry.oras import TITLE, sif_layer
from builder.lock.config.recipe import Recipe
from builder.lock.file import parse_lock

from .destination import PublishDestination, destination_text
from .pull import AnyImage, find_attached, is_reference, open_reference, resolve_published
from .release import LOCK

#: ``TARGET:TAG`` and ``TARGET@DIGEST``.
_OF_TARGET = re.compile(r"([a-z0-9][a-z0-9._-]*)([:@][\w.:-]+)")


@dataclass(frozen=True)
class PublishedImage:
    """An image or SIF in a registry or an OCI layout, and what is attached to it."""

    reference: str
    """The destination with the digest."""
    image: Image
    """Its layers have no files on this machine; a SIF is an image of one layer."""
    work: Workspace

    def attached(self, artifact_type: str) -> bytes | None:
        """Return the file of the newest attached artifact of a type; None: there is none."""
        found = find_attached(self.reference, artifact_type, self.work)
        return found[-1].files[0].data if found and found[-1].files else None

    def lock(self) -> Lock:
        """Return the attached lock.

        Raises:
            LockError: none is attached, or it is damaged.
        """
        data = self.attached(LOCK)
        if data is None:
            raise LockError(
                f"no lock is attached to {self.reference}, so its packages are not known",
                "builder publish TARGET attaches it, also to an image that is published already; "
                "or compare lock files: builder diff OLD.lock.yml NEW.lock.yml",
            )
        return parse_lock(data, Path(f"the lock of {self.reference}"))


def published_reference(text: str, find_project: Callable[[], Project]) -> str:
    """Return the reference of a published image that a user names; empty for any other text.

    Args:
        text: ``TARGET:TAG``, ``HOST/REPOSITORY:TAG``, ``oci:DIR:TAG``, or with ``@DIGEST`` in place
            of the tag.
        find_project: returns the project of ``TARGET``.

    Raises:
        ConfigError: there is no such target.
        UsageError: the target has no registry.
    """
    if is_reference(text):
        return text
    found = _OF_TARGET.fullmatch(text)
    return destination_text(find_project().recipe(found[1])) + found[2] if found else ""


def open_published(reference: str, work: Workspace) -> PublishedImage:
    """Return the image of a reference, see :func:`published_reference`.

    Raises:
        RegistryError, ImageError: there is no such image, or it is damaged.
    """
    with open_reference(reference, work) as (origin, tag):
        image = read_published(origin, tag)
        return PublishedImage(f"{origin.name}@{image.digest}", image, work)


def read_published(origin: PublishDestination, tag: str, recipe: Recipe | None = None) -> Image:
    """Return the image or SIF of a tag or digest, without its layers' files.

    Args:
        origin: where it was published.
        tag: a tag or digest.
        recipe: the target; None: any image, which no policy refuses.

    Raises:
        RegistryError, ImageError, VerifyError: see
            :func:`builder.deliver.publishing.pull.resolve_published`.
    """
    described, _ = resolve_published(recipe or AnyImage(origin.name), origin, tag)
    return described_image(origin.manifest(described), described, origin.config, origin.name)


def described_image(
    manifest: bytes, descriptor: Descriptor, read: Callable[[Descriptor], bytes], where: str
) -> Image:
    """Return the image or the artifact of a SIF, see
    :func:`builder.formats.oci.manifest.read_image`."""
    sif = sif_layer(manifest, descriptor, where)
    if sif is None:
        return read_image(manifest, descriptor, read, where)
    config = Descriptor.from_json(parse_manifest(manifest, descriptor, where)["config"])
    layer = Layer(sif, sif.digest, title=sif.annotations.get(TITLE, ""))
    return Image((layer,), read(config), config, manifest, descriptor)
