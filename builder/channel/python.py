"""The files of the channel's python package: Debian's interpreter and standard library, without Debian's
changes.

Debian's Python looks for packages in ``dist-packages`` and installs below ``/usr/local``. Here packages are
in ``site-packages`` and everything is relative to the interpreter, as in conda's python.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from builder.channel.contents import PYTHON
from builder.channel.debs import unknown
from builder.channel.elf import with_rpath
from builder.channel.package import File

_HOME = f"lib/python{PYTHON}"
#: Files that only Debian has, or that need libraries that conda's python does not have. EXTERNALLY-MANAGED
#: would forbid pip (PEP 668).
_LEFT_OUT = re.compile(
    rf"{_HOME}/(sitecustomize\.py|_distutils_system_mod\.py|EXTERNALLY-MANAGED|lib-dynload/(nis|_dbm)\..*)"
)
#: Debian's words in the module ``site``, and upstream's.
_SITE = {"dist-packages": "site-packages", "local/lib": "lib"}


def python_files(trees: Sequence[Path], work: Path) -> dict[str, File]:
    """The files of the python package, by their paths below the prefix.

    Args:
        trees: the unpacked Debian packages.
        work: a folder for temporary files.

    Raises:
        FetchError: Debian's Python is not as expected.
    """
    files: dict[str, File] = {}
    for tree in trees:
        for target, path in _chosen(tree):
            files[target] = _file(target, path, tree, work)
    _restore_upstream(files)
    interpreter = files[f"bin/python{PYTHON}"].data
    files[f"bin/python{PYTHON}"] = File(with_frozen_site(interpreter), executable=True)
    files["bin/python3"] = files["bin/python"] = File(link=f"python{PYTHON}")
    files[f"{_HOME}/site-packages/README.txt"] = File(b"This directory contains site-packages.\n")
    return files


def _chosen(tree: Path) -> Iterator[tuple[str, Path]]:
    """The files that belong to the package, each with its path below the prefix."""
    for path in sorted(tree.rglob("*")):
        target = path.relative_to(tree).as_posix().removeprefix("usr/")
        if not target.startswith((f"{_HOME}/", "bin/")) or _LEFT_OUT.fullmatch(target):
            continue
        if path.is_file():  # not so for links to /etc, which the tree does not have
            yield target, path


def _file(target: str, path: Path, tree: Path, work: Path) -> File:
    if path.is_symlink() and path.resolve().is_relative_to((tree / "usr" / _HOME).resolve()):
        return File(link=str(path.readlink()))
    data = path.read_bytes()
    if target.startswith("bin/"):
        # A library that has a RUNPATH (torch has such libraries) makes the loader ignore the
        # interpreter's RPATH. The interpreter loads libstdc++ itself, so such a library finds it loaded.
        return File(with_rpath(data, "$ORIGIN/../lib", work, "libstdc++.so.6"), executable=True)
    return File(with_rpath(data, "$ORIGIN/../..", work))


def _restore_upstream(files: dict[str, File]) -> None:
    """Replaces Debian's changes in the standard library."""
    _replace(files, f"{_HOME}/site.py", {f'"{old}"': f'"{new}"' for old, new in _SITE.items()})
    schemes = {
        "os.environ.get('DEB_PYTHON_INSTALL_LAYOUT', 'posix_local')": "'posix_prefix'",
        "prefix_scheme = 'posix_local'": "prefix_scheme = 'posix_prefix'",
    }
    _replace(files, f"{_HOME}/sysconfig.py", schemes)
    zones = "os.path.join(sysconfig.get_config_var('installed_base'), 'share', 'zoneinfo')"
    _replace(files, f"{_HOME}/zoneinfo/_tzpath.py", {'sysconfig.get_config_var("TZPATH")': zones})


def _replace(files: dict[str, File], target: str, replacements: dict[str, str]) -> None:
    text = files[target].data.decode() if target in files else ""
    for old, new in replacements.items():
        if old not in text:
            raise unknown(target)
        text = text.replace(old, new)
    files[target] = File(text.encode())


def with_frozen_site(interpreter: bytes) -> bytes:
    """The interpreter with :data:`_SITE` applied to its frozen copy of ``site``, which it uses instead of
    ``site.py``.

    The copy contains each string as a static PyASCIIObject (CPython 3.11, Include/cpython/unicodeobject.h):
    48 bytes with reference count, type, length, hash, state and wstr, then the characters and a NUL::

        offset   -48        -40   -32     -24   -16    -8    0
                 refcount   type  length  hash  state  wstr  dist-packages\\0

    The new string is never longer than the old one. It is written over it, padded with NULs, and the length
    is set.

    Raises:
        FetchError: a string is missing, or appears more than once, or is not such an object.
    """
    patched = bytearray(interpreter)
    for old, new in _SITE.items():
        quoted = b"\0" + old.encode() + b"\0"
        start = patched.find(quoted) + 1
        if not start or patched.count(quoted) != 1:
            raise unknown(f"python{PYTHON}")
        length_at = start - 32
        if struct.unpack_from("<q", patched, length_at)[0] != len(old):
            raise unknown(f"python{PYTHON}")
        struct.pack_into("<q", patched, length_at, len(new))
        patched[start : start + len(old)] = new.encode().ljust(len(old), b"\0")
    return bytes(patched)
