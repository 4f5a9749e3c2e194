"""What the Debian channel contains, and from which Debian packages."""

from __future__ import annotations

from dataclasses import dataclass

SUITE = "bookworm"
#: The version of Debian bookworm's Python.
PYTHON = "3.11"
#: The dependency on bookworm's glibc, for packages with compiled code.
GLIBC = "__glibc >=2.36"
#: Increase it when the same Debian packages become other conda packages. It is their build number, so that
#: the older ones stay in the channel under their own names.
FORMAT = 6
SUBDIRS = ("linux-64", "noarch")


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
    f"idle-python{PYTHON}",
    "python3-pip-whl",
    "python3-setuptools-whl",
)
#: The package ``tk``: Tcl and Tk with the libraries that they need, and Python's module tkinter.
TK_DEBS = (
    "libtk8.6",
    "libtcl8.6",
    "python3-tk",
    "tk8.6-blt2.5",
    "libbrotli1",
    "libbsd0",
    "libfontconfig1",
    "libfreetype6",
    "libmd0",
    "libpng16-16",
    "libx11-6",
    "libxau6",
    "libxcb1",
    "libxdmcp6",
    "libxext6",
    "libxft2",
    "libxrender1",
    "libxss1",
)
CERTIFICATES_DEB = "ca-certificates"
ZONES_DEB = "tzdata"
#: Conda package -> Debian package with its wheel.
WHEELS = {"pip": "python3-pip-whl", "setuptools": "python3-setuptools-whl", "wheel": "python3-wheel-whl"}


def all_debs() -> list[str]:
    """The names of all Debian packages that the channel is made from."""
    libraries = [deb for library in LIBRARIES.values() for deb in library.debs]
    names = [*PYTHON_DEBS, *TK_DEBS, CERTIFICATES_DEB, ZONES_DEB, *WHEELS.values(), *libraries]
    return list(dict.fromkeys(names))
