"""Conda packages as layer entries, linked like rattler and conda link them. No script is run.

The build-time prefix is replaced in text files and NUL-padded in binary ones. noarch python
packages go to the locked Python's site-packages, and get entry points. ``conda-meta`` gets the
record that conda and rattler read. docs/layers.md lists the differences from conda.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from builder.core.errors import LayerError
from builder.core.model import Fetched
from builder.core.store.files import CHUNK, require_space

from .bounds import most_unpacked
from .conda_archive import CondaMember, PathInfo, Spool, read_info, spooled
from .conda_layout import CondaLayout
from .conda_meta import InstalledFile, package_record
from .conda_prefix import replaced
from .content import Consumer, read_steps
from .entry import Entry, IndexEntry, Inline, LinkContext, PackageIndex, Range
from .licences import conda_licences
from .zips import fault

#: Bytes that a package's tar may have beyond what paths.json declares: files that are not listed,
#: and most of ``info/`` in a ``.tar.bz2``.
_UNDECLARED = 64 << 20
#: Bytes of tar headers and padding for each file.
_HEADERS = 4 << 10


def conda_index(fetched: Fetched, context: LinkContext) -> PackageIndex:
    """Return the paths of a conda package; only its info part is read.

    Hard links are listed as files, and symlinks without targets, because only the content has both.

    Raises:
        LayerError: the archive is unsafe or damaged.
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
    post_link = tuple(e.path for e in entries if e.path in scripts)
    licences = conda_licences(info.index)
    return PackageIndex(tuple(entries), post_link, (), fetched.size, licences)


def conda_entries(
    fetched: Fetched, context: LinkContext, tmpdir: Path, leave_out: frozenset[str] = frozenset()
) -> Iterator[Entry]:
    """Yield the members of a conda package: the order is that of paths.json, then generated files.

    Args:
        fetched: the package.
        context: where and for which Python it is installed.
        tmpdir: where its tar is unpacked meanwhile. Needs the package's unpacked size.
        leave_out: image paths that are not yielded.

    Raises:
        LayerError: the archive is unsafe or damaged.
        SpaceError: the disk is full.
    """
    info = read_info(fetched)
    require_space(tmpdir, sum(p.size or 0 for p in info.paths), "unpacking conda packages")
    with spooled(fetched, tmpdir, _most_spooled(fetched, info.paths)) as spool:
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
            yield package_record(fetched, info, layout, links.installed)


def _most_spooled(fetched: Fetched, paths: Sequence[PathInfo]) -> int:
    """Return the most bytes of a package's tar; ``paths`` are those that it declares."""
    most = most_unpacked(fetched.path.stat().st_size)
    sizes = [p.size for p in paths if p.size is not None]
    if len(sizes) < sum(p.kind == "file" for p in paths):
        return most
    return min(most, sum(sizes) + sum(sizes) // 10 + _HEADERS * len(paths) + _UNDECLARED)


class _Linker:
    """Turns the members of an unpacked package into entries.

    Several paths may share one member, because the archive has hard links. The first path that is
    not left out becomes the file, the others become hard links to it. A prefix may be replaced in
    one path and not in another, so paths share content only if their placeholders are equal too:

        archive               paths.json              entries (a is left out)
        a                     a                       -
        b = hard link to a    b                       b: file
        c = hard link to a    c                       c: hard link to b
        d = hard link to a    d, has a placeholder    d: file (with another content)
    """

    def __init__(self, fetched: Fetched, layout: CondaLayout, spool: Spool, prefix: str) -> None:
        self._package = fetched.package
        self._layout = layout
        self._spool = spool
        self._prefix = prefix
        self.installed: dict[str, InstalledFile] = {}
        """Hash and size of the files so far, by image path; also of those that are left out."""
        for item in layout.paths.values():
            if item.path not in spool.members:
                what = f"{item.path!r} is listed in its info/ but not in the archive"
                raise fault(self._package, what)
        self._members = {path: spool.members[item.path] for path, item in layout.paths.items()}
        links = {path: m.target for path, m in self._members.items() if m.kind == "symlink"}
        layout.check_links(links)
        self._uses = collections.Counter(map(self._content_key, layout.paths))
        self._shared: dict[tuple[str, str], InstalledFile] = {}
        self._firsts: dict[tuple[str, str], Entry] = {}

    def _content_key(self, path: str) -> tuple[str, str]:
        """Return the key of a path's content: its member and its placeholder."""
        return self._members[path].path, self._layout.paths[path].placeholder

    def entry(self, path: str, leave_out: frozenset[str]) -> Entry:
        """Return the entry of an image path, also if the path is in ``leave_out``.

        Call it in the order of paths.
        """
        member = self._members[path]
        if member.kind == "dir":
            return Entry(path, "dir", 0o755)
        if member.kind == "symlink":
            return Entry(path, "symlink", 0o777, target=member.target)

        key = self._content_key(path)
        item = self._layout.paths[path]
        file = self._shared.get(key) or self._file(item, member)
        if item.sha256 and item.sha256.lower() != file.packed:
            what = f"{item.path} has the sha256 {file.packed}, paths.json lists {item.sha256}"
            raise fault(self._package, what)
        self.installed[path] = file
        entry = Entry(path, "file", member.mode & 0o777, file.size, content=file.content)
        if self._uses[key] > 1:
            self._shared[key] = file
            if path not in leave_out:
                first = self._firsts.setdefault(key, entry)
                if first is not entry:
                    return Entry(path, "hardlink", first.mode, target=first.path)
        return entry

    def _file(self, item: PathInfo, member: CondaMember) -> InstalledFile:
        whole = Range(self._spool.path, member.offset)
        entry = Entry(item.path, "file", size=member.size, content=whole)
        packed, installed = hashlib.sha256(), hashlib.sha256()
        chunks = _hashed(read_steps(entry, self._spool.fd), packed.update)
        if not item.placeholder:
            # A recorded hash is compared when the layer is written, which reads the file anyway.
            digest = item.sha256.lower() if member.size else ""
            if not digest:
                collections.deque(chunks, maxlen=0)
                digest = packed.hexdigest()
            checked = replace(whole, sha256=digest)
            return InstalledFile(item.sha256 or digest, member.size, digest, checked)
        try:
            linked = replaced(chunks, item.placeholder, self._prefix, binary=item.binary)
        except ValueError as e:
            hint = "choose a shorter conda.prefix in the recipe"
            raise LayerError(f"{self._package.filename}: {item.path}: {e}", hint) from None
        chunks = _hashed(linked, installed.update)
        content: Inline | Range
        if member.size > CHUNK:
            start, size = self._spool.append(chunks)
            content = Range(self._spool.path, start)
        else:
            content = Inline(b"".join(chunks))
            size = len(content.data)
        return InstalledFile(installed.hexdigest(), size, packed.hexdigest(), content)


def _hashed(chunks: Iterable[bytes], update: Consumer) -> Iterator[bytes]:
    """Yield the chunks; each is passed to ``update`` before."""
    for chunk in chunks:
        update(chunk)
        yield chunk
