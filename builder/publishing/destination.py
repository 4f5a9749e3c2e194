"""Where images are published: a repository of a registry, or an OCI layout. Both look the same to publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from builder.errors import UsageError
from builder.model import Descriptor, Image
from builder.oci.reference import Reference
from builder.progress import QUIET, Reporter
from builder.publishing.layout_destination import LayoutDestination
from builder.registry.client import RegistryClient
from builder.registry.profile import named_credentials
from builder.registry.push import PushReport, move_tags, push_blobs_and_manifest
from builder.registry.referrers import AttachedFile, attach
from builder.settings import Settings
from builder.store.blobs import Store


class Destination(Protocol):
    """A place that holds images by digest, and tags that name them."""

    @property
    def name(self) -> str:
        """For people: ``host/repository`` or ``oci:DIR``."""

    def resolve(self, tag: str) -> str | None:
        """The digest that a tag names now; None when there is no such tag."""

    def push_blobs(self, image: Image) -> PushReport:
        """Puts everything in but the tags; afterwards the image is there by its digest."""

    def attach(
        self,
        subject: Descriptor,
        artifact_type: str,
        files: Sequence[AttachedFile],
        annotations: Mapping[str, str],
    ) -> str:
        """Attaches files to an image that :meth:`push_blobs` has put in, once; gives the artifact's digest."""

    def move_tag(self, tag: str, image: Image) -> None:
        """Makes a tag name an image that :meth:`push_blobs` has put in."""


class RegistryDestination:
    """A repository of a registry."""

    def __init__(
        self,
        client: RegistryClient,
        repository: str,
        mount_from: Sequence[str] = (),
        reporter: Reporter = QUIET,
    ) -> None:
        self.client = client
        self.repository = repository
        self.mount_from = tuple(mount_from)
        self.reporter = reporter
        client.expect_push(repository)

    @property
    def name(self) -> str:
        return f"{self.client.host}/{self.repository}"

    def resolve(self, tag: str) -> str | None:
        found = self.client.head_manifest(self.repository, tag)
        return found.digest if found else None

    def push_blobs(self, image: Image) -> PushReport:
        return push_blobs_and_manifest(
            image, self.client, self.repository, mount_from=self.mount_from, reporter=self.reporter
        )

    def attach(
        self,
        subject: Descriptor,
        artifact_type: str,
        files: Sequence[AttachedFile],
        annotations: Mapping[str, str],
    ) -> str:
        return attach(self.client, self.repository, subject, artifact_type, files, annotations=annotations)

    def move_tag(self, tag: str, image: Image) -> None:
        move_tags(image, self.client, self.repository, [tag])


def open_destination(
    to: str,
    settings: Settings,
    store: Store,
    *,
    mount_from: Sequence[str] = (),
    insecure: bool | None = None,
    reporter: Reporter = QUIET,
) -> Destination:
    """The place that ``oci:DIR`` or ``host/repository`` names. REGISTRY_USER and REGISTRY_PASSWORD, and the file that
    BUILDER_REGISTRY_PROFILE names, are for this registry.

    Args:
        to: the place, without tag.
        settings: ``offline`` is obeyed.
        store: where layers of a base image go that an OCI layout needs.
        mount_from: repositories of the same registry that may have some of the blobs.
        insecure: see :class:`RegistryClient`.
        reporter: gets progress and warnings.

    Raises:
        RegistryError: not a reference, or half of the credentials.
        UsageError: a tag or digest in ``to``, or no folder after ``oci:``.
    """
    if to.startswith("oci:"):
        folder = to.removeprefix("oci:")
        if not folder:
            raise UsageError("--to oci: names no folder", "write oci:DIR")
        return LayoutDestination(Path(folder).expanduser(), store, reporter)
    reference = Reference.parse(to)
    if reference.tag or reference.digest:
        raise UsageError(
            f"{to} names a tag or digest, not a repository",
            f"write {reference.name}; tags come from the recipe or --tag",
        )
    credentials = named_credentials(warn=reporter.warn)
    client = RegistryClient(
        reference.host, credentials, insecure=insecure, settings=settings, reporter=reporter
    )
    return RegistryDestination(client, reference.repository, mount_from, reporter)
