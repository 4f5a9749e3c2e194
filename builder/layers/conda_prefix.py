"""Putting the environment's prefix where a conda package has a placeholder, as rattler and conda do it, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: Linux reads no more of a ``#!`` line (conda and rattler keep to it on all Linux versions).
MAX_SHEBANG = 127
_SHEBANG = re.compile(rb"#! *(/(?:\\ |[^ \n\r\t])*)([^\n]*)")
_PYTHON = re.compile(rb"python(\d+(\.\d+)?)?")


def replaced(chunks: Iterable[bytes], placeholder: str, prefix: str, *, binary: bool) -> Iterator[bytes]:
    """A file's content with the placeholder replaced.

    Text: every occurrence; a first line ``#!`` that the kernel would cut or split is turned into one that works. Binary: every
    occurrence in each C string, NUL-padded to the length that the string had.

    Raises:
        ValueError: a binary file, and the prefix is longer than the placeholder.
    """
    old, new = placeholder.encode(), prefix.encode()
    if not binary:
        return _text(chunks, old, new)
    if len(new) > len(old):
        raise ValueError(
            f"the prefix {prefix} is longer than the {len(old)} bytes that the package leaves for it"
        )
    return _binary(chunks, old, new)


def entry_point_shebang(interpreter: str) -> str:
    """The first line (or two) of a generated Python script, as rattler writes it: valid for any length and for blanks."""
    if len(interpreter.encode()) + 2 > MAX_SHEBANG or " " in interpreter:
        return f"#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\" #'''"
    return f"#!{interpreter}"


def _text(chunks: Iterable[bytes], old: bytes, new: bytes) -> Iterator[bytes]:
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
        keep = min(len(old) - 1, len(last))  # an occurrence may go on in the next chunk
        yield new.join([*whole, last[: len(last) - keep]])
        pending = last[len(last) - keep :]
    yield pending


def _shebang(line: bytes, old: bytes, new: bytes) -> bytes:
    if b" " in new:
        return _indirect(line).replace(old, new) if old in line else line
    line = line.replace(old, new)
    return line if len(line) <= MAX_SHEBANG else _indirect(line)


def _indirect(line: bytes) -> bytes:
    """A ``#!`` line that finds its program by way of sh (Python) or env (anything else)."""
    match = _SHEBANG.fullmatch(line)
    if match is None:
        return line
    program, options = match.groups()
    name = program.rpartition(b"/")[2]
    if _PYTHON.fullmatch(name):
        return b"#!/bin/sh\n'''exec' \"%b\"%b \"$0\" \"$@\" #'''" % (program, options)
    return b"#!/usr/bin/env %b%b" % (name, options)


def _binary(chunks: Iterable[bytes], old: bytes, new: bytes) -> Iterator[bytes]:
    pending = b""
    for chunk in chunks:
        pending += chunk
        whole = pending.rfind(b"\0") + 1  # so far all strings are complete
        if whole:
            yield _strings(pending[:whole], old, new)
            pending = pending[whole:]
    yield _strings(pending, old, new)


def _strings(data: bytes, old: bytes, new: bytes) -> bytes:
    out, at = [], 0
    while (start := data.find(old, at)) >= 0:
        end = data.find(b"\0", start)
        end = len(data) if end < 0 else end
        text = data[start:end].replace(old, new)
        out += [data[at:start], text, bytes(end - start - len(text))]
        at = end
    return b"".join([*out, data[at:]]) if out else data
