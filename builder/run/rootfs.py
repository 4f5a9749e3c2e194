"""Unpacked images in the cache: one folder for each digest and user, whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from builder.image.rootfs import unpack
from builder.model import Image
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store import Store


def cached_rootfs(image: Image, settings: Settings, store: Store, reporter: Reporter = QUIET) -> Path:
    """The root file system of an image, unpacked once; everything in it belongs to this user.

    Raises:
        ImageError: a layer is damaged or not on this machine.
        SpaceError: not enough room.
    """
    folder = settings.cache / "rootfs" / f"{image.digest.partition(':')[2][:24]}-{os.getuid()}"
    if not folder.exists():
        with store.lock(f"rootfs {folder.name}"):
            if not folder.exists():
                reporter.note("unpacking the image, once")
                unpack(image, folder, store)
    os.utime(folder)  # when it was last used, for `builder cache prune`
    return folder
