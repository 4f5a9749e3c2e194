"""Which Debian package has a shared library, by the rule of Debian's policy for the names of such
packages.

    libsndfile.so.1   libsndfile1
    libgtk-3.so.0     libgtk-3-0, with a hyphen between two digits

debian_libraries.txt has the exceptions, and not_in_debian.txt what Debian does not have: CUDA, ROCm,
Intel's compilers, frameworks; and ``libz-1a2b3c4d.so.1``, a name that auditwheel makes.

Debian 13 renamed some packages (``libglib2.0-0t64``). Its apt accepts the names before that, and so
does Ubuntu's, because the new packages provide them.
"""

from __future__ import annotations

import re

from builder.core.datafiles import read_beside, search

_SONAME = re.compile(r"(lib.+)\.so\.([\d.]+)")


def debian_package(library: str) -> str:
    """Return the name of the package that has a library; empty if it is not known."""
    for line in read_beside(__file__, "debian_libraries.txt").splitlines():
        package, *libraries = line.split()
        if library in libraries:
            return package
    match = _SONAME.fullmatch(library)
    if match is None or search(read_beside(__file__, "not_in_debian.txt"), library):
        return ""
    name, version = match.groups()
    hyphen = "-" if name[-1].isdigit() else ""
    return f"{name}{hyphen}{version}".lower().replace("_", "-")
