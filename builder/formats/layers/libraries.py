"""The shared libraries of a layer: which files have the name of one, and what its ELF files need.

They are found while a layer is written, because its content passes then. They are recorded by the
digest of the layer's blob, and the record is removed from the cache together with the blob.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from builder.core.store.blobs import Store
from builder.core.store.records import Record
from builder.formats.oci.shapes import Sha256

from .content import read_steps
from .elf import ElfReader, Needed
from .entry import Entry

#: Part of the names of records. Increase it when the same layer has another record.
_FORMAT = 1
#: By image path: ELF files, and what has the name of a library. The values are names of the
#: libraries that they need; a link needs its target.
Libraries = dict[str, Needed]


def is_library(path: str) -> bool:
    """Return whether a file has the name of a shared library: ``libz.so``, ``libz.so.1``."""
    return path.isprintable() and re.search(r"\.so(\.[^/]*)?$", path) is not None


class LayerLibraries:
    """Finds the libraries of a layer that is written."""

    def __init__(self) -> None:
        self.found: Libraries = {}
        """Those of the entries so far."""

    def add(self, entry: Entry) -> None:
        """Take the name of an entry."""
        if entry.kind != "dir" and is_library(entry.path):
            self.found[entry.path] = (posixpath.basename(entry.target),) if entry.target else ()

    def passing(self, entry: Entry, fd: int, content: Iterable[bytes]) -> Iterable[bytes]:
        """Return the content of a regular file, and read it for libraries on the way.

        Args:
            entry: the file.
            fd: descriptor of its content's ``source``.
            content: what is returned.
        """
        is_candidate = entry.mode & 0o111 or is_library(entry.path)
        return self._read(entry, fd, content) if is_candidate else content

    def _read(self, entry: Entry, fd: int, content: Iterable[bytes]) -> Iterator[bytes]:
        reader = ElfReader()
        for data in content:
            reader.feed(data)
            yield data
        if reader.wanted:
            reader.rewind()
            for data in itertools.takewhile(lambda _: reader.wanted, read_steps(entry, fd)):
                reader.feed(data)
        if reader.needed is not None:
            self.found[entry.path] = tuple(map(posixpath.basename, reader.needed))


def with_needed(files: Libraries, names: Set[str]) -> set[str]:
    """Return names of files with those of all that they need, itself or by way of others."""
    needs: dict[str, set[str]] = defaultdict(set)
    for path, needed in files.items():
        needs[posixpath.basename(path)].update(needed)
    found, fresh = set(names), set(names)
    while fresh:
        fresh = set[str]().union(*(needs[name] for name in fresh)) - found
        found |= fresh
    return found


@dataclass(frozen=True, slots=True)
class RecordedLibraries:
    """The libraries of a layer that builder wrote."""

    __pydantic_config__ = {"extra": "forbid"}

    digest: Sha256
    """Of the layer's blob: pruning removes both together."""
    files: Libraries


def recorded_libraries(digest: str, store: Store) -> Libraries:
    """Return the libraries of a layer that builder wrote, by the digest of its blob."""
    known = library_record(digest, store).read()
    return known.files if known else {}


def library_record(digest: str, store: Store) -> Record[RecordedLibraries]:
    """Return the record of a layer's libraries, by the digest of its blob."""
    path = store.folders.layers / f"libraries-{_FORMAT}-{digest.partition(':')[2]}.json"
    return store.record(path, RecordedLibraries)
