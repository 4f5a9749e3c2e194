"""Release records: which tags an image got, when, and what each tag named before.

A record is attached to the image before its tags move, so that ``builder rollback`` on any machine
finds what to move back. A signature names the record by its digest, and the record names the other
attached artifacts: one signature holds for all of them (:mod:`builder.deliver.publishing.verify`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from builder.core.model import canonical_json
from builder.formats.oci.reference import TAG, is_digest
from builder.formats.oci.shapes import Sha256
from builder.formats.registry.referrers import CREATED, Artifact, Attached, AttachedFile

from .destination import PublishDestination

#: Types of attached artifacts (``artifactType``), and media types of the files in them.
SMOKE_REPORT = "application/vnd.builder.smoke-report.v1+json"
SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
LOCK = "application/vnd.builder.lock.v1+yaml"
LAYERS = "application/vnd.builder.layers.v1+json+zstd"
COMPILER = "application/vnd.builder.compiler.v1"
RELEASE = "application/vnd.builder.release.v1+json"
#: What builder calls the artifacts that publishing attaches.
TITLES = {SMOKE_REPORT: "smoke report", SBOM: "SBOM", PROVENANCE: "provenance", LOCK: "lock"}
TITLES |= {LAYERS: "layer record", COMPILER: "compiler"}
#: In the signed payload: the digest of the record's artifact.
SIGNED_RELEASE = "org.builder.release"


Tag = Annotated[str, Field(pattern=f"^{TAG}$")]
Action = Literal["publish", "promote", "rollback"]


class ReleaseRecord(BaseModel):
    """One move of tags to an image."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    image: Sha256
    """Of the manifest."""
    target: str
    created: AwareDatetime
    """When the tags were about to move."""
    action: Action
    tags: dict[Tag, Sha256 | None]
    """The tags, and what each named before; None: it did not exist."""
    fixed: tuple[str, ...] = ()
    """Those of the tags that do not move again: the dated ones."""
    attached: dict[str, Sha256] = {}
    """The digests of the attached artifacts, by their types."""

    def artifact(self) -> Artifact:
        """Return what is attached to the image."""
        value = self.model_dump(mode="json")
        file = AttachedFile("release.json", RELEASE, canonical_json(value) + b"\n")
        return Artifact(RELEASE, [file], {CREATED: value["created"]})

    @classmethod
    def read(cls, found: Attached, image: str) -> ReleaseRecord | None:
        """Return the record of an artifact; None unless it is a record of this image."""
        if found.artifact_type != RELEASE or len(found.files) != 1:
            return None
        try:
            record = cls.model_validate_json(found.files[0].data)
        except ValidationError:
            return None
        return record if record.image == found.subject == image else None


def attached_releases(place: PublishDestination, image: str) -> list[ReleaseRecord]:
    """Return the records that are attached to an image, the oldest first; anybody can attach one.

    Raises:
        RegistryError: the registry refuses, or cannot be reached.
    """
    found = (ReleaseRecord.read(item, image) for item in place.attached_to(image, RELEASE))
    return sorted((record for record in found if record), key=lambda record: record.created)


def signed_release(optional: Mapping[str, Any]) -> str:
    """Return the digest of the record that a signed payload names; empty if it names none."""
    digest = optional.get(SIGNED_RELEASE)
    return digest if isinstance(digest, str) and is_digest(digest) else ""
