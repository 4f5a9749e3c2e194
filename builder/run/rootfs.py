"""Unpacked images, OCI and SIF, in the cache: one folder for each digest and user, whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from builder.model import Image, SifImage
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.sif.read import read_sif
from builder.store.blobs import Store
from builder.store.folders import CacheFolders
from builder.trees.member import Kind, Member
from builder.trees.merge import Merge
from builder.trees.rootfs import new_tree, unpack


def cached_rootfs(
    image: Image | SifImage, settings: Settings, store: Store, reporter: Reporter = QUIET
) -> Path:
    """The root file system of an image, unpacked once; everything in it belongs to this user.

    Raises:
        ImageError: a layer or partition is damaged or not on this machine.
        SpaceError: not enough room.
    """
    folder = CacheFolders(settings.cache).rootfs / f"{image.digest.partition(':')[2][:24]}-{os.getuid()}"
    if not folder.exists():
        with store.lock(f"rootfs {folder.name}"):
            if not folder.exists():
                reporter.note("unpacking the image, once")
                if isinstance(image, SifImage):
                    unpack_sif(image, folder)
                else:
                    unpack(image, folder, store)
    os.utime(folder)  # when it was last used, for `builder cache prune`
    return folder


def unpack_sif(image: SifImage, folder: Path) -> None:
    """Unpacks a SIF's partitions as one tree, everything in it this user's.

    Raises:
        ImageError: the SIF is damaged, or the folder is not empty.
        SpaceError: not enough room.
    """
    links: list[Member] = []
    with new_tree(folder, 3 * image.size, rootless=True) as tree:
        for member, content in Merge(read_sif(image.path).sources()):
            if member.kind is Kind.HARDLINK:
                links.append(member)
                continue
            tree.add(member, content)
        for member in links:
            tree.add(member, iter(()))
