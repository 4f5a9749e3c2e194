"""The plain values that pass from one stage to the next. No stage's code is imported here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

Manager = Literal["conda", "pip"]

#: OCI image-spec media types, and the Docker ones that base images may have.
#: What a lock names instead of folders of one machine; :mod:`builder.fetch` finds the files again.
DEBIAN_CHANNEL = "builder://debian/"
FIND_LINKS = "builder://find-links/"

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP = OCI_LAYER + "+gzip"
OCI_LAYER_ZSTD = OCI_LAYER + "+zstd"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock file: exactly one archive, by hash.

    ``sha256`` and ``md5`` are lower-case hex; at least one is set. ``dependencies`` maps names to
    version specs, as in a conda-lock v1 file.
    """

    name: str
    version: str
    manager: Manager
    platform: str
    url: str
    sha256: str | None
    md5: str | None = None
    dependencies: Mapping[str, str] = field(default_factory=dict)
    category: str = "main"
    optional: bool = False

    @property
    def filename(self) -> str:
        """The archive's file name, from the URL: ``numpy-2.0-cp311-...whl``, ``zlib-1.3-h1_0.conda``."""
        return unquote(urlsplit(self.url).path).rsplit("/", 1)[-1]

    @property
    def subdir(self) -> str:
        """A conda package's channel subdir (``linux-64``, ``noarch``); empty for pip."""
        parts = urlsplit(self.url).path.split("/")
        return parts[-2] if self.manager == "conda" and len(parts) > 1 else ""

    @property
    def build(self) -> str:
        """A conda package's build string, from the file name; empty for pip."""
        if self.manager != "conda":
            return ""
        stem = self.filename.removesuffix(".conda").removesuffix(".tar.bz2")
        return stem.rsplit("-", 1)[-1]

    @property
    def key(self) -> str:
        """What identifies the archive's content: ``sha256:...`` (or ``md5:...`` of an old lock)."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}"


@dataclass(frozen=True, slots=True)
class LockedBase:
    """The base image as the lock pins it. ``digest`` is that of the platform's *manifest*."""

    reference: str
    digest: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file as read. ``content_hash`` and ``custom`` are conda-lock's metadata of these names."""

    packages: tuple[LockedPackage, ...]
    platforms: tuple[str, ...]
    channels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    content_hash: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, str] = field(default_factory=dict)
    base: LockedBase | None = None
    digest: str = ""
    """sha256 of the lock file's bytes, ``sha256:...``; goes into the image's annotations."""

    def for_platform(
        self, platform: str, categories: frozenset[str] = frozenset({"main"})
    ) -> tuple[LockedPackage, ...]:
        """The packages of one platform and category set, in the file's order."""
        return tuple(p for p in self.packages if p.platform == platform and p.category in categories)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A locked package and the verified archive on this machine's disk. ``size`` is the archive's, in bytes."""

    package: LockedPackage
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An OCI content descriptor. ``size`` is in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str = ""
    """What an attached artifact is (image-spec 1.1); empty for images."""

    def to_json(self) -> dict[str, Any]:
        """As the OCI image-spec writes it."""
        out: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.annotations:
            out["annotations"] = dict(sorted(self.annotations.items()))
        if self.platform:
            out["platform"] = dict(self.platform)
        if self.artifact_type:
            out["artifactType"] = self.artifact_type
        return out

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Descriptor:
        """The descriptor of these bytes."""
        return cls(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Descriptor:
        """Reads what ``to_json`` or any other OCI tool wrote."""
        return cls(
            data.get("mediaType", ""),
            data["digest"],
            int(data["size"]),
            data.get("annotations") or {},
            data.get("platform") or {},
            data.get("artifactType") or "",
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image.

    ``path`` is the compressed blob on this machine's disk; None for a base image's layer that was never
    downloaded (``origin`` then says where it lies: a registry reference without tag, ``host/repository``).
    ``title`` is for people; ``packages`` are the names inside; ``unpacked`` is the tar's size in bytes.
    """

    descriptor: Descriptor
    diff_id: str
    path: Path | None = None
    origin: str = ""
    title: str = ""
    packages: tuple[str, ...] = ()
    unpacked: int = 0


@dataclass(frozen=True, slots=True)
class Image:
    """A whole image: layers from the bottom up, config and manifest as the exact bytes that are hashed."""

    layers: tuple[Layer, ...]
    config: bytes
    config_descriptor: Descriptor
    manifest: bytes
    manifest_descriptor: Descriptor

    @property
    def digest(self) -> str:
        """The manifest's digest: the image's name everywhere."""
        return self.manifest_descriptor.digest

    @property
    def size(self) -> int:
        """Bytes of all compressed layers."""
        return sum(layer.descriptor.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class SifImage:
    """A SIF file on this machine's disk. ``digest`` is the sha256 of its bytes, ``size`` their number."""

    path: Path
    digest: str
    size: int
    architecture: str = "amd64"
    """The OCI name of the processor it is for."""


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: the same bytes for the same value, everywhere."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
