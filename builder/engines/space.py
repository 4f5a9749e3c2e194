"""The space that a build needs, before it begins: a disk that is too small is reported before the downloads.

The lock has no sizes, so the servers are asked for those of the missing archives. On a disk with plenty of
space that is left out: each stage checks the space for what it writes, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.config.recipe import Recipe
from builder.engines.base import BuildRequest
from builder.lock.environment import find_links
from builder.lock.urls import url_variables
from builder.model import LockedPackage
from builder.store.files import require_space
from builder.text import human_bytes

#: Bytes. By the estimates below, 5 GB of archives that become a SIF need 18 GB.
PLENTY = 20 * 10**9
#: What a byte of an archive becomes at most in a layer or a SIF, and unpacked (:mod:`builder.layers.plan`).
_LAYER, _UNPACKED = 1.3, 4.0


def require_build_space(request: BuildRequest, packages: Sequence[LockedPackage]) -> None:
    """Checks that the disks can hold what a build downloads and writes, as far as the sizes are known.

    Raises:
        SpaceError: one of them cannot.
    """
    settings, store = request.settings, request.store
    folders = [_existing(folder) for folder in (settings.cache, settings.tmpdir)]
    if min(shutil.disk_usage(folder).free for folder in folders) >= PLENTY:
        return
    from builder.fetch.sizes import head_sizes  # not needed with plenty of space

    links, variables = find_links(request.recipe), url_variables(request.recipe)
    local = head_sizes(
        packages, replace(settings, offline=True), store, find_links=links, variables=variables
    )
    missing = [package for package in packages if local[package.key] is None]
    if not missing or settings.offline:
        return
    sizes = head_sizes(missing, settings, store, find_links=links, variables=variables)
    known = {key: size for key, size in (local | sizes).items() if size is not None}
    cache, temporary = needed_space(request.recipe, missing, known, settings.jobs)
    if _device(folders[0]) == _device(folders[1]):
        cache, temporary = cache + temporary, 0
    for folder, needed in ((settings.cache, cache), (settings.tmpdir, temporary)):
        if needed:
            free = shutil.disk_usage(_existing(folder)).free
            request.reporter.note(
                f"{request.recipe.name} needs about {human_bytes(needed)} in {folder}, "
                f"{human_bytes(free)} are free"
            )
            require_space(folder, needed, f"building {request.recipe.name}")


def needed_space(
    recipe: Recipe, missing: Sequence[LockedPackage], sizes: dict[str, int], jobs: int
) -> tuple[int, int]:
    """The bytes that a build needs in the cache, and in the folder for temporary files.

    Args:
        recipe: a SIF takes the space of all archives once more.
        missing: the packages that are downloaded.
        sizes: of archives, by the package's key, as far as they are known.
        jobs: how many conda packages are unpacked at the same time.
    """
    download = sum(sizes.get(package.key, 0) for package in missing)
    cache = download * (1 + _LAYER)
    if recipe.format == "sif" and download:
        cache += sum(sizes.values()) * _LAYER
    conda = sorted(sizes.get(package.key, 0) for package in missing if package.manager == "conda")
    return round(cache), round(sum(conda[-jobs:]) * _UNPACKED)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _device(folder: Path) -> int:
    return folder.stat().st_dev
