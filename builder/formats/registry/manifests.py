"""Manifests and tags of a registry."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from builder.core.errors import HashMismatch, ImageError, RegistryError
from builder.core.model import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Descriptor
from builder.formats.oci.digest import sha256
from builder.formats.oci.manifest import parse_index, parse_json, stated_media_type
from builder.formats.oci.reference import is_digest

from .answer import BUSY, Answer, Request, content_length, printable
from .transport import Transport

#: The media types that builder reads.
ACCEPT = (OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)
#: A list with more pages is a registry's fault (a page that links to itself).
MAX_PAGES = 1000
#: In bytes, all pages of a list together: enough for 100,000 of the longest tags.
MAX_LIST = 32 << 20
#: Attempts to read a new tag back, with pauses: some seconds are enough for a cache before a
#: registry.
READ_BACKS = 4
#: Attempts to store a manifest that the registry finds damaged although it is not.
_PUTS = 3
#: Error codes of a manifest that is refused whatever its kind is.
_BAD_PUT = frozenset({"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN", "DIGEST_INVALID"})
#: For :meth:`Manifests.move_tag`: the tag may name anything, or not exist.
ANY = "*"


@dataclass(frozen=True, slots=True)
class TagMove:
    """What happened to a tag."""

    before: str | None
    """The digest that the tag named before; None: it did not exist."""
    now: str | None
    """The digest that the tag names now, as the registry reports it; None: the tag does not
    exist.
    """
    written: bool
    """Whether a manifest was sent. False: the tag named the manifest already, or was not as
    expected.
    """


class Manifests:
    """The manifests and tags of one registry."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._has_head: bool | None = None
        """Whether HEAD describes a manifest that exists; None: not known yet."""

    def head(self, repository: str, ref: str) -> Descriptor | None:
        """Return the descriptor of a tag or digest; None: it does not exist.

        GET decides what HEAD does not answer completely (docs/registries.md names the registries).
        HEAD's 404 counts alone once HEAD has described a manifest of this registry; where GET
        contradicts HEAD, HEAD is not sent any more.

        Raises:
            RegistryError: the registry refuses, or cannot be reached.
            HashMismatch: ``ref`` is a digest, and the registry names another one.
        """
        status = 0
        if self._has_head is not False:
            answer = self._read("HEAD", repository, ref)
            status, found = answer.status, _descriptor(answer, ref)
            if found is not None:
                self._has_head = True
                return found
            if status == 404 and self._has_head:
                return None
            if status in BUSY - {500}:  # GET would only wait again
                raise self._transport.refusal(answer, f"return {self.name(repository, ref)}")
        try:
            _, found = self.get(repository, ref)
        except RegistryError as e:
            if e.status != 404:
                raise
            found = None
        if status != 404 or found is not None:
            self._has_head = False
        return found

    def get(self, repository: str, ref: str) -> tuple[bytes, Descriptor]:
        """Return a manifest or index, verified: its bytes, and what describes them.

        All types are asked for: docker-registry 2.8 answers as if another one did not exist.

        Args:
            repository: in the registry.
            ref: a tag or digest.

        Raises:
            RegistryError: it does not exist, or the registry refuses.
            HashMismatch: the content does not match the digest.
            ImageError: its media types contradict each other, or it is both a manifest and an
                index.
        """
        answer = self._read("GET", repository, ref)
        name = self.name(repository, ref)
        if answer.status != 200:
            raise self._transport.refusal(answer, f"return {name}")
        digest = sha256(answer.body)
        stated = printable(answer.headers.get("Docker-Content-Digest", digest), 200)
        expected = ref if is_digest(ref) else stated
        if not is_digest_of(expected, answer.body):
            message = f"digest mismatch: the manifest of {name} is {digest}, expected {expected}"
            raise HashMismatch(message, "try again; a proxy may have changed it")
        media_type = stated_media_type(answer.body, answer.media_type, name)
        return answer.body, Descriptor(media_type, digest, len(answer.body))

    def put(
        self,
        repository: str,
        ref: str,
        data: bytes,
        media_type: str,
        refused: type[RegistryError] = RegistryError,
    ) -> Answer:
        """Store a manifest under a tag or its digest; return the answer. Its blobs must exist.

        Args:
            repository: in the registry.
            ref: a tag, or the manifest's digest.
            data: the manifest's bytes.
            media_type: of the manifest.
            refused: the error for a registry that does not accept this kind of manifest.

        Raises:
            RegistryError: the registry refuses it, changes it, or cannot be reached.
        """
        headers, path = {"Content-Type": media_type}, f"manifests/{ref}"
        request = replace(self._transport.request("PUT", repository, path, headers), body=data)
        # a tag is looked at again first
        tries = _PUTS if is_digest(ref) and is_digest_of(ref, data) else 1
        answer = self._send(request, tries)
        name = self.name(repository, ref)
        if not answer.is_success:
            is_kind = answer.status in (400, 405, 415, 422) and not _BAD_PUT & set(answer.codes())
            kind = refused if is_kind else RegistryError
            raise self._transport.refusal(answer, f"accept the manifest of {name}", kind)
        digest = sha256(data)
        stored = printable(answer.headers.get("Docker-Content-Digest", digest), 200)
        if not is_digest_of(stored, data):
            raise self._transport.error(
                f"{self._transport.host} stored the manifest of {name} as {stored}, not as {digest}",
                "the registry rewrites manifests: use another one",
            )
        return answer

    def move_tag(
        self, repository: str, tag: str, data: bytes, media_type: str, *, expected: str | None = ANY
    ) -> TagMove:
        """Point a tag at a manifest whose blobs exist already, and read the tag back.

        The registry is asked directly before the write; a tag that is not as expected is not
        written. Between that and the write another client may still move the tag, since the
        distribution-spec has no conditional requests (its issue 250). The caller compares ``now``
        with the digest of ``data``: another digest belongs to another client.

        Args:
            repository: in the registry.
            tag: the tag.
            data: the manifest's bytes.
            media_type: of the manifest.
            expected: the digest that the tag must name before; None: the tag must not exist;
                :data:`ANY`: the tag is moved in any case.

        Raises:
            RegistryError: the registry refuses, changes the manifest, or cannot be reached.
        """
        digest = sha256(data)
        found = self.head(repository, tag)
        before = found.digest if found else None
        if before == digest or expected not in (ANY, before):
            return TagMove(before, before, written=False)
        self.put(repository, tag, data, media_type)
        for failures in range(1, READ_BACKS + 1):
            found = self.head(repository, tag)
            now = found.digest if found else None
            if now != before or failures == READ_BACKS:  # a cache may return the old digest
                break
            self._transport.pause(failures, f"the tag {tag} is unchanged")
        return TagMove(before, now, written=True)

    def get_referrers(self, repository: str, digest: str) -> list[Descriptor]:
        """Return the artifacts attached to a manifest; none if the registry has no such list.

        Registries before distribution-spec 1.1 answer in many ways: distribution 2.8 (Debian's
        docker-registry) with 404, others with 400, 403, 405, 406, or with 200 and a page for
        people, or nothing.

        Raises:
            RegistryError: the registry refuses access, or cannot be reached.
        """
        transport, found, size = self._transport, list[Descriptor](), 0
        request = transport.request("GET", repository, f"referrers/{digest}", {"Accept": OCI_INDEX})
        for _ in range(MAX_PAGES):
            answer = transport.ask(request)
            if answer.status == 401 or answer.status in BUSY:
                name = self.name(repository, digest)
                raise transport.refusal(answer, f"list what is attached to {name}")
            if answer.status != 200 or answer.media_type != OCI_INDEX or not answer.body:
                return []
            found += parse_referrers(answer.body, transport.host)
            size += len(answer.body)
            following = transport.next_page(answer)
            if following is None:
                return found
            if size > MAX_LIST:
                break
            request = replace(request, url=following)
        raise transport.error(
            f"{transport.host}: the list {request.url.path} does not end: "
            f"more than {MAX_PAGES} pages or {MAX_LIST >> 20} MiB",
            "this is a fault of the registry: ask its owner",
        )

    def _read(self, method: str, repository: str, ref: str) -> Answer:
        headers, path = {"Accept": ", ".join(ACCEPT)}, f"manifests/{ref}"
        return self._transport.ask(self._transport.request(method, repository, path, headers))

    def _send(self, request: Request, tries: int) -> Answer:
        for failures in range(1, tries):
            answer = self._transport.ask(request)
            # docker-registry 2.8 answers so when another client stores the same manifest at that
            # moment.
            if answer.status != 400 or "DIGEST_INVALID" not in answer.codes():
                return answer
            self._transport.pause(failures, answer)
        return self._transport.ask(request)

    def name(self, repository: str, ref: str) -> str:
        """Return ``HOST/REPOSITORY:TAG`` or ``HOST/REPOSITORY@DIGEST``."""
        return f"{self._transport.host}/{repository}{'@' if is_digest(ref) else ':'}{ref}"


def _descriptor(answer: Answer, ref: str) -> Descriptor | None:
    """Return the descriptor that a response to HEAD states; None: a part is missing or wrong."""
    digest = answer.headers.get("Docker-Content-Digest", "")
    size = content_length(answer.headers)
    is_right = digest == ref if is_digest(ref) else is_digest(digest)
    if answer.status != 200 or not is_right or size is None or answer.media_type not in ACCEPT:
        return None
    return Descriptor(answer.media_type, digest, size)


def is_digest_of(digest: str, data: bytes) -> bool:
    """Return whether a registry's ``Docker-Content-Digest`` is of these bytes.

    It may use another algorithm of the image-spec, such as sha512. One that builder does not know
    counts as right: builder compares the sha256 that it computes itself.
    """
    algorithm, _, value = digest.partition(":")
    if algorithm not in ("sha256", "sha384", "sha512"):
        return True
    return hashlib.new(algorithm, data).hexdigest() == value


def parse_referrers(data: bytes, where: str) -> list[Descriptor]:
    """Return the entries of a list of attached artifacts.

    Args:
        data: the image index.
        where: its name, for messages.

    Raises:
        RegistryError: it is damaged.
    """
    what = f"{where}: the list of attached artifacts"
    try:
        if parse_json(data, what).get("manifests", "") is None:
            return []  # an empty list of a program in Go
        index = parse_index(data, what, OCI_INDEX)
    except ImageError as e:
        raise RegistryError(e.message, "ask the registry's owner") from None
    return [Descriptor.from_json(entry) for entry in index["manifests"]]
