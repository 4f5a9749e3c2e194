"""Unpacked images, OCI and SIF, in the cache: one folder per image digest and user, complete or absent."""

from __future__ import annotations

import os
from pathlib import Path

from builder.model import Image, SifImage
from builder.progress import QUIET, Reporter, working
from builder.run.identity import Identity
from builder.settings import Settings
from builder.sif.read import read_sif
from builder.store.blobs import Store
from builder.store.folders import CacheFolders
from builder.store.temporary import temporary_beside
from builder.store.walk import remove_tree
from builder.trees.member import Advance, Kind, Member, counted
from builder.trees.merge import Merge
from builder.trees.rootfs import new_tree, unpack, unpacked_size


def cached_rootfs(
    image: Image | SifImage,
    settings: Settings,
    store: Store,
    reporter: Reporter = QUIET,
    *,
    owner: Identity | None = None,
) -> Path:
    """Returns the root file system of an image, unpacked on first use. All files belong to one user.

    Args:
        image: An image or a SIF, with all layers on this machine.
        settings: The cache.
        store: The blobs; its lock prevents two processes from unpacking the same image.
        reporter: Receives a note when the image is unpacked.
        owner: Who the files belong to; another than this user requires root. None is this user.

    Raises:
        ImageError: A layer or partition is damaged or not on this machine.
        SpaceError: The disk is too full.
        RunnerError: The file system does not let root change the owner.
    """
    owner = owner or Identity(os.getuid(), os.getgid())
    name = f"{image.digest.partition(':')[2][:24]}-{owner.uid}"
    folder = CacheFolders(settings.cache).rootfs / name
    if not folder.exists():
        with store.lock(f"rootfs {name}"):
            if not folder.exists():  # another process may have unpacked it meanwhile
                _unpack(image, folder, store, owner, reporter)
    os.utime(folder)  # `builder cache prune` goes by the time of last use
    return folder


def _unpack(image: Image | SifImage, folder: Path, store: Store, owner: Identity, reporter: Reporter) -> None:
    task = "unpacking the image (once)"
    total = None if isinstance(image, SifImage) else unpacked_size(image)
    temporary = temporary_beside(folder)
    try:
        with working(reporter, task, total):
            if isinstance(image, SifImage):
                unpack_sif(image, temporary, advance=lambda n: reporter.advance(task, n))
            else:
                unpack(image, temporary, store, advance=lambda n: reporter.advance(task, n))
            owner.give(temporary)
            temporary.replace(folder)
    except BaseException:
        if temporary.exists():
            remove_tree(temporary)
        raise


def unpack_sif(image: SifImage, folder: Path, *, advance: Advance = int) -> None:
    """Unpacks a SIF's partitions into one tree. All files belong to this user.

    ``advance`` receives the bytes of each file that was unpacked.

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
            tree.add(member, counted(content, advance))
        for member in links:
            tree.add(member, iter(()))
