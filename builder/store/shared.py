"""Records and blobs that machines share: the seam between the cache and a shared one.

Code that looks up a record of the cache calls :meth:`builder.store.blobs.Store.recall`. If the store has a
shared cache, that one is asked first for what the store lacks. A record names its blobs by the keys
``digest`` or ``wheel``, so nothing has to know what kind of record it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from builder.model import canonical_json

#: In canonical JSON. A text of the record cannot match, because its quotes are escaped.
_BLOB = re.compile(rb'"(?:digest|wheel)":"(sha256:[0-9a-f]{64})"')


class SharedCache(Protocol):
    """A cache outside of this machine. A failure of it is a warning, never an error."""

    def find(self, records: Sequence[Path]) -> None:
        """Puts those records and their blobs into the store that it lacks and the shared cache has.

        All of them, found or not, are noted.
        """

    def note(self, records: Sequence[Path]) -> None:
        """Notes records for :meth:`send` without looking them up."""

    def send(self) -> None:
        """Stores the noted records that the store has now, with their blobs, for other machines."""


def named_blobs(value: Any) -> tuple[str, ...]:
    """The digests of the blobs that the value of a record names, each once."""
    return blobs_in(canonical_json(value))


def blobs_in(record: bytes) -> tuple[str, ...]:
    """The digests of the blobs that the file of a record names, each once."""
    return tuple(dict.fromkeys(name.decode() for name in _BLOB.findall(record)))
