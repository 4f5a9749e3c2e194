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

from builder.build.fetch.condapackage import File
from tests.support.debian_channel.contents import PYTHON
from tests.support.debian_channel.debs import unknown, with_rpath

_HOME = f"lib/python{PYTHON}"
_INCLUDE = f"include/python{PYTHON}"
#: Where the package's files are, below Debian's ``usr``.
_FOLDERS = (f"{_HOME}/", f"bin/python{PYTHON}", f"{_INCLUDE}/", "share/python-wheels/")
#: Files that only Debian has, that need libraries that conda's python does not have, or that are for programs
#: that contain an interpreter (config: 20 MB of static libraries). EXTERNALLY-MANAGED would forbid pip
#: (PEP 668).
_LEFT_OUT = re.compile(
    rf"{_HOME}/(sitecustomize\.py|_distutils_system_mod\.py|EXTERNALLY-MANAGED|lib-dynload/(nis|_dbm)\..*"
    r"|config-.*|__pycache__/.*)"
)
#: The header that Debian has once per architecture.
_PYCONFIG = re.compile(rf"include/[^/]+-linux-gnu/python{re.escape(PYTHON)}/pyconfig\.h")
#: Debian's word in the module ``site``, and upstream's.
_DIST, _SITE = "dist-packages", "site-packages"
#: What Debian adds to ``site.getsitepackages``, with :data:`_SITE` in it.
_ADDED_TO_SITE = f"""\
            if is_virtual_environment:
                sitepackages.append(os.path.join(prefix, "lib",
                                                 "python%d.%d" % sys.version_info[:2],
                                                 "site-packages"))
            sitepackages.append(os.path.join(prefix, "local/lib",
                                             "python%d.%d" % sys.version_info[:2],
                                             "{_SITE}"))
            sitepackages.append(os.path.join(prefix, "lib",
                                             "python3",
                                             "{_SITE}"))
            # this one is deprecated for Debian
"""
#: The same in bytecode: its first instructions, what follows it 406 bytes later, and the jump over it.
#: LOAD_FAST is_virtual_environment, POP_JUMP_FORWARD_IF_FALSE 74, LOAD_FAST sitepackages, LOAD_METHOD append
_ADDED_CODE = bytes.fromhex("7c03 724a 7c01 a00a")
#: LOAD_FAST libdirs, GET_ITER, FOR_ITER 78
_NEXT_CODE = bytes.fromhex("7c05 4400 5d4e")
_ADDED_LENGTH = 406
#: JUMP_FORWARD 202 (instructions of two bytes, counted from the next one)
_JUMP = bytes.fromhex("6eca")
#: Added to the module with the build's variables, in which the prefix is ``/usr``.
_RELOCATION = """

# builder: the prefix is the one of the running interpreter
import sys
_libdir = '/usr/lib/' + build_time_vars['MULTIARCH']
for _name, _value in build_time_vars.items():
    if isinstance(_value, str) and _value.startswith('/usr') and not _value.startswith('/usr/bin/'):
        _value = _value.replace(_libdir, '/usr/lib').replace('/usr', sys.base_prefix)
        build_time_vars[_name] = _value
"""


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
        if _PYCONFIG.fullmatch(target):
            yield f"{_INCLUDE}/pyconfig.h", path
            continue
        if not target.startswith(_FOLDERS) or _LEFT_OUT.fullmatch(target):
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
    _replace(files, f"{_HOME}/site.py", {f'"{_DIST}"': f'"{_SITE}"'})
    _replace(files, f"{_HOME}/site.py", {_ADDED_TO_SITE: ""})
    schemes = {
        "os.environ.get('DEB_PYTHON_INSTALL_LAYOUT', 'posix_local')": "'posix_prefix'",
        "prefix_scheme = 'posix_local'": "prefix_scheme = 'posix_prefix'",
    }
    _replace(files, f"{_HOME}/sysconfig.py", schemes)
    zones = "os.path.join(sysconfig.get_config_var('installed_base'), 'share', 'zoneinfo')"
    _replace(files, f"{_HOME}/zoneinfo/_tzpath.py", {'sysconfig.get_config_var("TZPATH")': zones})
    # Debian's distutils installs into dist-packages, and its egg-info has no Python version in its name.
    _replace(files, f"{_HOME}/distutils/command/install.py", {"or is_virtual_environment()):": "or True):"})
    _replace(files, f"{_HOME}/distutils/command/install_egg_info.py", {"no_pyver = True": "no_pyver = False"})
    debian = "elif is_default_prefix and not is_virtual_environment():"
    _replace(files, f"{_HOME}/distutils/sysconfig.py", {debian: "elif False:"})
    # Debian's ensurepip works in virtual environments only.
    refusal = "\n    _ensurepip_is_disabled_in_debian_for_system()\n"
    _replace(files, f"{_HOME}/ensurepip/__init__.py", {refusal: "\n"})
    variables = [
        name for name in files if re.fullmatch(rf"{_HOME}/_sysconfigdata__[^/]*-linux-gnu\.py", name)
    ]
    for name in variables:
        files[name] = File(files[name].data + _RELOCATION.encode())
    if len(variables) != 1 or f"{_INCLUDE}/Python.h" not in files:
        raise unknown(f"libpython{PYTHON}-dev")


def _replace(files: dict[str, File], target: str, replacements: dict[str, str]) -> None:
    text = files[target].data.decode() if target in files else ""
    for old, new in replacements.items():
        if old not in text:
            raise unknown(target)
        text = text.replace(old, new)
    files[target] = File(text.encode())


def with_frozen_site(interpreter: bytes) -> bytes:
    """The interpreter with upstream's ``site.getsitepackages`` in its frozen copy of ``site``, which it uses
    instead of ``site.py``.

    :data:`_DIST` becomes :data:`_SITE`. The copy contains the string as a static PyASCIIObject (CPython 3.11,
    Include/cpython/unicodeobject.h): 48 bytes with reference count, type, length, hash, state and wstr, then
    the characters and a NUL. Both have the same length::

        offset   -48        -40   -32     -24   -16    -8    0
                 refcount   type  length  hash  state  wstr  dist-packages\\0

    :data:`_ADDED_TO_SITE` is skipped: a jump replaces its first instruction.

    Raises:
        FetchError: the string or the instructions are missing, or appear more than once, or are not as
            expected.
    """
    quoted = b"\0" + _DIST.encode() + b"\0"
    start = interpreter.find(quoted) + 1
    code = interpreter.find(_ADDED_CODE)
    following = interpreter[code + _ADDED_LENGTH :][: len(_NEXT_CODE)]
    is_known = interpreter.count(quoted) == interpreter.count(_ADDED_CODE) == 1 and following == _NEXT_CODE
    if not is_known or struct.unpack_from("<q", interpreter, start - 32)[0] != len(_DIST):
        raise unknown(f"python{PYTHON}")
    patched = bytearray(interpreter)
    patched[start : start + len(_DIST)] = _SITE.encode()
    patched[code : code + len(_JUMP)] = _JUMP
    return bytes(patched)
