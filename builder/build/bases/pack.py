"""Stores tars of other programs as layers: those of mmdebstrap, ``docker save`` and SIF partitions.

A gzip file can have many gzip members (RFC 1952). Every MiB of the tar becomes a separate member,
so that threads can share the work, and the bytes are the same with any number of threads. The
version of libdeflate is pinned, because digests depend on its output.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import deflate

from builder.core.model import OCI_LAYER_GZIP, Descriptor, Layer
from builder.core.store.blobs import Store

BLOCK = 1 << 20
#: These layers are compressed once and downloaded often, so a better level than 1 pays.
LEVEL = 6


def pack_tar(
    chunks: Iterable[bytes | memoryview], store: Store, jobs: int, title: str = ""
) -> Layer:
    """Store a tar as a gzip layer.

    Args:
        chunks: the bytes of the uncompressed tar, in chunks of any size.
        store: receives the layer.
        jobs: threads to compress with. The bytes do not depend on it.
        title: the title of the layer.

    Raises:
        SpaceError: the disk is full.
    """
    digest = hashlib.sha256()
    size = 0
    pending: deque[Future[bytearray]] = deque()
    with store.writer() as out, ThreadPoolExecutor(max(1, jobs)) as pool:
        for block in _blocks(chunks):
            digest.update(block)
            size += len(block)
            pending.append(pool.submit(deflate.gzip_compress, block, LEVEL))
            while len(pending) > 2 * jobs or (pending and pending[0].done()):
                out.write(pending.popleft().result())
        while pending:
            out.write(pending.popleft().result())
        blob, length = out.commit()
    return Layer(
        Descriptor(OCI_LAYER_GZIP, blob, length),
        f"sha256:{digest.hexdigest()}",
        store.path(blob),
        title=title,
        unpacked=size,
    )


def _blocks(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        while len(pending) >= BLOCK:
            yield bytes(pending[:BLOCK])
            del pending[:BLOCK]
    if pending:
        yield bytes(pending)
