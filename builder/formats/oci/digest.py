"""``sha256:<hex>`` digests."""

from __future__ import annotations

import hashlib

from builder.core.errors import ImageError

from .reference import is_digest


def sha256(data: bytes) -> str:
    """Return the digest of small data."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def hex_of(digest: str) -> str:
    """Return the 64 hex digits of a digest: the name of its file in an OCI layout.

    Raises:
        ImageError: it is not a sha256 digest.
    """
    if not is_digest(digest):
        hint = "the image is damaged, or uses a hash that builder does not know"
        raise ImageError(f"not a sha256 digest: {digest!r}", hint)
    return digest.removeprefix("sha256:")
