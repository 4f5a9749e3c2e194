"""A deterministic tar writer: POSIX ustar, with pax records only where ustar cannot say it (long names, not ASCII, 8 GiB).

Owner is 0:0 without names, the time is given, and entries come in the order given. A parent directory that nobody listed is
written once, mode 0755, before its first child. Headers are made by hand because ``tarfile`` takes four times as long, which
counts at 30,000 files; the tests read every form back with ``tarfile``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from builder.errors import LayerError
from builder.layers.entry import Entry

BLOCK = 512
END = bytes(2 * BLOCK)
_TYPES = {"file": b"0", "hardlink": b"1", "symlink": b"2", "dir": b"5"}
_MAX_OCTAL = 8**11
#: NUL, and what is not UTF-8 (Python holds such bytes as lone surrogates): neither can stand in a pax record.
_TEXT = re.compile("[\0\ud800-\udfff]")
#: An empty part (so a leading or trailing slash too), ``.`` or ``..``.
_UNSAFE = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|" + _TEXT.pattern)
_HOSTILE = "the package is damaged or hostile; do not use it"
_REPORT = "this is a fault of builder: report it"


def padding(size: int) -> int:
    """How many zero bytes follow ``size`` bytes of content."""
    return -size % BLOCK


def header(entry: Entry, mtime: int) -> bytes:
    """The header block or blocks of an entry (ustar; preceded by a pax header where needed)."""
    name = entry.path + ("/" if entry.kind == "dir" else "")
    size = entry.size if entry.kind == "file" else 0
    pax: dict[str, str] = {}
    prefix, short = b"", _ascii(name)
    if short is None or len(short) > 100:
        split = _split(short) if short is not None else None
        if split is None:
            pax["path"] = name
            short = name.encode("ascii", "replace")[:100]
        else:
            prefix, short = split
    target = _ascii(entry.target)
    if target is None or len(target) > 100:
        pax["linkpath"] = entry.target
        target = entry.target.encode("ascii", "replace")[:100]
    if size >= _MAX_OCTAL:
        pax["size"] = str(size)
        size_field = 0
    else:
        size_field = size
    block = _block(short, entry.mode, size_field, mtime, _TYPES[entry.kind], target, prefix)
    return _pax(pax, mtime) + block if pax else block


def _ascii(text: str) -> bytes | None:
    return text.encode() if text.isascii() else None


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """ustar's prefix and name, split at a slash, or None when it cannot be."""
    if len(name) > 256:
        return None
    at = name.rfind(b"/", 0, 156)
    while at > 0 and at == len(name) - 1:
        at = name.rfind(b"/", 0, at)
    if at <= 0 or len(name) - at - 1 > 100:
        return None
    return name[:at], name[at + 1 :]


def _block(name: bytes, mode: int, size: int, mtime: int, kind: bytes, target: bytes, prefix: bytes) -> bytes:
    block = (
        b"%b%07o\x000000000\x000000000\x00%011o\x00%011o\x00        %b%bustar\x0000%b0000000\x000000000\x00%b"
        % (
            name.ljust(100, b"\0"),
            mode,
            size,
            mtime,
            kind,
            target.ljust(100, b"\0"),
            bytes(64),
            prefix.ljust(167, b"\0"),
        )
    )
    return b"%b%06o\x00 %b" % (block[:148], sum(block), block[156:])


def _pax(records: dict[str, str], mtime: int) -> bytes:
    data = b"".join(_record(k, v) for k, v in sorted(records.items()))
    return (
        _block(b"././@PaxHeader", 0o644, len(data), mtime, b"x", b"", b"") + data + bytes(padding(len(data)))
    )


def _record(key: str, value: str) -> bytes:
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def with_parents(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries, each parent directory put before its first child once; a directory listed twice is written once.

    Raises:
        LayerError: an unsafe path, a path that stands twice, a file where a folder is needed, or a hard link to something that
            is not before it in this layer.
    """
    folders: set[str] = set()
    others: set[str] = set()
    for entry in entries:
        path = entry.path
        check_path(path)
        parent = path.rpartition("/")[0]
        if parent and parent not in folders:
            parts = parent.split("/")
            for i in range(1, len(parts) + 1):
                folder = "/".join(parts[:i])
                if folder in others:
                    raise _clash(folder)
                if folder not in folders:
                    folders.add(folder)
                    yield Entry(folder, "dir", 0o755)
        if path in others or (path in folders and entry.kind != "dir"):
            raise _clash(path)
        if entry.kind == "dir":
            if path in folders:
                continue
            folders.add(path)
        else:
            if entry.kind == "hardlink" and entry.target not in others:
                raise LayerError(
                    f"the hard link /{path} repeats /{entry.target}, which is not before it in the layer",
                    _REPORT,
                )
            if entry.kind == "symlink" and (not entry.target or _TEXT.search(entry.target)):
                raise LayerError(f"the symlink /{path} has an impossible target {entry.target!r}", _HOSTILE)
            others.add(path)
        yield entry


def _clash(path: str) -> LayerError:
    return LayerError(
        f"/{path} stands twice in one layer", "see which packages, or files of the recipe, bring it"
    )


def check_path(path: str) -> None:
    """Raises LayerError unless ``path`` is relative, normal, UTF-8 and stays inside."""
    if _UNSAFE.search(path):
        raise LayerError(f"unsafe path in a layer: {path!r}", _HOSTILE)
