"""The members that an overlay partition needs because of the partitions below it.

The runtime mounts partitions over each other with overlayfs, which differs from layers in two
points:

- A layer hides everything in a directory with one opaque whiteout. overlayfs needs an extended
  attribute for that, which builder's partitions do not have. So each name that the partitions below
  show there is hidden by a separate whiteout.
- overlayfs takes mode and owner of a directory from the topmost partition that has it. A directory
  that no layer of the partition lists, only members in it, would get default attributes. So those
  of the partition below are repeated.

For example::

    below           layers              overlay partition
    -----           ------              -----------------
    opt/ (0700)     opt/new             opt/ (0700), opt/new              opt/ repeats the attributes
    env/a           env/.wh..wh..opq    env/, env/b, env/a (whiteout)     b is the layers' own
    env/b           env/b
    tmp/x           .wh.tmp             tmp (whiteout)
                    .wh.nothing                                           nothing to hide: no whiteout
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.formats.trees.member import Kind, Member
from builder.formats.trees.merge import Merge

from .partition import SquashfsPart


def overlay_members(merge: Merge, lower: Sequence[SquashfsPart]) -> Iterator[Member]:
    """Yield the whiteouts and directories that a partition needs besides its layers' members.

    Args:
        merge: the layers of the partition, read to the end.
        lower: the partitions below, from the bottom up.
    """
    below = _Below(lower)
    replaced = {path for path in merge.whiteouts if merge.kinds.get(path) is Kind.DIRECTORY}
    folders = sorted(merge.opaque | replaced)
    hidden = dict.fromkeys(path for folder in folders for path in _hidden_in(folder, merge, below))
    yield from (Member(path, Kind.WHITEOUT) for path in hidden)
    for path in sorted(merge.whiteouts - merge.kinds.keys() - hidden.keys()):
        parent, _, name = path.rpartition("/")
        if name in below.entries(parent):
            yield Member(path, Kind.WHITEOUT)
    for path in sorted(merge.implied):
        attributes = below.find(path)
        if attributes is not None:
            yield attributes


def _hidden_in(folder: str, merge: Merge, below: _Below) -> Iterator[str]:
    """Yield the paths below an opaque directory that only the lower partitions have."""
    for name, member in below.entries(folder).items():
        path = f"{folder}/{name}" if folder else name
        above = merge.kinds.get(path)
        if above is None:
            yield path
        elif above is Kind.DIRECTORY and member.kind is Kind.DIRECTORY:
            yield from _hidden_in(path, merge, below)


class _Below:
    """The members that the lower partitions show together."""

    def __init__(self, partitions: Sequence[SquashfsPart]) -> None:
        self._partitions = partitions
        self._entries: dict[str, dict[str, Member]] = {}

    def entries(self, folder: str) -> dict[str, Member]:
        """Return the members of a directory by name; empty when there is no such directory."""
        if folder not in self._entries:
            self._entries[folder] = {}
            for member, _ in Merge([partition.source(folder) for partition in self._partitions]):
                if member.path == folder:
                    continue
                parent, _, name = member.path.rpartition("/")
                self._entries.setdefault(parent, {})[name] = member
                if member.kind is Kind.DIRECTORY:
                    self._entries.setdefault(member.path, {})
        return self._entries[folder]

    def find(self, path: str) -> Member | None:
        """Return a directory of the topmost partition that has it; for the root, of the lowest."""
        partitions = reversed(self._partitions) if path else self._partitions[:1]
        for partition in partitions:
            for member, _ in partition.source(path)():
                return member
        return None
