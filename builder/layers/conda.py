"""Conda packages as layer entries, linked like rattler and conda link them. No script is run.

The build-time prefix is replaced in text files and NUL-padded in binary ones. noarch python packages go to
the locked Python's site-packages, and get entry points. ``conda-meta`` gets the record that conda and rattler
read. docs/conda.md lists the differences from conda.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.errors import LayerError
from builder.layers.conda_archive import Spool, resolved, spooled
from builder.layers.conda_info import PathInfo, read_info
from builder.layers.conda_layout import CondaLayout
from builder.layers.conda_meta import InstalledFile, package_record
from builder.layers.conda_prefix import replaced
from builder.layers.entry import Content, Entry, IndexEntry, Inline, LinkContext, PackageIndex, Range
from builder.model import Fetched
from builder.store.files import CHUNK


@dataclass(frozen=True, slots=True)
class _InstalledContent:
    """The content of a regular file as it is installed."""

    content: Content
    file: InstalledFile


class CondaReader:
    """Reads conda packages. Safe in any thread.

    Args:
        tmpdir: where a package's tar is unpacked while its layer is written. Needs the package's unpacked
            size; the file is removed at the end.
    """

    def __init__(self, tmpdir: Path) -> None:
        self._tmpdir = tmpdir

    def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
        """See :class:`builder.layers.entry.PackageReader`.

        Only the info part is read; the content is decompressed once for a package without paths.json. Hard
        links are listed as files, and symlinks without targets, because only the content has both.
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
        menus = [p.path for p in info.paths if p.path.startswith("Menu/") and p.path.endswith(".json")]
        return PackageIndex(
            tuple(entries),
            tuple(e.path for e in entries if e.path in scripts),
            tuple(f"the menu entries of {m} are not installed: an image has no desktop" for m in menus),
        )

    def entries(
        self, fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[Entry]:
        """See :class:`builder.layers.entry.PackageReader`.

        The order is that of paths.json, then generated files.
        """
        with spooled(fetched, self._tmpdir) as spool:
            info = read_info(fetched, spool)
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
        layout.check_links({path: m.linkname for path, (_, m) in self._members.items() if m.issym()})
        self._uses = Counter(map(self._content_key, layout.paths))
        self._shared: dict[tuple[str, str], _InstalledContent] = {}
        self._firsts: dict[tuple[str, str], Entry] = {}

    def _content_key(self, path: str) -> tuple[str, str]:
        """Returns what paths with the same content have in common: member and placeholder."""
        return self._members[path][0], self._layout.paths[path].placeholder

    def entry(self, path: str, leave_out: frozenset[str]) -> Entry:
        """Returns the entry of an image path, also if the path is in ``leave_out``.

        Call it in the order of paths.
        """
        member = self._members[path][1]
        if member.isdir():
            return Entry(path, "dir", 0o755)
        if member.issym():
            return Entry(path, "symlink", 0o777, target=member.linkname)

        key = self._content_key(path)
        content = self._shared.get(key) or self._content(self._layout.paths[path], member)
        self.installed[path] = content.file
        entry = Entry(path, "file", member.mode & 0o777, content.file.size, content=content.content)
        if self._uses[key] > 1:
            self._shared[key] = content
            if path not in leave_out:
                first = self._firsts.setdefault(key, entry)
                if first is not entry:
                    return Entry(path, "hardlink", first.mode, target=first.path)
        return entry

    def _content(self, item: PathInfo, member: tarfile.TarInfo) -> _InstalledContent:
        if not item.placeholder:
            # The archive's own hash was checked. A file is hashed here only if an old package does not record
            # its hash.
            digest = item.sha256 or _sha256(self._spool.read(member))
            content = Range(self._spool.path, member.offset_data)
            return _InstalledContent(content, InstalledFile(digest, member.size))
        try:
            chunks = replaced(self._spool.read(member), item.placeholder, self._prefix, binary=item.binary)
        except ValueError as e:
            raise LayerError(
                f"{self._fetched.package.filename}: {item.path}: {e}",
                "choose a shorter conda.prefix in the recipe",
            ) from None
        if member.size > CHUNK:
            return self._appended(chunks)
        data = b"".join(chunks)
        return _InstalledContent(Inline(data), InstalledFile(hashlib.sha256(data).hexdigest(), len(data)))

    def _appended(self, chunks: Iterator[bytes]) -> _InstalledContent:
        """Writes rewritten content to the temporary file."""
        digest = hashlib.sha256()
        size = 0

        def hashed() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        start = self._spool.append(hashed())
        return _InstalledContent(Range(self._spool.path, start), InstalledFile(digest.hexdigest(), size))


def _sha256(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
