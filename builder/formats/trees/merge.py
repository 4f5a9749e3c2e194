"""Merges layers into one tree, as overlayfs shows them (image-spec, layer.md), without unpacking.

The layers are read from the top down, each one once, and every member is passed on or dropped as it
comes. Any user can do this, and memory holds paths only.

The invariant: when a layer is read, :class:`Merge` knows everything about the layers *above* it
that affects a path: what exists there (``kinds``), and what is hidden from there on. What a layer
itself hides applies to the layers below it, never to its own members. So it is collected separately
and added when the layer is finished.

Four things hide a path of a lower layer::

    top layer      middle layer      bottom layer    result
    ---------      ------------      ------------    ------
    .wh.a                            a/x                          1. a whiteout
                   b/.wh..wh..opq    b/x                          2. an opaque whiteout
                   b/y                               b/y
                   c  (file)         c/x             c  (file)    3. a file or link in place of a directory
    d/ (0700)      d  (file)         d/x             d/ (0700)    4. the same, replaced again

1. A whiteout hides its path and everything below it.
2. An opaque whiteout hides what lower layers have in its directory, but not what its own layer has
there.
3. A file, link or FIFO hides a directory at its path, and everything in it.
4. The file in the middle is not visible, but it had already removed ``d/x`` when the top layer made
the directory.

Directories are different: several layers can list one, the topmost sets its mode and owner, and the
contents are merged. A directory that no layer lists, only members below it, is *implied*.

A hard link is a second name for content that may lie further down, and its content outlives the
first name::

    top layer:       .wh.a                     hides a
    middle layer:    b  (hard link to a)       b is *wanted*: when a is found, its content becomes the file b
    bottom layer:    a  ("text")               a itself is hidden
    result:          b  ("text")
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from builder.core.errors import ImageError
from builder.core.text import human_bytes

from .bounds import Tally
from .member import DO_NOT_USE, NOT_UNPACKED, Content, Kind, Member, ancestors, hard_link
from .sources import Source, Stream


@dataclass(slots=True)
class _Layer:
    """The effects of one layer so far."""

    visible: dict[str, bool] = field(default_factory=dict)
    """Its members, and whether each is part of the result under its own name."""
    blocked: set[str] = field(default_factory=set)
    """Paths that it hides from the layers below, with everything below the paths."""
    opaque: set[str] = field(default_factory=set)
    """Directories whose contents it hides from the layers below."""
    link_targets: dict[str, str] = field(default_factory=dict)
    """Its hard links, and the first name of the content of each."""
    revived: dict[str, list[str]] = field(default_factory=dict)
    """Its hidden files, each with the visible hard links to it."""
    found: set[str] = field(default_factory=set)
    """Its files that hard links of layers above, or of this one, lead to."""


class Merge:
    """The members of the merged tree of some layers. Iterate once.

    Members come in no particular order. A path comes once, unless a layer has it several times: then
    the last one counts, as where the layer is unpacked. The target of a hard link is among them, and
    may come after the link.

    Afterwards these attributes describe the result:

    - ``kinds``: what each path is; an implied directory counts as a directory.
    - ``implied``: directories that no layer lists.
    - ``opaque``: directories whose contents hide those of trees further down.
    - ``whiteouts``: see there.

    Args:
        sources: the layers, from the bottom up.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.kinds: dict[str, Kind] = {"": Kind.DIRECTORY}
        self.implied: set[str] = {""}
        self.opaque: set[str] = set()
        #: Hidden from the layers further down, with everything below.
        self._blocked: set[str] = set()
        #: Directories: whether the layers further down may put nothing into them. A cache for _is_closed().
        self._closed: dict[str, bool] = {}
        #: Targets that must be in a layer further down -> the hard links to each.
        self._wanted: dict[str, list[str]] = {}
        self._tally = Tally("the image")

    def __iter__(self) -> Stream:
        for source in reversed(self._sources):
            yield from self._read_layer(source)
        if self._wanted:
            target, links = min(self._wanted.items())
            link = f"hard link {links[0]!r} to {target!r}"
            raise ImageError(f"{link}, which does not exist", NOT_UNPACKED)

    @property
    def whiteouts(self) -> set[str]:
        """Paths that hide everything below them further down; a file hides its own path anyway."""
        folder = Kind.DIRECTORY
        return {path for path in self._blocked if self.kinds.get(path, folder) is folder}

    def read(
        self, wanted: re.Pattern[str], most: int, what: str, links: dict[str, str] | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield path and text of some files, which fit into memory together.

        Args:
            wanted: matches their paths.
            most: bytes of all of them.
            what: their name, for messages.
            links: receives the targets of all symlinks, by path.

        Raises:
            ImageError: they have more bytes, or a layer is damaged.
        """
        size = 0
        for member, content in self:
            if links is not None and member.kind is Kind.SYMLINK:
                links[member.path] = member.target
            if member.kind is Kind.FILE and wanted.fullmatch(member.path):
                size += member.size
                if size > most:
                    raise ImageError(f"{what} have more than {human_bytes(most)}", DO_NOT_USE)
                yield member.path, b"".join(map(bytes, content)).decode(errors="replace")

    def _read_layer(self, source: Source) -> Stream:
        layer = _Layer()
        for member, content in source():
            self._tally.add(member)
            if member.kind in (Kind.WHITEOUT, Kind.OPAQUE):
                self._note_whiteout(member, layer)
            elif member.kind is Kind.DIRECTORY:
                if self._shows(member, layer):
                    self._put(member.path, member.kind)
                    self.implied.discard(member.path)
                    yield member, content
            else:
                yield from self._read_file(member, content, layer)
        if layer.revived:
            yield from self._read_revived(source, layer)
        for path in layer.found:
            del self._wanted[path]
        self._blocked |= layer.blocked
        self.opaque |= layer.opaque
        self._closed.clear()

    def _note_whiteout(self, member: Member, layer: _Layer) -> None:
        if self._is_hidden(member.path):
            return
        if member.kind is Kind.WHITEOUT:
            layer.blocked.add(member.path)
        else:
            layer.opaque.add(member.path)

    def _shows(self, member: Member, layer: _Layer) -> bool:
        """Return whether a member is part of the result under its own name.

        Of several layers that list a directory, the topmost sets mode and owner.
        """
        path = member.path
        if path not in layer.visible:
            is_implied = member.kind is Kind.DIRECTORY and path in self.implied
            is_new = path not in self.kinds or is_implied
            layer.visible[path] = is_new and not self._is_hidden(path)
        return layer.visible[path]

    def _read_file(self, member: Member, content: Content, layer: _Layer) -> Stream:
        """Yield a file or link under its own name if visible, and under the names that want it."""
        path = member.path
        visible = self._shows(member, layer)
        if visible or self.kinds.get(path) is Kind.DIRECTORY:
            layer.blocked.add(path)  # it replaced any directory of its path in the layers below
        names = [path] if visible else []
        if path in self._wanted:
            layer.found.add(path)
            names += self._wanted[path]
        if member.kind is Kind.HARDLINK:
            yield from self._read_hard_link(member, names, layer)
        elif names:
            yield from self._named(member, content, names)

    def _read_hard_link(self, member: Member, names: Sequence[str], layer: _Layer) -> Stream:
        """Link its visible names to the target, or record the names that wait for its content."""
        target = layer.link_targets.get(member.target, member.target)
        layer.link_targets[member.path] = target
        for name in names:
            self._put(name, member.kind)
            if layer.visible.get(target):
                yield hard_link(member, name, target), iter(())
            elif target in layer.visible:
                layer.revived.setdefault(target, []).append(name)
            else:
                self._wanted.setdefault(target, []).append(name)

    def _read_revived(self, source: Source, layer: _Layer) -> Stream:
        """Read a layer again for hidden files that have visible hard links in the same layer."""
        skipped = (Kind.WHITEOUT, Kind.OPAQUE, Kind.DIRECTORY)
        for member, content in source():
            if member.path in layer.revived and member.kind not in skipped:
                yield from self._named(member, content, layer.revived[member.path])

    def _named(self, member: Member, content: Content, names: Sequence[str]) -> Stream:
        """Yield one file under the first of its names, and hard links to that under the others."""
        first = names[0]
        for name in names:
            self._put(name, member.kind)
        yield replace(member, path=first), content
        for name in names[1:]:
            yield hard_link(member, name, first), iter(())

    def _put(self, path: str, kind: Kind) -> None:
        for parent in ancestors(path):
            if parent in self.kinds:
                break
            self.kinds[parent] = Kind.DIRECTORY
            self.implied.add(parent)
        self.kinds[path] = kind

    def _is_hidden(self, path: str) -> bool:
        """Return whether a layer above hides a path of the current layer."""
        return bool(path) and (path in self._blocked or self._is_closed(path.rpartition("/")[0]))

    def _is_closed(self, folder: str) -> bool:
        """Return whether a layer above hides all that the current layer has in a directory."""
        known = self._closed.get(folder)
        if known is None:
            known = self._closed[folder] = folder in self.opaque or self._is_hidden(folder)
        return known
