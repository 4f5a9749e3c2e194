"""Compiles modules, in a container, with the Python that they are for.

    python worker.py FOLDER PROCESSES

It needs the standard library only, and Python 3.7. It reads the files ``NAME.src`` of the folder,
and writes ``NAME.pyc`` for each::

    NAME.src    per module: length of the path, length of the text (both 32-bit little-endian), path, text
    NAME.pyc    per module: length of the .pyc (32-bit little-endian; 0: it does not compile), the .pyc

A process takes a file by renaming it to ``NAME.taken``, so a file without a result is one that its
process did not survive. The file ``python.json`` describes this Python.

The bytes depend on the text, the path and the version of Python alone:

- The .pyc holds the hash of its source in place of the time, and is not compared with it (PEP 552,
  "unchecked").
- marshal marks an object that others refer to, too, and a string of the code may be one that
  another module has already. So a reference to each string is held meanwhile: all of them are
  marked.
- marshal marks interned strings, too. Of those that are no names, ``json`` interns ``[ ] { }``: without this
  import the bytes differ.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import marshal
import os
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LENGTHS = struct.Struct("<II")
LENGTH = struct.Struct("<I")
#: The flags of a .pyc: hash-based, and not checked.
UNCHECKED = (1).to_bytes(4, "little")
#: Python 3.11 and later write the elements of a set in a fixed order.
HAS_SORTED_SETS = sys.version_info >= (3, 11)
#: The types of constants that a set orders by their value.
PLAIN = (str, bytes, int, float, complex)
#: What compile() raises for text that is no module of this Python; pip leaves these out, too.
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, OverflowError)


def compiled(path: str, source: bytes) -> bytes:
    """Return the .pyc of a module; empty if it does not compile."""
    try:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except NOT_PYTHON:
        return b""
    if not HAS_SORTED_SETS and has_unsorted_set(code):
        return b""
    strings = strings_of(code)
    data = marshal.dumps(code)
    del strings
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + data


def has_unsorted_set(code: types.CodeType) -> bool:
    """Return whether a set in the code has an order that depends on where objects are in memory.

    Of the values that a constant set can hold, only None, an ellipsis, and tuples and sets with
    them are ordered by their address; see :data:`HAS_SORTED_SETS`.
    """
    found: list[Any] = [code]
    while found:
        value = found.pop()
        if isinstance(value, types.CodeType):
            found.extend(value.co_consts)
        elif isinstance(value, tuple):
            found.extend(value)
        elif isinstance(value, frozenset) and not all(isinstance(item, PLAIN) for item in value):
            return True
    return False


def strings_of(code: types.CodeType) -> list[str]:
    """Return all strings of a code object and of those in it, and no other object."""
    strings: list[str] = []
    codes = [code]
    for one in codes:
        strings += [one.co_name, one.co_filename, getattr(one, "co_qualname", "")]
        strings += [*one.co_names, *one.co_varnames, *one.co_freevars, *one.co_cellvars]
        constants = [*one.co_consts]
        for value in constants:
            if isinstance(value, str):
                strings.append(value)
            elif isinstance(value, (tuple, frozenset)):
                constants.extend(value)
            elif isinstance(value, types.CodeType):
                codes.append(value)
    return strings


def modules(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield path and text of each module of a file."""
    at = 0
    while at < len(data):
        path_length, length = LENGTHS.unpack_from(data, at)
        start = at + LENGTHS.size
        at = start + path_length + length
        path = data[start : start + path_length].decode("utf-8", "surrogateescape")
        yield path, data[start + path_length : at]


def compile_file(taken: Path) -> None:
    """Compile the modules of one file."""
    part = taken.with_suffix(".part")
    with part.open("wb") as out:
        for path, source in modules(taken.read_bytes()):
            pyc = compiled(path, source)
            out.write(LENGTH.pack(len(pyc)) + pyc)
    part.rename(taken.with_suffix(".pyc"))
    taken.unlink()


def compile_some(files: list[Path]) -> None:
    """Compile the files that no other process has taken."""
    for file in files:
        taken = file.with_suffix(".taken")
        try:
            file.rename(taken)
        except FileNotFoundError:
            continue
        compile_file(taken)


def main(folder: Path, processes: int) -> int:
    """Compile all files of a folder; returns 1 if a process failed."""
    # compiling makes many objects and few cycles: 8 % less CPU time
    gc.set_threshold(100_000, 50, 50)
    python = {"tag": sys.implementation.cache_tag, "version": list(sys.version_info[:3])}
    (folder / "python.json").write_text(json.dumps(python))
    files = sorted(folder.glob("*.src"))
    children = []
    for _ in range(processes):
        child = os.fork()
        if not child:
            status = 1
            try:
                compile_some(files)
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return max(1 if os.waitpid(child, 0)[1] else 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
