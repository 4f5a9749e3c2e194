"""Which Debian package has a shared library, by the rule of Debian's policy for the names of such
packages.

    libsndfile.so.1   libsndfile1
    libgtk-3.so.0     libgtk-3-0, with a hyphen between two digits

debian_libraries.txt has the exceptions, also those of some releases, and not_in_debian.txt what
Debian does not have: CUDA, ROCm, Intel's compilers, frameworks; and ``libz-1a2b3c4d.so.1``, a name
that auditwheel makes.

Debian 13 and Ubuntu 24.04 renamed some packages (``libglib2.0-0t64``). Their apt accepts the names
before that, because the new packages provide them, unless two packages provide one.
"""

from __future__ import annotations

import math
import re

from builder.core.datafiles import read_beside, search

_SONAME = re.compile(r"(lib.+)\.so\.([\d.]+)")


def debian_package(library: str, system: str = "", version: str = "") -> str:
    """Return the name of the package that has a library; empty if it is not known.

    Args:
        library: ``libGL.so.1``.
        system: the name of the system (os-release(5)): ``debian``, ``ubuntu``.
        version: ``12``, ``24.04``; a release without a number, ``forky``, is newer than all others.
    """
    for line in read_beside(__file__, "debian_libraries.txt").splitlines():
        package, *words = line.split()
        since = dict(word.split(">=") for word in words if ">=" in word)
        is_here = not since or (system in since and _number(version) >= _number(since[system]))
        if library in words and is_here:
            return package.strip("-")
    match = _SONAME.fullmatch(library)
    if match is None or search(read_beside(__file__, "not_in_debian.txt"), library):
        return ""
    name, version = match.groups()
    hyphen = "-" if name[-1].isdigit() else ""
    return f"{name}{hyphen}{version}".lower().replace("_", "-")


def _number(version: str) -> tuple[float, ...]:
    """Return a release for comparison."""
    parts = version.split(".")
    return tuple(map(float, parts)) if all(map(str.isdecimal, parts)) else (math.inf,)
