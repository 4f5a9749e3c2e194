"""Python's headers for C extensions, where the image's Python has none.

conda's Python has them. That of the Debian channel does not: they are in a Debian package of their own, which
is unpacked once and mounted into the containers of builds.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from builder.channel.contents import PYTHON
from builder.channel.debs import Deb, download_debs
from builder.config.recipe import Recipe
from builder.errors import FetchError
from builder.model import DEBIAN_CHANNEL, LockedPackage
from builder.run.base import Mount
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.temporary import temporary_beside
from builder.store.walk import remove_tree

_DEB = f"libpython{PYTHON}-dev"


def header_mounts(
    packages: Sequence[LockedPackage], recipe: Recipe, settings: Settings, store: Store
) -> list[Mount]:
    """The mounts that add Python's headers to an image with these packages.

    Raises:
        FetchError: the headers are not in the cache, and the Debian mirror does not answer.
    """
    python = next((package for package in packages if package.name == "python"), None)
    if python is None or not python.url.startswith(DEBIAN_CHANNEL):
        return []
    folder = _headers(recipe.architecture, settings, store)
    return [Mount(folder, f"{recipe.conda.prefix}/include/python{PYTHON}")]


def _headers(architecture: str, settings: Settings, store: Store) -> Path:
    """The unpacked headers in the cache."""
    folder = store.folders.tools / f"python{PYTHON}-headers-{architecture}"
    with store.lock(folder.name):
        if folder.exists():
            return folder
        if settings.offline:
            raise FetchError(
                f"the headers of Python {PYTHON} are not in the cache, and builder is offline",
                "lock once online, or copy the cache",
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = temporary_beside(folder)
        try:
            work.mkdir()
            deb = Deb.unpack(download_debs([_DEB], work, architecture)[_DEB], work / "deb")
            _flatten(deb.tree, work / "include")
            (work / "include").rename(folder)
        finally:
            remove_tree(work)
    return folder


def _flatten(tree: Path, include: Path) -> None:
    """Copies the headers into one folder, with the ``pyconfig.h`` of the architecture.

    Debian's own ``pyconfig.h`` includes that of the architecture from another folder.
    """
    shutil.copytree(tree / "usr" / "include" / f"python{PYTHON}", include)
    special = next(tree.glob(f"usr/include/*/python{PYTHON}/pyconfig.h"), None)
    if special is None or not re.search(r"^#define SIZEOF_LONG ", special.read_text(), re.MULTILINE):
        raise FetchError(
            f"Debian's {_DEB} has changed, and this version of builder does not support it", "upgrade builder"
        )
    shutil.copyfile(special, include / "pyconfig.h")
