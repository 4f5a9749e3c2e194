"""Folders and files of a build: the temporary build folder, and the SIF in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.engines.base import BuildRequest
from builder.store.files import space_errors
from builder.store.folders import CacheFolders
from builder.store.leftovers import remove_left_behind
from builder.store.temporary import temporary_name
from builder.store.walk import remove_tree


def cached_sif(request: BuildRequest, engine: str) -> Path:
    """Returns the path of the target's last SIF by an engine.

    It has a part for the project folder, because two projects may have targets of the same name.
    """
    project = hashlib.sha256(str(request.recipe.root).encode()).hexdigest()[:8]
    path = CacheFolders(request.settings.cache).sif / f"{request.recipe.name}-{engine}-{project}.sif"
    with space_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def build_folder(request: BuildRequest) -> Iterator[Path]:
    """Creates a temporary folder in the cache, where files can be hard links to the cache's blobs.

    First removes the folders of builds that were killed.
    """
    parent = CacheFolders(request.settings.cache).tmp
    with space_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        remove_left_behind(parent)
        folder = parent / temporary_name("build")
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove_tree(folder)
