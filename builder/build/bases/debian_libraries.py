"""Which Debian package has a shared library, by the rule of Debian's policy for the names of such
packages.

    libsndfile.so.1   libsndfile1
    libgtk-3.so.0     libgtk-3-0, with a hyphen between two digits

debian_libraries.txt has the exceptions. Debian 13 renamed some packages (``libglib2.0-0t64``). Its
apt accepts the names before that, and so does Ubuntu's, because the new packages provide them.
"""

from __future__ import annotations

import re

from builder.core.datafiles import read_beside

#: What Debian does not have: CUDA, ROCm, Intel's compilers, frameworks; and ``libz-1a2b3c4d.so.1``, a name
#: that auditwheel makes.
_NOT_IN_DEBIAN = re.compile(
    r"lib(cu(blas|d|fft|file|pti|rand|solver|sparse|tensor)|nv|nppi|nccl|hip|roc|rccl|MIOpen|sycl|mkl|clntsh|"
    r"mysqlclient\.|torch|c10|tensorflow|Qt|icu|LLVM|clang|python).*|.+-[0-9a-f]{8}\.so.*|libmpi\.so\.12"
)
_SONAME = re.compile(r"(lib.+)\.so\.([\d.]+)")


def debian_package(library: str) -> str:
    """Return the name of the package that has a library; empty if it is not known."""
    for line in read_beside(__file__, "debian_libraries.txt").splitlines():
        package, *libraries = line.split()
        if library in libraries:
            return package
    match = _SONAME.fullmatch(library)
    if match is None or _NOT_IN_DEBIAN.fullmatch(library):
        return ""
    name, version = match.groups()
    hyphen = "-" if name[-1].isdigit() else ""
    return f"{name}{hyphen}{version}".lower().replace("_", "-")
