"""Wheels as layer entries, with the same files as PyPA ``installer`` writes (PEP 427, PEP 376).

Nothing is unpacked.

Scripts get the shebang of the image's interpreter, RECORD lists the installed files, INSTALLER is
``builder``, REQUESTED marks packages that the environment file lists. There is no bytecode here
(see :mod:`builder.build.bytecode`), no time stamp and no path of the build host.

The hashes in RECORD are copied from the wheel, not computed again, see
:mod:`builder.formats.layers.wheel_archive`.
"""

from __future__ import annotations

import base64
import configparser
import csv
import io
import stat
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from installer.scripts import Script
from installer.utils import SCHEME_NAMES, parse_entrypoints

from builder.core.errors import LayerError
from builder.core.model import Fetched
from builder.core.store.files import sha256_of
from builder.formats.layers import bounds

from .entry import Entry, IndexEntry, LinkContext, PackageIndex
from .licences import wheel_licences, wheel_metadata
from .tar import check_path
from .wheel_archive import WheelArchive, duplicate

#: Metadata that the installer writes (PEP 376, PEP 610), or that signs the RECORD that it replaces.
_INSTALLER_FILES = frozenset(
    {"INSTALLER", "REQUESTED", "RECORD", "RECORD.jws", "RECORD.p7s", "direct_url.json"}
)
_ANY_SHEBANG = b"#!python"


@dataclass(frozen=True, slots=True)
class _WheelFile:
    """A file that is installed: a member of the wheel, a rewritten script, or a new file."""

    path: str
    """Relative to the environment's prefix."""
    mode: int = 0o644
    member: zipfile.ZipInfo | None = None
    """None for a file that the installer generates."""
    data: bytes | None = None
    """The content; None if it is that of the member."""

    @property
    def size(self) -> int:
        """Bytes; of a rewritten script those in the wheel."""
        return self.member.file_size if self.member is not None else len(self.data or b"")


def wheel_index(fetched: Fetched, context: LinkContext) -> PackageIndex:
    """Return the paths of a wheel. The size of RECORD is that in the wheel, which is close.

    Raises:
        LayerError: the archive is unsafe or damaged.
    """
    with _open(fetched, context) as wheel:
        layout = _Layout(wheel, fetched, context)
        root, record = layout.root, wheel.metadata("RECORD")
        entries = [IndexEntry(root + file.path, "file", file.size) for file in layout.files]
        entries.append(IndexEntry(root + layout.record_path, "file", record.file_size))
        metadata = wheel_metadata(wheel)
        requires = tuple(metadata.get_all("Requires-Dist", []))
        licences = wheel_licences(metadata)
        return PackageIndex(tuple(entries), (), requires, fetched.size, licences)


def wheel_entries(
    fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()
) -> Iterator[Entry]:
    """Yield the members of a wheel, without the image paths in ``leave_out``.

    Raises:
        LayerError: the archive is unsafe or damaged.
    """
    with _open(fetched, context) as wheel:
        layout = _Layout(wheel, fetched, context)
        for file in layout.files:
            path = layout.root + file.path
            if path in leave_out:
                continue
            if file.data is not None:
                yield Entry.of(path, file.data, file.mode)
            elif file.member is not None:
                content, size = wheel.content(file.member)
                yield Entry(path, "file", file.mode, size, content=content)
        path = layout.root + layout.record_path
        if path not in leave_out:
            yield Entry.of(path, layout.record())


def _open(fetched: Fetched, context: LinkContext) -> WheelArchive:
    if not context.python:
        raise LayerError(
            f"{fetched.package.filename}: the environment has pip packages but no python",
            "add python to the environment's conda dependencies",
        )
    return WheelArchive(fetched)


class _Layout:
    """The installed paths of a wheel's files, and the files that are generated.

    Raises:
        LayerError: two files have the same path, or a member has no place in an environment.
    """

    def __init__(self, wheel: WheelArchive, fetched: Fetched, context: LinkContext) -> None:
        self._wheel = wheel
        self._context = context
        self._data = wheel.dist_info.removesuffix(".dist-info") + ".data/"
        self._rewritten_bytes = 0
        self.root = context.prefix.strip("/") + "/"
        """Image path of the prefix, with a slash at the end."""
        metadata = f"{context.site_packages}/{wheel.dist_info}"
        self.record_path = f"{metadata}/RECORD"

        scripts = self._entry_points()
        self.files = [*self._copied({script.path for script in scripts}), *scripts]
        """In the order of the layer, without RECORD."""
        self.files.append(_WheelFile(f"{metadata}/INSTALLER", data=b"builder\n"))
        if fetched.package.name in context.requested:
            self.files.append(_WheelFile(f"{metadata}/REQUESTED", data=b""))

        repeated = duplicate([*(file.path for file in self.files), self.record_path])
        if repeated is not None:
            raise wheel.fault(f"two members are installed to {repeated!r}")

    def _copied(self, entry_points: set[str]) -> list[_WheelFile]:
        """Return the members to install; ``entry_points`` are the paths of generated scripts."""
        copied = []
        metadata = self._wheel.dist_info + "/"
        for name, member in self._wheel.members.items():
            if name.startswith(metadata) and name[len(metadata) :] in _INSTALLER_FILES:
                continue
            if "__pycache__" in name.split("/")[:-1]:
                continue  # like installer: bytecode of another interpreter is not installed
            path, is_script = self._place(name)
            mode = member.external_attr >> 16
            if not is_script:
                executable = stat.S_ISREG(mode) and bool(mode & 0o111)
                copied.append(_WheelFile(path, 0o755 if executable else 0o644, member))
            elif path not in entry_points:
                # Like pip: a wrapper that an old build tool wrote for an entry point is left out.
                copied.append(_WheelFile(path, 0o755, member, self._rewritten(member)))
        return copied

    def _place(self, name: str) -> tuple[str, bool]:
        """Return a member's path below the prefix, and whether it is a script."""
        site = self._context.site_packages
        if not name.startswith(self._data):
            return f"{site}/{name}", False
        scheme, _, rest = name[len(self._data) :].partition("/")
        if not rest or scheme not in SCHEME_NAMES:
            raise self._wheel.fault(f"{name!r} is in no known scheme ({', '.join(SCHEME_NAMES)})")
        if scheme == "scripts":
            return f"bin/{rest}", True
        if scheme == "data":
            return rest, False
        if scheme == "headers":
            return f"include/python{self._context.python}/{self._wheel.distribution}/{rest}", False
        return f"{site}/{rest}", False

    def _rewritten(self, member: zipfile.ZipInfo) -> bytes | None:
        """Return a script with the shebang of the image's interpreter (PEP 427).

        Returns None for a file that does not begin with ``#!python``.
        """
        if self._wheel.start(member, len(_ANY_SHEBANG)) != _ANY_SHEBANG:
            return None
        self._rewritten_bytes += member.file_size
        if self._rewritten_bytes > bounds.MAX_SCRIPTS:
            raise self._wheel.fault(f"its scripts have more than {bounds.MAX_SCRIPTS} bytes")
        rest = self._wheel.read(member, bounds.MAX_SCRIPTS).partition(b"\n")[2]
        return _shebang(self._context.interpreter) + rest

    def _entry_points(self) -> list[_WheelFile]:
        """Return the scripts that ``entry_points.txt`` declares."""
        if f"{self._wheel.dist_info}/entry_points.txt" not in self._wheel.members:
            return []
        scripts = {}
        try:
            member = self._wheel.metadata("entry_points.txt")
            text = self._wheel.read(member, bounds.MAX_METADATA).decode()
            for name, module, attribute, section in parse_entrypoints(text):
                script = Script(name, module, attribute, section)
                filename, data = script.generate(self._context.interpreter, "posix")
                if "/" in filename:
                    raise self._wheel.fault(f"the entry point {name!r} has a slash")
                if not filename.isprintable():
                    raise self._wheel.fault(f"the entry point {name!r} has a control character")
                check_path(filename)
                scripts[filename] = _WheelFile(f"bin/{filename}", 0o755, data=data)
        except (configparser.Error, UnicodeDecodeError, AssertionError) as e:
            why = str(e) or "an entry point is not MODULE:FUNCTION"
            raise self._wheel.fault(f"entry_points.txt cannot be read: {why}") from None
        return list(scripts.values())

    def record(self) -> bytes:
        """Return RECORD for the installed files, in the archive's order.

        Unchanged files have the hashes of the wheel's RECORD.
        """
        hashes = self._hashes()
        rows: list[tuple[str, str, int | str]] = []
        for file in self.files:
            path = self._record_path(file.path)
            if file.data is not None:
                rows.append((path, _hash([file.data]), len(file.data)))
            elif file.member is not None:
                digest = hashes.get(file.member.filename) or _hash(self._wheel.chunks(file.member))
                rows.append((path, digest, file.size))
        rows.append((f"{self._wheel.dist_info}/RECORD", "", ""))
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue().encode()

    def _hashes(self) -> dict[str, str]:
        """Return the hashes in the wheel's own RECORD, by member."""
        try:
            text = self._wheel.read(self._wheel.metadata("RECORD"), bounds.MAX_LISTING).decode()
            rows = list(csv.reader(io.StringIO(text)))
        except (UnicodeDecodeError, csv.Error) as e:
            raise self._wheel.fault(f"{self._wheel.dist_info}/RECORD cannot be read: {e}") from None
        return {row[0]: row[1] for row in rows if len(row) == 3}

    def _record_path(self, path: str) -> str:
        """Return a path below the prefix as RECORD has it: relative to site-packages."""
        site = self._context.site_packages + "/"
        return path[len(site) :] if path.startswith(site) else "../" * site.count("/") + path


def _shebang(interpreter: str) -> bytes:
    """Return the first line (or lines) of a script, as installer writes it for entry points."""
    _, wrapper = Script("x", "x", "x", "console").generate(interpreter, "posix")
    return wrapper[: wrapper.index(b"# -*- coding")]


def _hash(chunks: Iterable[bytes]) -> str:
    """Return the hash of a content as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(sha256_of(chunks)).decode().rstrip("=")
