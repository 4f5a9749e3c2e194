"""Blobs of a registry: query, download, mount, upload. They are streamed, never held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2

from builder.core.errors import HashMismatch, RegistryError
from builder.core.model import Descriptor
from builder.core.store.blobs import Store
from builder.core.store.files import space_errors
from builder.core.store.temporary import claimed
from builder.core.text import human_bytes
from builder.formats.net.download import HashedBytes, PartialFile, body_from, range_header, resume
from builder.formats.oci.digest import sha256
from builder.formats.oci.reference import check_repository

from .answer import MAX_REFUSAL, MAX_SMALL_BLOB, content_length, read_answer
from .source import BlobSource, DamagedSource, HashedSource, Meter, Progress, file_source
from .transport import Transport
from .upload import UNKNOWN, ChunkSize, Upload

#: Statuses of a registry without bytes from an offset on, or without ranges: the digest decides
#: whether the blob is complete; if not, it is downloaded from the beginning.
_NO_RANGE = (400, 416, 501)


class Blobs:
    """The blobs of one registry."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._chunk = ChunkSize()

    def stored(self, repository: str, descriptor: Descriptor) -> int | None:
        """Return a blob's size in bytes, or UNKNOWN if not stated; None if it must be uploaded.

        HEAD's 404 counts alone, as for skopeo and crane: a blob that is there is sent again. A GET,
        without its body, decides what else HEAD refuses, and a size that differs from the
        descriptor's: some proxies answer every HEAD with ``Content-Length: 0``, and a blob may
        really be cut off. A lasting error of the server counts as a blob that is not there:
        distribution 2.8 whose disk was full keeps an empty ``link`` file for the blob, and answers
        500 until the blob is uploaded again.

        Raises:
            RegistryError: the registry refuses, or cannot be reached.
        """
        answers = []
        for method in ("HEAD", "GET"):
            request = self._transport.request(method, repository, f"blobs/{descriptor.digest}")
            answer = self._transport.ask(replace(request, most=0))
            size = content_length(answer.headers)
            if answer.status == 404:
                return None
            if answer.status == 200 and (method == "GET" or size in (None, descriptor.size)):
                return UNKNOWN if size is None else size
            answers.append(answer)
        if answers[0].status == 200:
            return UNKNOWN
        if answer.status < 500:
            action = f"report whether {self._name(repository)} has {descriptor.digest}"
            raise self._transport.refusal(answer, action)
        return None

    def has(self, repository: str, descriptor: Descriptor) -> bool:
        """Return whether the repository has a blob of this size, as far as it states sizes.

        Raises:
            RegistryError: the registry refuses, or cannot be reached.
        """
        return self.stored(repository, descriptor) in (UNKNOWN, descriptor.size)

    def get(self, repository: str, descriptor: Descriptor) -> bytes:
        """Return a small blob, verified.

        Raises:
            RegistryError: the registry does not have it, or refuses; or it is not small.
            HashMismatch: the content does not match the digest.
        """
        if descriptor.size > MAX_SMALL_BLOB:
            raise RegistryError(
                f"the blob {descriptor.digest} of {self._name(repository)} is too large: "
                f"{human_bytes(descriptor.size)}, at most {human_bytes(MAX_SMALL_BLOB)} are allowed",
                "it is not what builder attaches to an image: remove it there",
            )
        # what a manifest says of the size may be wrong
        most = max(descriptor.size, MAX_REFUSAL)
        request = self._transport.request("GET", repository, f"blobs/{descriptor.digest}")
        answer = self._transport.ask(replace(request, most=most))
        if answer.status != 200:
            action = f"return {self._name(repository, descriptor.digest)}"
            raise self._transport.refusal(answer, action)
        if sha256(answer.body) != descriptor.digest:
            raise self._mismatch(repository, descriptor.digest)
        return answer.body

    def read(self, repository: str, digest: str, offset: int = 0) -> Iterator[bytes]:
        """Yield a blob's bytes from ``offset`` on, not verified. The caller repeats it.

        Raises:
            RegistryError: the registry does not have it, or refuses.
            httpx2.TransportError: the connection broke, or the registry is busy.
        """
        headers = range_header(offset)
        request = self._transport.request("GET", repository, f"blobs/{digest}", headers)
        with self._transport.open(request) as response:
            if response.status_code in (200, 206):
                yield from body_from(response, offset, decode=True)
                return
            answer = read_answer(response)
        if offset and answer.status in _NO_RANGE:
            return
        raise self._transport.refusal(answer, f"return {self._name(repository, digest)}")

    def download_to_store(
        self, repository: str, blob: Descriptor, store: Store, progress: Progress | None = None
    ) -> Path:
        """Download a blob into the store unless the store has it; return its path.

        A download that an earlier run began, in ``partial/`` of the cache, is resumed.

        Args:
            repository: in the registry.
            blob: digest and size.
            store: receives the blob.
            progress: receives the bytes as they arrive.

        Raises:
            RegistryError: the registry does not have it, or refuses.
            HashMismatch: the content does not match the digest; it was deleted.
            SpaceError: the disk is full.
        """
        path = store.path(blob.digest)  # checks the digest's form before it becomes a file name
        with store.lock(f"blob {blob.digest}"), space_errors(store.root):
            found = store.get(blob.digest, blob.size)
            if found:
                Meter(progress, blob.size).at(blob.size)
                return found
            with claimed(store.folders.partial / f"blob-{path.name}") as partial:
                self.download_to_file(repository, blob, partial, progress)
                return store.adopt(partial, blob.digest)

    def download_to_file(
        self, repository: str, blob: Descriptor, partial: Path, progress: Progress | None = None
    ) -> None:
        """Download a blob into a file; the bytes that the file has are not downloaded again.

        The caller makes sure that no other process writes the file.

        Args:
            repository: in the registry.
            blob: digest and size.
            partial: the file.
            progress: receives the bytes as they arrive.

        Raises:
            RegistryError, HashMismatch, SpaceError: see :meth:`download_to_store`.
        """
        meter = Meter(progress, blob.size)
        # The bytes of an earlier run may be damaged: the second attempt starts from the beginning.
        for _ in range(2):
            with PartialFile(partial) as part:
                self._resume(repository, blob, part, meter)
                if part.digest() == blob.digest:
                    return
            partial.unlink()
        raise self._mismatch(repository, f"{blob.digest}, twice; it was deleted")

    def hash(
        self, repository: str, descriptor: Descriptor, progress: Progress | None = None
    ) -> tuple[str, int]:
        """Return the digest and the number of the bytes that the registry returns; store nothing.

        More bytes than the descriptor states are not read.

        Args:
            repository: in the registry.
            descriptor: digest and size.
            progress: receives the bytes as they arrive.

        Raises:
            RegistryError: the registry does not have it, or refuses.
        """
        found = HashedBytes()
        self._resume(repository, descriptor, found, Meter(progress, descriptor.size))
        return found.digest(), found.size

    def _resume(
        self, repository: str, descriptor: Descriptor, part: HashedBytes, meter: Meter
    ) -> None:
        def source(offset: int) -> Iterator[bytes]:
            return self.read(repository, descriptor.digest, offset)

        def retry(error: httpx2.HTTPError, failures: int) -> None:
            if not self._transport.again(failures, error):
                where = self._name(repository, descriptor.digest)
                raise self._transport.unreachable(error, where) from None

        resume(part, source, retry, size=descriptor.size, position=meter.at)

    def mount(self, repository: str, digest: str, from_repository: str) -> bool:
        """Make a blob of another repository of this registry available in ``repository``.

        Returns:
            Whether it worked. A registry that does not support mounts answers with 202 and a new
            upload session, which is cancelled. One that does not let this user read
            ``from_repository`` answers with 401 or 403 (Harbor), 400 or 404. The blob is uploaded
            then, as crane and skopeo do whatever the status is.

        Raises:
            RegistryError: the registry cannot be reached.
        """
        check_repository(from_repository)
        transport = self._transport
        request = transport.request("POST", repository, "blobs/uploads/")
        url = request.url.copy_merge_params({"mount": digest, "from": from_repository})
        both = request.scopes | transport.pull_scopes(from_repository)
        answer = transport.ask(replace(request, url=url, scopes=both))
        session = answer.headers.get("Location")
        if answer.status == 202 and session:
            url = transport.location(answer.url, session)
            transport.ask(replace(request, method="DELETE", url=url))
        return answer.status in (200, 201)

    def upload_file(
        self, repository: str, descriptor: Descriptor, path: Path, progress: Progress | None = None
    ) -> None:
        """Upload a file as a blob.

        Args:
            repository: in the registry.
            descriptor: the file's digest, which the registry checks, and its size.
            path: the file.
            progress: receives the bytes as they are sent; a negative number when some must be
                sent again.

        Raises:
            DamagedSource: the file does not match the descriptor.
            RegistryError: the registry refuses it, or cannot be reached.
        """
        try:
            size = path.stat().st_size
        except OSError as e:
            message = f"cannot read the layer {path}: {e.strerror}"
            raise DamagedSource(message, "build again") from None
        if size != descriptor.size:
            message = f"{path} has {size} bytes, expected {descriptor.size}"
            raise DamagedSource(message, "a file of the cache was changed: build again")
        self.upload(repository, descriptor, file_source(path), progress)

    def upload(
        self,
        repository: str,
        blob: Descriptor,
        source: BlobSource,
        progress: Progress | None = None,
    ) -> None:
        """Upload a blob whose bytes ``source`` returns.

        Args:
            repository: in the registry.
            blob: its digest, which the registry checks, and its size.
            source: returns the bytes from an offset on; called again after a failure.
            progress: see :meth:`upload_file`.

        Raises:
            RegistryError: the registry refuses the blob, or cannot be reached.
        """
        Upload(
            self._transport,
            repository,
            HashedSource(source, blob.digest, blob.size),
            lambda: self.stored(repository, blob),
            self._chunk,
            Meter(progress, blob.size),
        ).run()

    def _mismatch(self, repository: str, blob: str) -> HashMismatch:
        problem = f"{self._name(repository)} returned different content for blob {blob}"
        hint = "the registry's copy is damaged, or a proxy changes it"
        return HashMismatch(f"digest mismatch: {problem}", hint)

    def _name(self, repository: str, digest: str = "") -> str:
        blob = f"the blob {digest} of " if digest else ""
        return f"{blob}{self._transport.host}/{repository}"
