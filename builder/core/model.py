"""Values that one stage passes to the next: locks, packages, layers, images. Imports no stage."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

Manager = Literal["conda", "pip", "apt"]
Compression = Literal["gzip", "zstd"]

#: The category, or group, of the packages that belong to no other one.
MAIN = "main"

#: The URL prefix in a lock of wheels in find-links folders. :mod:`builder.build.fetch` finds the
#: files on each machine; a lock never names a folder of one machine.
FIND_LINKS = "builder://find-links/"
#: The URL prefix of wheels that builder built from a source; each has a :class:`LockedSource`.
WHEELS = "builder://wheels/"
#: The URL prefix of the package that makes the base image's Python that of the image.
BASE_PYTHON = "builder://base/"

#: Media types of the OCI image-spec, and those of Docker that base images may have.
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
class LayerOptions:
    """How packages become layers: ``layers:`` of a recipe."""

    compression: Compression = "gzip"
    own_layer_from: int = 4 << 20
    """A package gets its own layer when its archive has at least this many bytes."""
    groups: int = 12
    """Number of layers for the small packages of one package manager, from 1."""


SourceKind = Literal["sdist", "git", "archive", "local"]


@dataclass(frozen=True, slots=True)
class LockedSource:
    """The pinned source of a wheel. A field that has no meaning for the kind is empty."""

    kind: SourceKind
    """``sdist``: an archive of a package index; ``archive``: one of any other URL."""
    url: str
    """Without credentials; may contain ``$VARIABLES``. That of a local folder is its path, relative
    to the project and with ``/``: ``.`` or ``libs/model``."""
    sha256: str = ""
    """Of the archive: 64 lower-case hex digits."""
    commit: str = ""
    """The git commit, 40 or 64 lower-case hex digits. The tree includes its submodules."""
    tree: str = ""
    """The tree of the git commit, or the hash of the files of a local folder (64 hex digits)."""
    subdirectory: str = ""
    """The folder of the package in the archive or repository; empty: the topmost one."""
    describe: str = ""
    """What ``git describe`` printed for the commit when the lock was made, for build backends that
    make the version from it. Empty: this one does not."""
    build: str = ""
    """A hash of requirements, settings and environment of the build; empty: not yet built."""
    requires: tuple[str, ...] = ()
    """The packages that the build had, ``NAME==VERSION``, so that a later build has the same."""


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock file: one archive and its hash. Fields as in conda-lock v1."""

    name: str
    version: str
    manager: Manager
    platform: str
    """The platform that it is locked for, such as ``linux-64`` (also for ``noarch`` packages)."""
    url: str
    """The archive's URL at lock time; may contain ``$VARIABLES``, never credentials."""
    sha256: str | None
    """64 lower-case hex digits; None in old locks, which then have ``md5``."""
    md5: str | None = None
    """32 lower-case hex digits, or None. At least one of the two hashes is set, but for git
    packages in locks of conda-lock, whose URL begins with ``git+``."""
    dependencies: Mapping[str, str] = field(default_factory=dict)
    """Names of the packages that it needs, each with a version spec; an empty one accepts any."""
    category: str = MAIN
    """``main``, or another category of conda-lock (``dev``); only ``main`` goes into an image."""
    optional: bool = False
    source: LockedSource | None = None
    """The source of a wheel that builder built (``url`` begins with :data:`WHEELS`), or None."""

    @property
    def filename(self) -> str:
        """The archive's file name: ``numpy-2.0-cp311-...whl``, ``zlib-1.3-h1_0.conda``."""
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
    def python_version(self) -> str:
        """A conda package of Python's version; ``3.13.1t`` if it is free-threaded (PEP 703)."""
        # by the build string, or by the interpreter in the base
        threading = re.search(r"_cp3\d+t\.|/python3\.\d+t/", self.url)
        return f"{self.version}{'t' if threading else ''}"

    @property
    def key(self) -> str:
        """The hash of the archive: ``sha256:...``, or ``md5:...`` in an old lock."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}"


@dataclass(frozen=True, slots=True)
class LockedBase:
    """The base image that a lock pins."""

    reference: str
    """As in the recipe: ``docker://HOST/REPOSITORY:TAG``, ``debian:SUITE``, ``oci:DIR``, ..."""
    digest: str
    """``sha256:...`` of the manifest for the platform (not of an index of several platforms)."""
    python: LockedPackage | None = field(default=None, compare=False)
    """While locking: the package of its Python, if the target takes Python from the base."""


@dataclass(frozen=True, slots=True)
class OsPackage:
    """One ``.deb`` file. No value is more than a part of a file name, an address or a command."""

    name: str
    version: str
    """With epoch and revision: ``2:1.3.4-1+b1``."""
    architecture: str
    """Debian's name, or ``all``."""
    url: str
    """In the public archive; without credentials."""
    sha256: str
    size: int
    """Of the file in bytes."""

    @property
    def filename(self) -> str:
        """The file's name as apt has it: ``NAME_VERSION_ARCHITECTURE.deb``, a colon as ``%3a``."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"

    @property
    def purl(self) -> str:
        """The package URL (package-url/purl-spec, type deb)."""
        vendor = "ubuntu" if "ubuntu" in self.url else "debian"
        version = quote(self.version, safe=".-_~")
        return f"pkg:deb/{vendor}/{quote(self.name, safe='.-')}@{version}?arch={self.architecture}"

    def locked(self, platform: str) -> LockedPackage:
        """Return the package as downloads and comparisons of locks take it."""
        name = self.name
        if self.architecture not in ("all", "amd64", "arm64"):
            name = f"{name}:{self.architecture}"
        return LockedPackage(name, self.version, "apt", platform, self.url, self.sha256)


@dataclass(frozen=True, slots=True)
class LockRecord:
    """What builder records in a lock in addition to its packages.

    :mod:`builder.lock.record` reads and writes it.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    """What the lock was made from, by the names of :func:`builder.lock.inputs.recorded_inputs`.
    Empty in locks of other tools."""
    solved_before: str = ""
    """The exclude-newer time of the conda packages, also one of the command line."""
    created: str = ""
    """The time of locking, see :func:`builder.lock.file.dated`."""
    imported_tool: str = ""
    """What the lock was imported from."""
    left_out: str = ""
    """One line about the groups that the image does not have."""
    os_packages: tuple[OsPackage, ...] | None = None
    """What ``base_packages`` adds to the base: empty if it has everything already. None: unknown,
    because another tool made the lock or the recipe has no ``base_packages``."""
    asked: str = ""
    """What an unfinished lock was asked for, see :mod:`builder.deliver.locking`."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Values of other tools, by their keys."""
    link_order: str = ""
    """Names of conda packages as a list has them that has no dependencies; empty: as those say."""


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock file.

    Attributes:
        packages: the packages of all platforms and categories.
        platforms: the platforms that it is for, such as ``linux-64``.
        channels: conda channels, highest priority first.
        sources: environment files, relative to the folder of the lock file.
        content_hash: for each platform one hash over everything that the lock was made from.
        record: ``custom_metadata`` of the file.
        base: the base image that it pins; None in locks of other tools, which pin none.
        digest: ``sha256:...`` of the lock file's bytes, an annotation of images; empty: not
            written.
        text: the lock file's bytes, as they were read or written; empty: not written.
    """

    packages: tuple[LockedPackage, ...]
    platforms: tuple[str, ...]
    channels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    content_hash: Mapping[str, str] = field(default_factory=dict)
    record: LockRecord = field(default_factory=LockRecord)
    base: LockedBase | None = None
    digest: str = ""
    text: bytes = field(default=b"", repr=False, compare=False)

    def for_platform(self, platform: str) -> tuple[LockedPackage, ...]:
        """Return a platform's packages of category ``main``, in the order of the file."""
        return tuple(p for p in self.packages if p.platform == platform and p.category == MAIN)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A locked package and its archive on this machine."""

    package: LockedPackage
    path: Path
    """The archive; its content was verified against the hash in the lock."""
    size: int
    """The size of the archive in bytes."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A content descriptor of the OCI image-spec: media type, digest and size of a blob."""

    media_type: str
    digest: str
    """``sha256:...`` of the blob."""
    size: int
    """The size of the blob in bytes."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, str] = field(default_factory=dict)
    """``os`` and ``architecture`` of an image in an index; empty elsewhere."""
    artifact_type: str = ""
    """The type of an attached artifact (image-spec 1.1); empty for images."""

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor as JSON of the OCI image-spec."""
        out = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        optional = {
            "annotations": dict(sorted(self.annotations.items())),
            "platform": dict(self.platform),
            "artifactType": self.artifact_type,
        }
        return out | {name: value for name, value in optional.items() if value}

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Descriptor:
        """Return the descriptor of these bytes."""
        return cls(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Descriptor:
        """Read a descriptor that :meth:`to_json` or another OCI tool wrote."""
        return cls(
            data.get("mediaType", ""),
            data["digest"],
            int(data["size"]),
            data.get("annotations") or {},
            data.get("platform") or {},
            data.get("artifactType") or "",
        )


@dataclass(frozen=True, slots=True)
class LayerContent:
    """The package of a layer, or the group of small packages, without versions."""

    kind: Literal["packages", "bytecode"]
    """``bytecode``: the layer holds the compiled modules of the packages."""
    manager: Manager
    package: str = ""
    """The name of its one package; empty for a group."""
    group: int = 0
    """The number of the group, from 1; 0 for a layer of one package."""

    @property
    def name(self) -> str:
        """``pip torch``, ``conda group 3``: the title of the layer begins with it."""
        return f"{self.manager} {self.package or f'group {self.group}'}"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image."""

    descriptor: Descriptor
    """Of the compressed layer."""
    diff_id: str
    """``sha256:...`` of the uncompressed tar."""
    path: Path | None = None
    """The compressed layer on this machine; None for a layer of a base not downloaded."""
    origin: str = ""
    """``host/repository`` of the registry that has the layer; empty for layers built here."""
    title: str = ""
    """A short description for people."""
    packages: tuple[str, ...] = ()
    """The names of the packages in the layer."""
    unpacked: int = 0
    """The size of the uncompressed tar in bytes."""
    content: LayerContent | None = None
    """Of a layer of packages that this build made or found in the cache. No image holds it: a layer
    that is read from one has None here, see :func:`builder.formats.layers.grouping.content_of`."""


@dataclass(frozen=True, slots=True)
class Image:
    """A complete image."""

    layers: tuple[Layer, ...]
    """From the lowest (the base image's first layer) to the highest."""
    config: bytes
    """The exact bytes whose digest is in ``config_descriptor``."""
    config_descriptor: Descriptor
    manifest: bytes
    """The exact bytes whose digest is in ``manifest_descriptor``."""
    manifest_descriptor: Descriptor

    @property
    def digest(self) -> str:
        """The digest of the manifest, which identifies the image."""
        return self.manifest_descriptor.digest

    @property
    def size(self) -> int:
        """The size of all compressed layers together in bytes."""
        return sum(layer.descriptor.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class SifImage:
    """A SIF file on this machine."""

    path: Path
    digest: str
    """``sha256:...`` of the file."""
    size: int
    """The size of the file in bytes."""
    architecture: str = "amd64"
    """The processor that it is for, by its OCI name."""


@dataclass(frozen=True, slots=True)
class MissingLibrary:
    """A shared library that is missing in an image."""

    name: str
    """``libGL.so.1``."""
    packages: tuple[str, ...]
    """Names of the packages that need it, or titles of layers."""
    optional: bool
    """Only files need it that may never be loaded."""
    os_package: str = ""
    """The Debian package that has it; empty if the base has no apt, or the package is not known."""


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces: the same bytes for a value everywhere."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
