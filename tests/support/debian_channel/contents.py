"""What the Debian channel contains, and from which Debian packages."""

from __future__ import annotations

from dataclasses import dataclass

SUITE = "bookworm"
#: The version of Debian bookworm's Python.
PYTHON = "3.11"
#: The dependency on bookworm's glibc, for packages with compiled code.
GLIBC = "__glibc >=2.36"
#: The platforms that there are channels for, and Debian's names of their processors.
ARCHITECTURES = {"linux-64": "amd64", "linux-aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Library:
    """A conda package of shared libraries."""

    debs: tuple[str, ...]
    """The Debian packages."""
    license: str
    """An SPDX expression."""
    depends: tuple[str, ...] = ()
    """Other packages of the channel that it needs."""


#: By their names on conda-forge.
LIBRARIES = {
    "bzip2": Library(("libbz2-1.0",), "bzip2-1.0.6"),
    "libexpat": Library(("libexpat1",), "MIT"),
    "libffi": Library(("libffi8",), "MIT"),
    "libgcc": Library(("libgcc-s1", "libgomp1"), "GPL-3.0-only WITH GCC-exception-3.1"),
    "liblzma": Library(("liblzma5",), "0BSD"),
    "libsqlite": Library(("libsqlite3-0",), "blessing"),
    "libstdcxx": Library(("libstdc++6",), "GPL-3.0-only WITH GCC-exception-3.1", ("libgcc",)),
    "libuuid": Library(("libuuid1",), "BSD-3-Clause"),
    "libxcrypt": Library(("libcrypt1",), "LGPL-2.1-or-later"),
    "libzlib": Library(("zlib1g",), "Zlib"),
    "ncurses": Library(("libtinfo6", "libncursesw6"), "X11 AND BSD-3-Clause"),
    "openssl": Library(("libssl3",), "Apache-2.0", ("ca-certificates",)),
    "readline": Library(("libreadline8",), "GPL-3.0-only", ("ncurses",)),
}
#: Debian splits what conda's python has; libpython-dev has the headers, python-venv has ensurepip.
PYTHON_DEBS = (
    f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    f"libpython{PYTHON}-dev",
    "python3-distutils",
    "python3-lib2to3",
    f"python{PYTHON}-venv",
    "python3-pip-whl",
    "python3-setuptools-whl",
)
CERTIFICATES_DEB = "ca-certificates"
ZONES_DEB = "tzdata"
#: Conda package -> Debian package with its wheel.
WHEELS = {"pip": "python3-pip-whl", "setuptools": "python3-setuptools-whl", "wheel": "python3-wheel-whl"}


def all_debs() -> list[str]:
    """The names of all Debian packages that the channel is made from."""
    libraries = [deb for library in LIBRARIES.values() for deb in library.debs]
    names = [*PYTHON_DEBS, CERTIFICATES_DEB, ZONES_DEB, *WHEELS.values(), *libraries]
    return list(dict.fromkeys(names))
