"""Tar streams that come from elsewhere (mmdebstrap, docker-archive) as layer blobs: hashed once, compressed once.

gzip (RFC 1952) allows many members in one file: every MiB is a member of its own, so that threads can share the work and
the bytes are the same on any number of cores. libdeflate is pinned, because its output is part of the digest.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import deflate

from builder.model import OCI_LAYER_GZIP, Descriptor, Layer
from builder.store.blobs import Store

BLOCK = 1 << 20
#: A base is compressed once and sent often: worth more than level 1.
LEVEL = 6


def pack_tar(chunks: Iterable[bytes], store: Store, jobs: int, title: str = "") -> Layer:
    """Compresses an uncompressed tar into the store.

    Args:
        chunks: the tar's bytes, in pieces of any size.
        jobs: threads to compress with; the result does not depend on it.
        title: for people.

    Raises:
        SpaceError: the disk is full.
    """
    digest = hashlib.sha256()
    size = 0
    pending: deque[Future[bytes]] = deque()
    with store.writer() as out, ThreadPoolExecutor(max(1, jobs)) as pool:
        for block in _blocks(chunks):
            digest.update(block)
            size += len(block)
            pending.append(pool.submit(_member, block))
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


def _member(block: bytes) -> bytes:
    return bytes(deflate.gzip_compress(block, LEVEL))


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        while len(pending) >= BLOCK:
            yield bytes(pending[:BLOCK])
            del pending[:BLOCK]
    if pending:
        yield bytes(pending)
