"""Records: small JSON files that carry their own hash, so that a damaged one is never used.

The first line is the SHA-256 of the rest of the file. A file that was cut off or edited counts as
missing. So does one whose value is not of the expected type: another version of builder wrote it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .files import mark_used, write_atomic

T = TypeVar("T")


def write_record(path: Path, value: Any, mode: int = 0o644) -> None:
    """Write a JSON value for :func:`read_record`. Raises SpaceError."""
    from builder.core.model import canonical_json  # slow, and not needed to read

    data = canonical_json(value)
    write_atomic(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data, mode)


def read_record(path: Path) -> Any:
    """Return the value that :func:`write_record` wrote, or None if the file is missing or damaged.

    Reading sets the file's modification time, the last use for ``builder cache prune``.
    """
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
        mark_used(path)
    except OSError:
        return None
    is_whole = hashlib.sha256(data).hexdigest().encode() == digest
    return json.loads(data) if is_whole else None


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """The place of one value in the cache: what is made once, and read after that.

    :meth:`builder.core.store.blobs.Store.record` returns one that also finds the value in the
    record of a published image.
    """

    path: Path
    shape: type[T]
    """The type of the value: of JSON, a tuple, a NamedTuple or a dataclass. Whoever changes it
    gives the file another name, which an older version of builder does not read."""
    _find: Callable[[Path], Iterable[Any]] = lambda path: (read_record(path),)
    _store: Callable[[Path, Any], None] = write_record

    def read(self) -> T | None:
        """Return the value; None if it is missing, damaged, or of another type."""
        for found in self._find(self.path):
            with contextlib.suppress(ValueError):  # such as pydantic's
                value: T = _adapter(self.shape).validate_python(found)
                return value
        return None

    def write(self, value: T) -> None:
        """Record a value. Raises SpaceError."""
        self._store(self.path, _adapter(self.shape).dump_python(value, mode="json"))

    def get(self, make: Callable[[], T]) -> T:
        """Return the value; make and record it if it is missing."""
        known = self.read()
        if known is None:
            known = make()
            self.write(known)
        return known


_adapters: dict[Any, Any] = {}


def _adapter(shape: Any) -> Any:
    """Return pydantic's reader and writer of a type."""
    if shape not in _adapters:
        from pydantic import TypeAdapter  # slow, and a command that does nothing needs none

        _adapters[shape] = TypeAdapter(shape)
    return _adapters[shape]
