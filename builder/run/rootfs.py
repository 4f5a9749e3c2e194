"""Unpacked images, OCI and SIF, in the cache: one folder per image digest and user, complete or absent."""

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
    """Returns the root file system of an image, unpacked on first use. All files belong to this user.

    Args:
        image: An image or a SIF, with all layers on this machine.
        settings: The cache.
        store: The blobs; its lock prevents two processes from unpacking the same image.
        reporter: Receives a note when the image is unpacked.

    Raises:
        ImageError: A layer or partition is damaged or not on this machine.
        SpaceError: The disk is too full.
    """
    name = f"{image.digest.partition(':')[2][:24]}-{os.getuid()}"
    folder = CacheFolders(settings.cache).rootfs / name
    if not folder.exists():
        with store.lock(f"rootfs {name}"):
            if not folder.exists():  # another process may have unpacked it meanwhile
                reporter.note("unpacking the image (first run only)")
                if isinstance(image, SifImage):
                    unpack_sif(image, folder)
                else:
                    unpack(image, folder, store)
    os.utime(folder)  # `builder cache prune` goes by the time of last use
    return folder


def unpack_sif(image: SifImage, folder: Path) -> None:
    """Unpacks a SIF's partitions into one tree. All files belong to this user.

    Raises:
        ImageError: The SIF is damaged, or the folder is not empty.
        SpaceError: The disk is too full.
    """
    links: list[Member] = []
    with new_tree(folder, 3 * image.size, rootless=True) as tree:
        for member, content in Merge(read_sif(image.path).sources()):
            if member.kind is Kind.HARDLINK:
                links.append(member)  # created last, when the files they link to exist
                continue
            tree.add(member, content)
        for member in links:
            tree.add(member, iter(()))
