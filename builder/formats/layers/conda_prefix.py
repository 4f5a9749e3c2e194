"""Replaces the placeholder in conda packages by the prefix, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from builder.core.errors import LayerError

#: Linux before 5.1 reads no more bytes of a ``#!`` line. conda and rattler apply this limit to all
#: kernels.
MAX_SHEBANG = 127
#: Bytes of a C string, or of a binary file without any, which is held in memory.
MAX_STRING = 64 << 20
_SHEBANG = re.compile(rb"#! *(/(?:\\ |[^ \n\r\t])*)([^\n]*)")
_PYTHON = re.compile(rb"python(\d+(\.\d+)?)?")


def replaced(
    chunks: Iterable[bytes], placeholder: str, prefix: str, *, binary: bool
) -> Iterator[bytes]:
    """Return a file's content with the placeholder replaced.

    In a text file every occurrence is replaced. If the kernel would cut or split the first line
    (``#!``), it becomes one that works. In a binary file the occurrences in C strings are replaced,
    and each string is padded with NUL to the same length:

        before   /placeholder/lib\\0next
        after    /opt/conda/lib\\0\\0\\0next

    Args:
        chunks: the content.
        placeholder: the build-time prefix.
        prefix: the environment's prefix.
        binary: how to replace it.

    Raises:
        ValueError: the file is binary, and the prefix is longer than the placeholder.
        LayerError: while the content is read: a C string is too long.
    """
    old, new = placeholder.encode(), prefix.encode()
    if not binary:
        return _text(chunks, old, new)
    if len(new) > len(old):
        raise ValueError(
            f"the prefix {prefix} is longer than the {len(old)} bytes that the package reserves for it"
        )
    return _binary(chunks, old, new)


def entry_point_shebang(interpreter: str) -> str:
    """Return the first line (or two) of a generated Python script, as rattler writes it.

    It works for paths of any length and for paths with spaces.
    """
    if len(interpreter.encode()) + 2 > MAX_SHEBANG or " " in interpreter:
        return f"#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\" #'''"
    return f"#!{interpreter}"


def _text(chunks: Iterable[bytes], old: bytes, new: bytes) -> Iterator[bytes]:
    """Replace every occurrence.

    An occurrence may be split over two chunks, so a chunk's end is held back.
    """
    pending = b""
    first = True
    for chunk in chunks:
        pending += chunk
        if first:
            first = False
            if pending.startswith(b"#!"):
                line, newline, pending = pending.partition(b"\n")
                yield _shebang(line, old, new) + newline
        *whole, last = pending.split(old)
        held = min(len(old) - 1, len(last))
        yield new.join([*whole, last[: len(last) - held]])
        pending = last[len(last) - held :]
    yield pending


def _shebang(line: bytes, old: bytes, new: bytes) -> bytes:
    if b" " in new:
        return _indirect(line).replace(old, new) if old in line else line
    line = line.replace(old, new)
    return line if len(line) <= MAX_SHEBANG else _indirect(line)


def _indirect(line: bytes) -> bytes:
    """Return a ``#!`` line that starts Python by way of sh, other programs by way of env."""
    match = _SHEBANG.fullmatch(line)
    if match is None:
        return line
    program, options = match.groups()
    name = program.rpartition(b"/")[2]
    if _PYTHON.fullmatch(name):
        return b"#!/bin/sh\n'''exec' \"%b\"%b \"$0\" \"$@\" #'''" % (program, options)
    return b"#!/usr/bin/env %b%b" % (name, options)


def _binary(chunks: Iterable[bytes], old: bytes, new: bytes) -> Iterator[bytes]:
    """Replace the occurrences in complete C strings; hold back a chunk's incomplete last one."""
    pending = b""
    for chunk in chunks:
        pending += chunk
        complete = pending.rfind(b"\0") + 1
        if complete:
            yield _strings(pending[:complete], old, new)
            pending = pending[complete:]
        if len(pending) > MAX_STRING:
            raise LayerError(
                f"a binary file with a prefix has a C string of more than {MAX_STRING} bytes",
                "the package is damaged or hostile: lock another build",
            )
    yield _strings(pending, old, new)


def _strings(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace the occurrences in C strings, and pad each string to its former length."""
    out = []
    at = 0
    while (start := data.find(old, at)) >= 0:
        end = data.find(b"\0", start)
        end = len(data) if end < 0 else end
        text = data[start:end].replace(old, new)
        out += [data[at:start], text, bytes(end - start - len(text))]
        at = end
    return b"".join([*out, data[at:]]) if out else data
