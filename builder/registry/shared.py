"""A shared cache: records and blobs of the cache in a repository of a registry.

An entry is a manifest. Its tag is a MAC of the record's name. Its annotations hold the record's value and the
sizes of its blobs as one text, and the MAC of that text. Its ``layers`` only keep the registry from removing
the blobs. What a registry returns is used if the text has the MAC of the secret, which the machines of a team
share, and the blobs match the digests in the text. So nobody without the secret can choose what is in an
image: a damaged, exchanged or foreign entry is a miss, and the layer is made here.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import BuilderError, HashMismatch, RegistryError, SpaceError, UsageError
from builder.model import OCI_MANIFEST, Descriptor, canonical_json
from builder.oci.manifest import parse_json
from builder.oci.reference import Reference
from builder.parallel import Stopped, in_parallel
from builder.progress import QUIET, Reporter, working
from builder.registry.client import RegistryClient
from builder.registry.credentials import Credentials, are_for
from builder.registry.profile import named_credentials
from builder.registry.source import bytes_source
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import read_record, write_record
from builder.store.shared import named_blobs

ENTRY = "application/vnd.builder.cache.v1+json"
_EMPTY = Descriptor.of("application/vnd.oci.empty.v1+json", b"{}")
_BLOB = "application/octet-stream"
_TEXT, _MAC = "org.builder.cache.entry", "org.builder.cache.mac"
#: Part of every MAC. Increase it when the meaning of an entry changes.
_VERSION = "builder cache 1"
#: In characters: 256 random bits in hex have 64.
MIN_SECRET = 32
#: In bytes: manifests that registries accept have at most 4 MiB; a longer entry is not shared.
MAX_ENTRY = 3 << 20
#: In bytes: the JSON of an entry. The index of the largest package (60,000 files) has 6 MB.
MAX_RECORD = 64 << 20
#: Requests at a time: small ones, and transfers.
_CHECKS, _TRANSFERS = 16, 6


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its blobs."""

    name: str
    """Its file in the cache: ``layers/HASH.json``."""
    value: Any
    blobs: tuple[tuple[str, int], ...]
    """Digests and sizes."""


@dataclass(frozen=True, slots=True)
class EntryCodec:
    """Writes and reads the manifests of entries.

    Args:
        secret: what only the machines of a team know.
    """

    secret: bytes

    def tag(self, name: str) -> str:
        """The tag of a record: another secret has other tags."""
        return f"{name.partition('/')[0]}-{self._mac(['tag', name])}"

    def encode(self, entry: Entry) -> bytes:
        """The manifest of an entry."""
        data = canonical_json([entry.name, entry.value, entry.blobs])
        text = base64.b64encode(zlib.compress(data, 6)).decode()
        layers = [Descriptor(_BLOB, digest, size) for digest, size in entry.blobs] or [_EMPTY]
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": ENTRY,
                "config": _EMPTY.to_json(),
                "layers": [layer.to_json() for layer in layers],
                "annotations": {_TEXT: text, _MAC: self._mac(["entry", text])},
            }
        )

    def decode(self, manifest: bytes, name: str) -> Entry:
        """The entry of a manifest.

        Raises:
            BuilderError: it is not the entry of this record, or was written without the secret.
        """
        annotations = parse_json(manifest, "a cache entry").get("annotations")
        found = annotations if isinstance(annotations, dict) else {}
        text, mac = found.get(_TEXT), found.get(_MAC)
        if not isinstance(text, str) or not isinstance(mac, str):
            raise BuilderError("not an entry of a shared cache")
        if not hmac.compare_digest(mac.encode(), self._mac(["entry", text]).encode()):
            raise BuilderError("written without BUILDER_CACHE_KEY, or changed since")
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text), MAX_RECORD)
        if not inflater.eof:
            raise BuilderError("too large")
        written, value, blobs = json.loads(data)
        if written != name:
            raise BuilderError("the entry of another record")
        return Entry(name, value, tuple((digest, size) for digest, size in blobs))

    def _mac(self, value: Any) -> str:
        return hmac.new(self.secret, canonical_json([_VERSION, value]), hashlib.sha256).hexdigest()


def check_secret(secret: str) -> bytes:
    """The secret of ``BUILDER_CACHE_KEY`` as bytes.

    Raises:
        UsageError: it is missing or short.
    """
    if len(secret.strip()) >= MIN_SECRET:
        return secret.strip().encode()
    problem = "is too short" if secret.strip() else "is not set"
    raise UsageError(
        f"a shared cache needs a secret, and BUILDER_CACHE_KEY {problem}",
        "give all machines that share the cache the same one, for example from: openssl rand -hex 32",
    )


class RegistryCache:
    """A shared cache (:class:`builder.store.shared.SharedCache`). Use as a context manager; safe for threads.

    Args:
        source: the repository to read from; None: none.
        target: the repository to write to; None: none.
        secret: see :func:`check_secret`.
        store: the cache of this machine.
        settings: its ``offline`` forbids registries on other machines.
        reporter: receives progress, and warnings for what the shared cache refuses.
    """

    def __init__(
        self,
        source: Reference | None,
        target: Reference | None,
        secret: bytes,
        store: Store,
        settings: Settings,
        reporter: Reporter = QUIET,
    ) -> None:
        self._codec = EntryCodec(secret)
        self._source = source
        self._target = target
        self._from, self._to = source, target
        self._pulled = self._sent = 0
        self._pulling = f"pulling from {source}"
        self._expected = 0
        """Bytes of the entries that were found, for the progress."""
        self._store = store
        self._settings = settings
        self._reporter = reporter
        self._clients: dict[str, RegistryClient] = {}
        self._looked_up: set[Path] = set()
        self._noted: set[Path] = set()
        self._there: set[Path] = set()
        """Records whose entries the target has."""
        self._damaged: set[str] = set()
        """Blobs that the source does not have, or not as their digests say."""
        self._lock = threading.Lock()

    def __enter__(self) -> RegistryCache:
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes all connections, and reports what was found and sent."""
        for count, what in ((self._pulled, f"came from {self._from}"), (self._sent, f"went to {self._to}")):
            if count:
                self._reporter.note(f"shared cache: {count} records {what}")
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    # reading

    def find(self, records: Sequence[Path]) -> None:
        """See :class:`builder.store.shared.SharedCache`."""
        self.note(records)
        with self._lock:
            new = [record for record in records if record not in self._looked_up]
            self._looked_up.update(new)
        missing = [record for record in new if not self._has(record)]
        if self._source is None or not missing:
            return
        stop = threading.Event()
        self._expected = 0
        with self._warns("read", self._source), working(self._reporter, self._pulling):
            client, repository = self._client(self._source.host), self._source.repository
            in_parallel(lambda record: self._fetch(client, repository, record, stop), missing, _CHECKS, stop)

    def note(self, records: Sequence[Path]) -> None:
        """See :class:`builder.store.shared.SharedCache`."""
        self._noted.update(records)

    def _has(self, record: Path) -> bool:
        """Whether the store has a record and its blobs."""
        value = read_record(record)
        return value is not None and all(self._store.get(digest) for digest in named_blobs(value))

    def _fetch(self, client: RegistryClient, repository: str, record: Path, stop: threading.Event) -> None:
        entry = self._entry(client, repository, record)
        if entry is None:
            return
        blobs = [Descriptor(_BLOB, digest, size) for digest, size in entry.blobs]
        with self._lock:
            self._expected += sum(blob.size for blob in blobs)
            self._reporter.start(self._pulling, self._expected)
        failed = threading.Event()

        def advance(amount: int) -> None:
            if stop.is_set() or failed.is_set():
                raise Stopped
            self._reporter.advance(self._pulling, amount)

        def download(blob: Descriptor) -> None:
            try:
                client.get_blob_to(repository, blob, self._store, advance)
            except (RegistryError, HashMismatch):
                self._damaged.add(blob.digest)
                raise

        try:
            in_parallel(download, sorted(blobs, key=lambda blob: -blob.size), _TRANSFERS, failed)
        except (RegistryError, HashMismatch) as e:
            self._ignored(record, e)
            return
        write_record(record, entry.value)
        self._pulled += 1
        if self._source == self._target:
            self._there.add(record)

    def _entry(self, client: RegistryClient, repository: str, record: Path) -> Entry | None:
        """The verified entry of a record; None if there is none."""
        name = self._name(record)
        try:
            manifest, _, _ = client.get_manifest(repository, self._codec.tag(name), [OCI_MANIFEST])
            return self._codec.decode(manifest, name)
        except RegistryError as e:
            if e.status != 404:
                raise
        except BuilderError as e:
            self._ignored(record, e)
        return None

    def _ignored(self, record: Path, e: BuilderError) -> None:
        self._reporter.warn(f"{self._source}: the entry {self._name(record)} is ignored: {e.message}")

    def _name(self, record: Path) -> str:
        return record.relative_to(self._store.root).as_posix()

    # writing

    def send(self) -> None:
        """See :class:`builder.store.shared.SharedCache`. What the target has is not sent again."""
        if self._target is None:
            return
        new = [record for record in self._parts() if record not in self._there]
        with self._warns("write", self._target):
            client, repository = self._client(self._target.host), self._target.repository
            client.expect_push(repository)
            entries = [(record, entry) for record in new if (entry := self._made(record)) is not None]
            made = [entry for _, entry in entries]
            checked = in_parallel(lambda entry: self._is_there(client, repository, entry), made, _CHECKS)
            missing = [entry for entry, there in checked if not there]
            self._upload(client, repository, missing)
            self._there.update(record for record, _ in entries)

    def _parts(self) -> list[Path]:
        """The noted records, and the records of layers that are parts of them.

        A set of layers that was built before is one record; its layers have their own, which a build with
        another package needs.
        """
        values = {record: read_record(record) for record in self._noted}
        blobs = {digest for value in values.values() for digest in named_blobs(value)}
        parts = {record for record, value in values.items() if value is not None}
        for record in self._store.folders.layers.glob("*.json"):
            named = () if record in parts else named_blobs(read_record(record))
            if named and blobs.issuperset(named):
                parts.add(record)
        return sorted(parts)

    def _made(self, record: Path) -> Entry | None:
        """The entry of a record; None if the store lacks one of its blobs."""
        value = read_record(record)
        paths = {digest: self._store.get(digest) for digest in named_blobs(value)}
        blobs = tuple((digest, path.stat().st_size) for digest, path in paths.items() if path is not None)
        return None if value is None or len(blobs) < len(paths) else Entry(self._name(record), value, blobs)

    def _is_there(self, client: RegistryClient, repository: str, entry: Entry) -> bool:
        """Whether the target has a valid entry; one that is damaged or foreign is replaced."""
        if not self._damaged.isdisjoint(digest for digest, _ in entry.blobs):
            return False
        tag = self._codec.tag(entry.name)
        found = client.head_manifest(repository, tag)
        if found is None:
            return False
        if found.digest == Descriptor.of(OCI_MANIFEST, self._codec.encode(entry)).digest:
            return True
        with contextlib.suppress(BuilderError):
            manifest, _, _ = client.get_manifest(repository, tag, [OCI_MANIFEST])
            self._codec.decode(manifest, entry.name)
            return True
        return False

    def _upload(self, client: RegistryClient, repository: str, entries: Sequence[Entry]) -> None:
        """Sends the blobs that the repository lacks, then the entries."""
        manifests = [(entry, self._codec.encode(entry)) for entry in entries]
        manifests = [(entry, data) for entry, data in manifests if len(data) <= MAX_ENTRY]
        if not manifests:
            return
        blobs = dict(blob for entry, _ in manifests for blob in entry.blobs)
        descriptors = [Descriptor(_BLOB, digest, size) for digest, size in blobs.items()]

        def has(blob: Descriptor) -> bool:
            return blob.digest not in self._damaged and client.has_blob(repository, blob)

        there = in_parallel(has, descriptors, _CHECKS)
        missing = sorted((blob for blob, has in there if not has), key=lambda blob: -blob.size)
        task = f"writing the shared cache {client.host}/{repository}"

        def upload(blob: Descriptor) -> None:
            client.upload_blob(
                repository, blob, self._store.path(blob.digest), lambda n: self._reporter.advance(task, n)
            )

        def put(item: tuple[Entry, bytes]) -> None:
            client.put_manifest(repository, self._codec.tag(item[0].name), item[1], OCI_MANIFEST)

        with working(self._reporter, task, sum(blob.size for blob in missing)):
            in_parallel(upload, missing, _TRANSFERS)
            if not client.has_blob(repository, _EMPTY):
                client.upload_stream(repository, _EMPTY, bytes_source(b"{}"))
            in_parallel(put, manifests, _CHECKS)
        self._sent += len(manifests)

    # both

    @contextlib.contextmanager
    def _warns(self, verb: str, place: Reference) -> Iterator[None]:
        """Turns an error of a registry into a warning; the registry is not asked again."""
        try:
            yield
        except SpaceError:
            raise
        except BuilderError as e:
            self._reporter.warn(f"cannot {verb} the shared cache {place}: {e.message}; the build goes on")
            if verb == "read":
                self._source = None
            else:
                self._target = None

    def _client(self, host: str) -> RegistryClient:
        with self._lock:
            if host not in self._clients:
                credentials, reporter = self._credentials(host), self._reporter
                self._clients[host] = RegistryClient(
                    host, credentials, settings=self._settings, reporter=reporter
                )
            return self._clients[host]

    def _credentials(self, host: str) -> Credentials | None:
        """Those of publishing if they name this registry; without REGISTRY_HOST they are for another one."""
        named = named_credentials(warn=self._reporter.warn)
        return named if named is not None and named.host and are_for(named, host) else None
