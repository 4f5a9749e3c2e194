"""Which repositories of a registry have a blob, as far as this command knows."""

from __future__ import annotations

from collections.abc import Iterable


class KnownBlobs:
    """The blobs that this command has pushed, and where.

    Images that share layers may go to several repositories of a registry. A layer that one of them
    has is mounted in the others, not sent again.
    """

    def __init__(self) -> None:
        self._repositories: dict[tuple[str, str], str] = {}

    def add(self, host: str, repository: str, digests: Iterable[str]) -> None:
        """Record that a repository has these blobs."""
        for digest in digests:
            self._repositories.setdefault((host, digest), repository)

    def repositories(self, host: str, digest: str) -> tuple[str, ...]:
        """Return the first known repository of the registry with the blob; empty: none is known."""
        found = self._repositories.get((host, digest))
        return () if found is None else (found,)
