"""Unpacked images, OCI and SIF, in the cache: one folder per image digest and user, complete or absent.

The topmost layer of an image that builder made is small: it has the recipe's files, such as a training
script. An image that differs from one before in this layer only is not unpacked as a whole: all other files
are hard links. Containers never write into the tree, so links are safe.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.model import Image, Layer, SifImage
from builder.progress import QUIET, Reporter, working
from builder.run.identity import Identity
from builder.settings import Settings
from builder.sif.read import read_sif
from builder.store.blobs import Store
from builder.store.folders import CacheFolders
from builder.store.temporary import temporary_beside
from builder.store.unpacked import TreeName, hold, keep_last
from builder.store.walk import remove_tree
from builder.trees.member import Advance, Kind, Member, counted
from builder.trees.merge import Merge
from builder.trees.rootfs import add_layer, new_tree, unpack, unpacked_size

_TARGET_LABEL = "org.builder.target"


def cached_rootfs(
    image: Image | SifImage,
    settings: Settings,
    store: Store,
    reporter: Reporter = QUIET,
    *,
    owner: Identity | None = None,
) -> Path:
    """Returns the root file system of an image, unpacked on first use. All files belong to one user.

    It stays in the cache until this process ends. Older images of the target are removed when another one is
    unpacked, see :mod:`builder.store.unpacked`.

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
    user = owner or Identity(os.getuid(), os.getgid())
    name = _tree_name(image, user)
    rootfs = CacheFolders(settings.cache).rootfs
    return _held(name, rootfs, store, lambda: _unpack_image(image, rootfs, name, store, user, reporter))


def cached_lower(
    image: Image | SifImage, settings: Settings, store: Store, reporter: Reporter = QUIET, *, owner: Identity
) -> Path:
    """Like :func:`cached_rootfs`, for an image that others are built on.

    The trees of those, and of the image with one more layer, are hard links to the files of this one. So a
    chain of build steps unpacks the packages once.
    """
    if isinstance(image, SifImage):
        return cached_rootfs(image, settings, store, reporter, owner=owner)
    target = _target_name(json.loads(image.config))
    name = TreeName(target, _layers_key(image.layers), owner.uid)
    rootfs = CacheFolders(settings.cache).rootfs
    folder, below = rootfs / str(name), rootfs / str(replace(name, lower=_layers_key(image.layers[:-1])))
    make = functools.partial(_unpack_over_or_whole, below, image, folder, store, owner, reporter)
    return _held(name, rootfs, store, make)


def _held(name: TreeName, rootfs: Path, store: Store, make: Callable[[], None]) -> Path:
    """Return a tree that stays until this process ends, and make it if it is not in the cache."""
    folder = rootfs / str(name)
    while not hold(folder):
        with store.lock(f"rootfs {name.target} {name.uid}"):
            if not folder.exists():  # another process may have unpacked it meanwhile
                store.sweep(rootfs)
                make()
            hold(folder)
            keep_last(rootfs, name.target, name.uid)
    return folder


def _tree_name(image: Image | SifImage, owner: Identity) -> TreeName:
    """The name of the image's folder; an image without a target's label belongs to the target ``other``."""
    config = read_sif(image.path).config() if isinstance(image, SifImage) else json.loads(image.config)
    key = _layers_key(() if isinstance(image, SifImage) else image.layers[:-1])
    return TreeName(_target_name(config), key, owner.uid, image.digest.partition(":")[2][:24])


def _target_name(config: Mapping[str, Any]) -> str:
    labels = (config.get("config") or {}).get("Labels") or {}
    target = str(labels.get(_TARGET_LABEL, ""))
    return target if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", target) else "other"


def _layers_key(layers: Sequence[Layer]) -> str:
    """16 hex digits of layers, by the digests of the blobs, which are verified.

    An image may list diff_ids of another one's layers.
    """
    digests = [layer.descriptor.digest for layer in layers]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


def _unpack_image(
    image: Image | SifImage, rootfs: Path, name: TreeName, store: Store, owner: Identity, reporter: Reporter
) -> None:
    """Unpacks an image into its folder: over the layers below its topmost, where that is possible."""
    folder = rootfs / str(name)
    if isinstance(image, SifImage) or name.target == "other" or len(image.layers) == 1:
        _unpack(image, folder, store, owner, reporter)
        return
    lower = rootfs / str(TreeName(name.target, name.lower, name.uid))
    while not hold(lower):
        _unpack(image, lower, store, owner, reporter, layers=len(image.layers) - 1)
    _unpack_over_or_whole(lower, image, folder, store, owner, reporter)


def _unpack_over_or_whole(
    lower: Path, image: Image, folder: Path, store: Store, owner: Identity, reporter: Reporter
) -> None:
    """Unpacks an image over a tree of the layers below its topmost, if there is one."""
    try:
        if hold(lower):
            _unpack_over(lower, image, folder, store, owner)
            return
    except OSError:  # a file system without hard links
        pass
    _unpack(image, folder, store, owner, reporter)


def _unpack(
    image: Image | SifImage,
    folder: Path,
    store: Store,
    owner: Identity,
    reporter: Reporter,
    layers: int | None = None,
) -> None:
    """Unpacks an image, or its lowest ``layers``."""
    task = "unpacking the image (once)"
    total = None if isinstance(image, SifImage) else unpacked_size(image.layers[:layers])
    advance = functools.partial(reporter.advance, task)
    with _new_folder(folder, owner) as temporary, working(reporter, task, total):
        if isinstance(image, SifImage):
            unpack_sif(image, temporary, advance=advance)
        else:
            unpack(image, temporary, store, layers=layers, advance=advance)


@contextlib.contextmanager
def _new_folder(folder: Path, owner: Identity) -> Iterator[Path]:
    """Return a temporary name for a tree, which gets its owner and its name at the end of the block."""
    temporary = temporary_beside(folder)
    try:
        yield temporary
        _finish(temporary, folder, owner)
    except BaseException:
        if temporary.exists():
            remove_tree(temporary)
        raise


def _finish(temporary: Path, folder: Path, owner: Identity) -> None:
    """Gives a complete tree its owner and its name.

    Its root folder has the image's time until then, and nobody must take it for a tree that was left behind.
    Where locks do not work, another process may have unpacked the same image meanwhile: its tree stays.
    """
    os.utime(temporary)
    owner.give(temporary)
    try:
        temporary.replace(folder)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        remove_tree(temporary)


def _unpack_over(lower: Path, image: Image, folder: Path, store: Store, owner: Identity) -> None:
    """Unpacks the topmost layer over hard links to the files of the other layers.

    Raises:
        OSError: The file system has no hard links, or a file has too many.
    """
    with _new_folder(folder, owner) as temporary:
        shutil.copytree(lower, temporary, symlinks=True, copy_function=os.link)
        add_layer(image.layers[-1], temporary, store)


def unpack_sif(image: SifImage, folder: Path, *, advance: Advance = int) -> None:
    """Unpacks a SIF's partitions into one tree. All files belong to this user.

    ``advance`` receives the bytes of each file that was unpacked.

    Raises:
        ImageError: The SIF is damaged, or the folder is not empty.
        SpaceError: The disk is too full.
    """
    links: list[Member] = []
    with new_tree(folder, 3 * image.size) as tree:
        for member, content in Merge(read_sif(image.path).sources()):
            if member.kind is Kind.HARDLINK:
                links.append(member)  # created last, when the files they link to exist
                continue
            tree.add(member, counted(content, advance))
        for member in links:
            tree.add(member, iter(()))
