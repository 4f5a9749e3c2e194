"""The facade of this package: one registry, with the operations that the rest of builder needs.

All methods may be called from several threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from builder.model import Descriptor
from builder.progress import QUIET, Reporter
from builder.registry.blobs import Blobs
from builder.registry.credentials import Credentials
from builder.registry.manifests import ACCEPT, ANY, Manifests, TagMove
from builder.registry.meter import Progress
from builder.registry.source import BlobSource
from builder.registry.transport import Access, Transport
from builder.settings import Settings
from builder.store.blobs import Store


class RegistryClient:
    """One registry. Use as a context manager, or call :meth:`close`.

    Args:
        host: ``host[:port]``; Docker Hub is ``docker.io``.
        credentials: None looks them up (:func:`builder.registry.credentials.find_credentials`) when the
            registry asks.
        settings: its ``offline`` forbids registries on other machines.
        reporter: receives warnings.
        sleep: waits between attempts, in seconds.

    Raises:
        RegistryError: ``offline`` forbids this registry, or a certificate file cannot be read.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials | None = None,
        *,
        settings: Settings | None = None,
        reporter: Reporter = QUIET,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._transport = Transport(host, Access(credentials, settings, reporter, sleep))
        self._manifests = Manifests(self._transport)
        self._blobs = Blobs(self._transport)

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RegistryClient({self.host!r})"

    def close(self) -> None:
        """Closes all connections."""
        self._transport.close()

    @property
    def host(self) -> str:
        """``host[:port]``; ``docker.io`` for Docker Hub."""
        return self._transport.host

    @property
    def plain_http(self) -> bool:
        """Whether the registry is used without TLS."""
        return self._transport.scheme == "http"

    def credentials(self, repo: str) -> Credentials:
        """The credentials that are used when the registry asks for them; ANONYMOUS when none are known."""
        return self._transport.credentials(repo)

    def expect_push(self, repo: str) -> None:
        """Announces a push: one token with that permission is used for all requests."""
        self._transport.expect_push(repo)

    # manifests and tags: see builder.registry.manifests -----------------------------------------------------

    def ping(self) -> None:
        """Raises RegistryError unless the host is a registry that this user may use."""
        self._manifests.ping()

    def head_manifest(self, repo: str, ref: str) -> Descriptor | None:
        """The descriptor of a tag or digest; None when it does not exist."""
        return self._manifests.head(repo, ref)

    def get_manifest(self, repo: str, ref: str, accept: Sequence[str] = ACCEPT) -> tuple[bytes, str, str]:
        """The manifest of a tag or digest, verified: its bytes, media type and digest."""
        return self._manifests.get(repo, ref, accept)

    def put_manifest(self, repo: str, ref: str, data: bytes, media_type: str) -> str:
        """Stores a manifest under a tag or its digest; returns the digest."""
        return self._manifests.put(repo, ref, data, media_type)

    def move_tag(
        self, repo: str, tag: str, data: bytes, media_type: str, *, expected: str | None = ANY
    ) -> TagMove:
        """Points a tag at a manifest unless it is not as expected, and reads it back."""
        return self._manifests.move_tag(repo, tag, data, media_type, expected=expected)

    def put_referrer(self, repo: str, data: bytes, media_type: str) -> bool:
        """Stores a manifest with a ``subject``; returns whether the registry lists it as a referrer."""
        return self._manifests.put_referrer(repo, data, media_type)

    def delete_manifest(self, repo: str, digest: str) -> None:
        """Deletes a manifest, with all tags that name it."""
        self._manifests.delete(repo, digest)

    def get_referrers(self, repo: str, digest: str) -> list[Descriptor] | None:
        """The registry's list of artifacts attached to a manifest; None when it has no such lists."""
        return self._manifests.get_referrers(repo, digest)

    def list_tags(self, repo: str) -> list[str]:
        """All tags of a repository, sorted."""
        return self._manifests.list_tags(repo)

    # blobs: see builder.registry.blobs ----------------------------------------------------------------------

    def head_blob(self, repo: str, digest: str) -> int | None:
        """A blob's size in bytes (-1: not stated); None when the repository lacks it."""
        return self._blobs.head(repo, digest)

    def has_blob(self, repo: str, descriptor: Descriptor) -> bool:
        """Whether the repository has a blob of this size, as far as the registry states sizes."""
        return self._blobs.has(repo, descriptor)

    def get_blob(self, repo: str, descriptor: Descriptor) -> bytes:
        """A small blob, verified."""
        return self._blobs.get(repo, descriptor)

    def read_blob(self, repo: str, digest: str, offset: int = 0) -> Iterator[bytes]:
        """A blob's bytes from an offset on; one attempt, not verified."""
        return self._blobs.read(repo, digest, offset)

    def hash_blob(
        self, repo: str, descriptor: Descriptor, progress: Progress | None = None
    ) -> tuple[str, int]:
        """The digest and the number of the bytes that the registry returns for a blob; nothing is stored."""
        return self._blobs.hash(repo, descriptor, progress)

    def get_blob_to(
        self, repo: str, descriptor: Descriptor, store: Store, progress: Progress | None = None
    ) -> Path:
        """Downloads a blob into the store unless the store has it; returns its path."""
        return self._blobs.download_to_store(repo, descriptor, store, progress)

    def get_blob_file(
        self, repo: str, descriptor: Descriptor, partial: Path, progress: Progress | None = None
    ) -> None:
        """Downloads a blob into a file, and resumes an earlier download there."""
        self._blobs.download_to_file(repo, descriptor, partial, progress)

    def mount_blob(self, repo: str, digest: str, from_repo: str) -> bool:
        """Makes a blob of another repository available in ``repo``; returns whether that worked."""
        return self._blobs.mount(repo, digest, from_repo)

    def upload_blob(
        self, repo: str, descriptor: Descriptor, path: Path, progress: Progress | None = None
    ) -> None:
        """Uploads a file as a blob."""
        self._blobs.upload_file(repo, descriptor, path, progress)

    def upload_stream(
        self, repo: str, descriptor: Descriptor, source: BlobSource, progress: Progress | None = None
    ) -> None:
        """Uploads a blob whose bytes ``source`` returns."""
        self._blobs.upload(repo, descriptor, source, progress)
