"""A deterministic tar writer: POSIX ustar, with pax records only for what ustar cannot express.

pax records are needed for long names, names that are not ASCII, and files of 8 GiB or more. The
owner is 0:0 without names, all members have the same time, and members have the order of the
entries. A parent directory that no entry lists is written once, with mode 0755, before its first
child.

Headers are packed here, not with ``tarfile``, which takes four times as long. That matters for
environments of 30,000 files. The tests read every kind of header back with ``tarfile``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from builder.core.errors import LayerError
from builder.formats.layers import bounds
from builder.formats.trees.member import ancestors

from .entry import Entry, Kind

BLOCK = 512
END = bytes(2 * BLOCK)
#: The type flags of tar headers.
TYPES: Mapping[Kind, bytes] = {"file": b"0", "hardlink": b"1", "symlink": b"2", "dir": b"5"}
#: Sizes from here on do not fit ustar's field of 11 octal digits.
_MAX_OCTAL = 8**11
#: Characters that no pax record can hold: NUL, and bytes that are not UTF-8 (lone surrogates in a
#: Python string).
_TEXT = re.compile("[\0\ud800-\udfff]")
#: An empty part (so also a leading or trailing slash), ``.`` or ``..``.
_UNSAFE = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|" + _TEXT.pattern)
#: Characters of a path that has few enough bytes and parts for sure.
_SHORT = 100
_HOSTILE = "the package is damaged or hostile; do not use it"
_BUG = "this is a bug in builder; please report it"


def padding(size: int) -> int:
    """Return how many zero bytes follow ``size`` bytes of content."""
    return -size % BLOCK


def header(entry: Entry, mtime: int) -> bytes:
    """Return the header of an entry: one ustar block, after a pax header where ustar is not enough.

    Args:
        entry: the member.
        mtime: its time, seconds since 1970.
    """
    pax: dict[str, str] = {}
    path = entry.path + ("/" if entry.kind == "dir" else "")
    fields = _name_fields(path, pax)

    target = _ascii(entry.target)
    if target is None or len(target) > 100:
        pax["linkpath"] = entry.target
        target = entry.target.encode("ascii", "replace")[:100]

    size = entry.size if entry.kind == "file" else 0
    if size >= _MAX_OCTAL:
        pax["size"] = str(size)
        size = 0

    block = _block(fields, entry.mode, size, mtime, TYPES[entry.kind], target)
    return _pax(pax, mtime) + block if pax else block


def _name_fields(path: str, pax: dict[str, str]) -> tuple[bytes, bytes]:
    """Return ustar's prefix and name fields; a path that does not fit them goes to ``pax``."""
    short = _ascii(path)
    if short is not None and len(short) <= 100:
        return b"", short
    split = _split(short) if short is not None else None
    if split is not None:
        return split
    pax["path"] = path
    return b"", path.encode("ascii", "replace")[:100]


def _ascii(text: str) -> bytes | None:
    return text.encode() if text.isascii() else None


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Return ustar's prefix and name, split at a slash, or None if the name does not fit them."""
    if len(name) > 256:
        return None
    at = name.rfind(b"/", 0, 156)
    while at > 0 and at == len(name) - 1:
        at = name.rfind(b"/", 0, at)
    if at <= 0 or len(name) - at - 1 > 100:
        return None
    return name[:at], name[at + 1 :]


def _block(
    path: tuple[bytes, bytes], mode: int, size: int, mtime: int, kind: bytes, target: bytes
) -> bytes:
    """Pack one header block; ``path`` are the prefix and name fields.

    The checksum is that of the block with spaces in place of the checksum.
    """
    prefix, name = path
    template = (
        b"%b%07o\x000000000\x000000000\x00%011o\x00%011o\x00        "
        b"%b%bustar\x0000%b0000000\x000000000\x00%b"
    )
    block = template % (
        name.ljust(100, b"\0"),
        mode,
        size,
        mtime,
        kind,
        target.ljust(100, b"\0"),
        bytes(64),
        prefix.ljust(167, b"\0"),
    )
    return b"%b%06o\x00 %b" % (block[:148], sum(block), block[156:])


def _pax(records: dict[str, str], mtime: int) -> bytes:
    data = b"".join(_record(k, v) for k, v in sorted(records.items()))
    block = _block((b"", b"././@PaxHeader"), 0o644, len(data), mtime, b"x", b"")
    return block + data + bytes(padding(len(data)))


def _record(key: str, value: str) -> bytes:
    """Return a pax record, ``LENGTH key=value\\n``, where LENGTH counts its own digits too."""
    body = f" {key}={value}\n".encode()
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def with_parents(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Return the entries with missing parent directories inserted before their first child.

    A directory that is listed twice is written once.

    Raises:
        LayerError: a path is unsafe or appears twice, a file is where a directory is needed, or a
            hard link repeats something that does not precede it in this layer.
    """
    folders = {""}
    others: set[str] = set()
    for entry in entries:
        path = entry.path
        check_path(path)

        parent = path.rpartition("/")[0]
        if parent not in folders:
            for folder in sorted({*ancestors(path)} - folders, key=len):  # from the top down
                if folder in others:
                    raise _duplicate(folder)
                folders.add(folder)
                yield Entry(folder, "dir", 0o755)

        if path in others or (path in folders and entry.kind != "dir"):
            raise _duplicate(path)
        if entry.kind != "dir":
            _check_target(entry, others)
            others.add(path)
        elif path in folders:
            continue
        else:
            folders.add(path)
        yield entry


def _check_target(entry: Entry, others: set[str]) -> None:
    """Raise LayerError if a link cannot be written; ``others`` are earlier files and links."""
    if entry.kind == "hardlink" and entry.target not in others:
        raise LayerError(
            f"the hard link /{entry.path} repeats /{entry.target}, which does not precede it in the layer",
            _BUG,
        )
    if entry.kind == "symlink" and (not entry.target or _TEXT.search(entry.target)):
        what = f"the symlink /{entry.path} has an impossible target {entry.target!r}"
        raise LayerError(what, _HOSTILE)


def _duplicate(path: str) -> LayerError:
    hint = "check which packages, or which files: of the recipe, add it"
    return LayerError(f"/{path} appears twice in one layer", hint)


def check_path(path: str) -> None:
    """Raise LayerError unless a path is relative, normalized, UTF-8, short, without ``..``."""
    if _UNSAFE.search(path):
        raise LayerError(f"unsafe path in a layer: {path!r}", _HOSTILE)
    if len(path) <= _SHORT:
        return
    size, parts = len(path.encode()), path.count("/") + 1
    if size > bounds.MAX_PATH or parts > bounds.MAX_DEPTH:
        raise LayerError(
            f"the path {path[:100]!r}... has {size} bytes in {parts} parts; "
            f"at most {bounds.MAX_PATH} bytes and {bounds.MAX_DEPTH} parts are allowed",
            _HOSTILE,
        )


def is_safe(path: str) -> bool:
    """Return whether :func:`check_path` accepts a path."""
    try:
        check_path(path)
    except LayerError:
        return False
    return True
