"""Conda packages as layer entries, linked like rattler and conda link them. No script is run.

The build-time prefix is replaced in text files and NUL-padded in binary ones. noarch python packages go to
the locked Python's site-packages, and get entry points. ``conda-meta`` gets the record that conda and rattler
read. docs/layers.md lists the differences from conda.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import LayerError
from builder.layers.conda_archive import CondaMember, fault, resolved
from builder.layers.conda_info import PathInfo, read_info
from builder.layers.conda_layout import CondaLayout
from builder.layers.conda_meta import InstalledFile, package_record
from builder.layers.conda_prefix import replaced
from builder.layers.conda_spool import Spool, spooled
from builder.layers.entry import (
    Content,
    Entry,
    IndexEntry,
    Inline,
    LinkContext,
    PackageIndex,
    Range,
    RecordSink,
    ignore_record,
)
from builder.layers.limits import most_unpacked
from builder.model import Fetched
from builder.store.files import CHUNK

#: Bytes that a package's tar may have beyond what paths.json declares: files that are not listed, and most of
#: ``info/`` in a ``.tar.bz2``.
_UNDECLARED = 64 << 20
#: Bytes of a file that paths.json does not list, and that is not in ``info/``.
_MAX_UNLISTED = 16 << 20
#: Bytes of tar headers and padding for each file.
_HEADERS = 4 << 10


@dataclass(frozen=True, slots=True)
class _InstalledContent:
    """The content of a regular file as it is installed."""

    content: Content
    file: InstalledFile
    packed: str
    """The sha256 of the file in the archive, before its prefix is replaced, in hex."""


class CondaReader:
    """Reads conda packages. Safe in any thread.

    Args:
        tmpdir: where a package's tar is unpacked while its layer is written. Needs the package's unpacked
            size; the file is removed at the end.
        on_record: receives the records in conda-meta that are written.
    """

    def __init__(self, tmpdir: Path, on_record: RecordSink = ignore_record) -> None:
        self._tmpdir = tmpdir
        self._on_record = on_record

    def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
        """See :class:`builder.layers.entry.PackageReader`.

        Only the info part is read. Hard links are listed as files, and symlinks without targets, because only
        the content has both.
        """
        info = read_info(fetched)
        layout = CondaLayout(fetched, info, context)
        entries = []
        for path, p in layout.paths.items():
            size = p.size if p.kind == "file" else None
            entries.append(IndexEntry(path, p.kind, size or 0))
        entries += [IndexEntry(e.path, "file", e.size) for e in layout.entry_points]
        entries.append(IndexEntry(layout.record_path, "file"))

        names = [f"bin/.{fetched.package.name}-{action}.sh" for action in ("pre-link", "post-link")]
        scripts = {layout.image_path(name) for name in names}
        return PackageIndex(tuple(entries), tuple(e.path for e in entries if e.path in scripts))

    def entries(
        self, fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[Entry]:
        """See :class:`builder.layers.entry.PackageReader`.

        The order is that of paths.json, then generated files.
        """
        info = read_info(fetched)
        with spooled(fetched, self._tmpdir, _most_spooled(fetched, info.paths)) as spool:
            _check_unlisted(fetched, info.paths, spool)
            layout = CondaLayout(fetched, info, context)
            links = _Linker(fetched, layout, spool, context.prefix)
            for path in layout.paths:
                entry = links.entry(path, leave_out)
                if path not in leave_out:
                    yield entry
            for entry in layout.entry_points:
                if entry.path not in leave_out:
                    yield entry
            if layout.record_path not in leave_out:
                record = package_record(fetched, info, layout, links.installed)
                self._on_record(fetched, record)
                yield record


def _most_spooled(fetched: Fetched, paths: Sequence[PathInfo]) -> int:
    """Return how many bytes a package's tar may have; ``paths`` are those that it declares."""
    most = most_unpacked(fetched.path.stat().st_size)
    sizes = [p.size for p in paths if p.size is not None]
    if len(sizes) < sum(p.kind == "file" for p in paths):
        return most
    return min(most, sum(sizes) + sum(sizes) // 10 + _HEADERS * len(paths) + _UNDECLARED)


def _check_unlisted(fetched: Fetched, paths: Sequence[PathInfo], spool: Spool) -> None:
    """Raises LayerError if the archive has a large file that the package does not list."""
    listed = {p.path for p in paths}
    targets = {m.target for m in spool.members.values() if m.kind == "hardlink"}
    for path, member in spool.members.items():
        if member.size <= _MAX_UNLISTED or path in listed or path in targets or path.startswith("info/"):
            continue
        raise fault(
            fetched,
            f"member {path!r} is not listed in its info/ and has {member.size} bytes; "
            f"at most {_MAX_UNLISTED} are allowed",
        )


class _Linker:
    """Turns the members of an unpacked package into entries.

    Several paths may share one member, because the archive has hard links. The first path that is not left
    out becomes the file, the others become hard links to it. A prefix may be replaced in one path and not in
    another, so paths share content only if their placeholders are equal too:

        archive               paths.json              entries (a is left out)
        a                     a                       -
        b = hard link to a    b                       b: file
        c = hard link to a    c                       c: hard link to b
        d = hard link to a    d, has a placeholder    d: file (with another content)
    """

    def __init__(self, fetched: Fetched, layout: CondaLayout, spool: Spool, prefix: str) -> None:
        self._fetched = fetched
        self._layout = layout
        self._spool = spool
        self._prefix = prefix
        self.installed: dict[str, InstalledFile] = {}
        """Hash and size of the files so far, by image path; also of those that are left out."""
        self._members = {
            path: resolved(fetched, spool.members, item.path) for path, item in layout.paths.items()
        }
        layout.check_links({path: m.target for path, m in self._members.items() if m.kind == "symlink"})
        self._uses = Counter(map(self._content_key, layout.paths))
        self._shared: dict[tuple[str, str], _InstalledContent] = {}
        self._firsts: dict[tuple[str, str], Entry] = {}

    def _content_key(self, path: str) -> tuple[str, str]:
        """Returns what paths with the same content have in common: member and placeholder."""
        return self._members[path].path, self._layout.paths[path].placeholder

    def entry(self, path: str, leave_out: frozenset[str]) -> Entry:
        """Returns the entry of an image path, also if the path is in ``leave_out``.

        Call it in the order of paths.
        """
        member = self._members[path]
        if member.kind == "dir":
            return Entry(path, "dir", 0o755)
        if member.kind == "symlink":
            return Entry(path, "symlink", 0o777, target=member.target)

        key = self._content_key(path)
        item = self._layout.paths[path]
        content = self._shared.get(key) or self._content(item, member)
        if item.sha256 and item.sha256.lower() != content.packed:
            raise self._other_content(item, content.packed)
        self.installed[path] = content.file
        entry = Entry(path, "file", member.mode & 0o777, content.file.size, content=content.content)
        if self._uses[key] > 1:
            self._shared[key] = content
            if path not in leave_out:
                first = self._firsts.setdefault(key, entry)
                if first is not entry:
                    return Entry(path, "hardlink", first.mode, target=first.path)
        return entry

    def _content(self, item: PathInfo, member: CondaMember) -> _InstalledContent:
        packed = _Hashed(self._spool.read(member))
        if not item.placeholder:
            # A recorded hash is compared when the layer is written, which reads the file anyway.
            listed = item.sha256.lower() if member.size else ""
            digest = listed or packed.read_all()
            whole = Range(self._spool.path, member.offset, sha256=digest)
            return _InstalledContent(whole, InstalledFile(item.sha256 or digest, member.size), digest)
        installed = _Hashed(self._replaced(item, iter(packed)))
        content: Content
        if member.size > CHUNK:
            content = Range(self._spool.path, self._spool.append(iter(installed)))
        else:
            content = Inline(b"".join(installed))
        file = InstalledFile(installed.hexdigest, installed.size)
        return _InstalledContent(content, file, packed.hexdigest)

    def _replaced(self, item: PathInfo, chunks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            return replaced(chunks, item.placeholder, self._prefix, binary=item.binary)
        except ValueError as e:
            raise LayerError(
                f"{self._fetched.package.filename}: {item.path}: {e}",
                "choose a shorter conda.prefix in the recipe",
            ) from None

    def _other_content(self, item: PathInfo, digest: str) -> LayerError:
        return fault(self._fetched, f"{item.path} has the sha256 {digest}, paths.json lists {item.sha256}")


class _Hashed:
    """Content that is hashed and counted while it is read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._hash = hashlib.sha256()
        self.size = 0
        """Bytes so far."""

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._hash.update(chunk)
            self.size += len(chunk)
            yield chunk

    @property
    def hexdigest(self) -> str:
        """The sha256 of the content so far, in hex."""
        return self._hash.hexdigest()

    def read_all(self) -> str:
        """Returns the sha256 of the whole content, in hex."""
        for _ in self:
            pass
        return self.hexdigest
