"""The Python of a base image as a conda package: a virtual environment, whose interpreter is the
base's.

All that is installed is links and a text file, so the package is made on each machine, from its URL
alone::

    builder://base/usr/bin/python3.11/linux-64/python-3.11.2-venv_0.conda

    bin/python, bin/python3  -> python3.11
    bin/python3.11           -> /usr/bin/python3.11
    pyvenv.cfg                  home = /usr/bin

The interpreter of a free-threaded Python is ``python3.13t``, and its modules are in
``lib/python3.13t``. With the build ``site_0`` the environment sees the packages of the base. Where
these are in a virtual environment of the base, its folder follows after ``/+/``::

    builder://base/usr/bin/python3.12/+/opt/venv/lib/python3.12/site-packages/linux-64/python-3.12.3-site_0.conda
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from builder.core.errors import FetchError, ImageError
from builder.core.markers import ARCHITECTURES
from builder.core.model import BASE_PYTHON, LockedPackage
from builder.core.store.temporary import temporary_beside
from builder.core.store.walk import remove_tree

from .condapackage import EPOCH, File, write_package

_PATH = r"(?:/(?!\.\.?/)[A-Za-z0-9._-]+)+"
_URL = re.compile(
    rf"{re.escape(BASE_PYTHON.rstrip('/'))}(?P<interpreter>{_PATH})(?:/\+(?P<packages>{_PATH}))?"
    r"/(?P<subdir>linux-64|linux-aarch64)/python-(?P<version>3\.\d+(?:\.\d+)?)-(?P<build>venv|site)_0\.conda"
)
#: The line that a ``.pth`` file of the environment holds: the packages of the base's own environment.
_PTH = "builder-base.pth"


@dataclass(frozen=True, slots=True)
class BasePython:
    """The Python of a base image, as an environment in the image uses it."""

    interpreter: str
    """The program itself, no link: ``/usr/bin/python3.11``, ``/usr/bin/python3.13t``."""
    version: str
    """``3.11.2``; ``3.11`` if the base does not say more."""
    sees_packages: bool = False
    """Whether the environment sees the packages of the base."""
    packages: str = ""
    """A further folder with packages of the base that it sees; empty if there is none."""

    @property
    def minor(self) -> str:
        """``3.11``."""
        return ".".join(self.version.split(".")[:2])

    @property
    def build(self) -> str:
        """The beginning of its package's build string."""
        return "site" if self.sees_packages else "venv"

    def url(self, platform: str) -> str:
        """Return the URL of its package.

        Raises:
            ImageError: a path has characters that no URL of a lock has.
        """
        packages = f"/+{self.packages}" if self.packages else ""
        name = f"python-{self.version}-{self.build}_0.conda"
        url = f"{BASE_PYTHON.rstrip('/')}{self.interpreter}{packages}/{platform}/{name}"
        if _URL.fullmatch(url) is None:
            path = f"{self.interpreter} with {self.packages}" if self.packages else self.interpreter
            raise ImageError(
                f"the Python of the base is {path}: such a path cannot be locked",
                "use another base; a path may have letters, digits and . _ -",
            )
        return url


def base_python_of(url: str) -> BasePython | None:
    """Return the Python that a URL of :meth:`BasePython.url` names; None if it is another URL."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    return BasePython(
        match["interpreter"], match["version"], match["build"] == "site", match["packages"] or ""
    )


def write_base_python(url: str, folder: Path) -> Path:
    """Write the package of a URL into a folder of packages, unless it is there, and return the file.

    Raises:
        FetchError: the URL is none of :meth:`BasePython.url`.
    """
    python = base_python_of(url)
    if python is None:
        raise FetchError(f"{url} names no Python of a base image", "lock again: builder lock")
    place = folder / hashlib.sha256(url.encode()).hexdigest()[:16] / url.rpartition("/")[2]
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    work = temporary_beside(place)
    try:
        work.mkdir()
        write_package(work, _info(python, url.split("/")[-2]), _files(python)).replace(place)
    finally:
        remove_tree(work)
    return place


def locked_base_python(python: BasePython, platform: str, folder: Path) -> LockedPackage:
    """Return the package as a lock has it; written into a folder of packages, for its hashes.

    conda-lock reads no lock with a conda package that has no MD5.

    Raises:
        ImageError: as for :meth:`BasePython.url`.
    """
    url = python.url(platform)
    data = write_base_python(url, folder).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return LockedPackage("python", python.version, "conda", platform, url, sha256, md5)


def _info(python: BasePython, subdir: str) -> dict[str, Any]:
    """Return what the package is: its record in a channel, and a summary."""
    index = {
        "arch": ARCHITECTURES[subdir],
        "build": f"{python.build}_0",
        "build_number": 0,
        "depends": [],
        "license": "PSF-2.0",
        "name": "python",
        "platform": "linux",
        "subdir": subdir,
        "timestamp": EPOCH * 1000,
        "version": python.version,
    }
    return {"index.json": index, "about.json": {"summary": "The Python of the base image"}}


def _files(python: BasePython) -> dict[str, File]:
    """Return the files of the environment."""
    name = f"python{python.minor}"
    settings = {
        "home": str(PurePosixPath(python.interpreter).parent),
        "include-system-site-packages": str(python.sees_packages).lower(),
        "version": python.version,
        "executable": python.interpreter,
    }
    text = "".join(f"{key} = {value}\n" for key, value in settings.items())
    files = {
        "bin/python": File(link=name),
        "bin/python3": File(link=name),
        f"bin/{name}": File(link=python.interpreter),
        "pyvenv.cfg": File(text.encode()),
    }
    if python.packages:
        library = PurePosixPath(python.interpreter).name
        files[f"lib/{library}/site-packages/{_PTH}"] = File(f"{python.packages}\n".encode())
    return files
